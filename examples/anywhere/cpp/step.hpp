// Graphs that onnxruntime runs: a training step, or a model.
#pragma once
#include "safetensors.hpp"
#include <onnxruntime_cxx_api.h>

// A step reads a batch of the inputs, then the state; it returns outputs, the loss first, and then the next state.
class Step {
public:
    explicit Step(const fs::path &path) : session(env, path.c_str(), Ort::SessionOptions()) { read_names(); }
    explicit Step(const std::string &bytes) : session(env, bytes.data(), bytes.size(), Ort::SessionOptions()) {
        read_names();
    }

    std::vector<std::string> inputs() const { return {input_names.begin(), input_names.end()}; }
    std::vector<std::string> outputs() const { return {output_names.begin(), output_names.end()}; }

    // A tensor for a batch, of the shape of an input but for the number of rows.
    Ort::Value make_batch(const Tensor &input, uint32_t rows) {
        std::vector<int64_t> shape = input.shape;
        shape[0] = rows;
        return Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), input.dtype.type);
    }

    // A tensor whose memory onnxruntime reads, without a copy.
    Ort::Value wrap(const Tensor &tensor) {
        return Ort::Value::CreateTensor(memory, tensor.data, tensor.size, tensor.shape.data(), tensor.shape.size(),
                                        tensor.dtype.type);
    }

    std::vector<Ort::Value> run(const std::vector<Ort::Value> &inputs) {
        return session.Run(Ort::RunOptions(), input_names.data(), inputs.data(), inputs.size(), output_names.data(),
                           output_names.size());
    }

private:
    void read_names() {
        for (size_t i = 0; i < session.GetInputCount(); i++)
            input_names.push_back(names.emplace_back(session.GetInputNameAllocated(i, allocator)).get());
        for (size_t i = 0; i < session.GetOutputCount(); i++)
            output_names.push_back(names.emplace_back(session.GetOutputNameAllocated(i, allocator)).get());
    }

    Ort::Env env{ORT_LOGGING_LEVEL_FATAL};
    Ort::Session session;
    Ort::AllocatorWithDefaultOptions allocator;
    Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<Ort::AllocatedStringPtr> names;
    std::vector<const char *> input_names, output_names;
};

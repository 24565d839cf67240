// Trains a training kit on ONNX Runtime: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]
#include "kit.hpp"
#include "rows.hpp"
#include <charconv>
#include <cmath>
#include <iostream>
#include <onnxruntime_cxx_api.h>

// A step: it reads a batch of the inputs, then the state; it returns outputs, the loss first, then the next state.
class Step {
public:
    explicit Step(const fs::path &path) : session(env, path.c_str(), Ort::SessionOptions()) {
        for (size_t i = 0; i < session.GetInputCount(); i++)
            feed_names.push_back(names.emplace_back(session.GetInputNameAllocated(i, allocator)).get());
        for (size_t i = 0; i < session.GetOutputCount(); i++)
            result_names.push_back(names.emplace_back(session.GetOutputNameAllocated(i, allocator)).get());
    }

    std::vector<Ort::Value> run(const std::vector<Ort::Value> &feeds) {
        return session.Run(Ort::RunOptions(), feed_names.data(), feeds.data(), feeds.size(), result_names.data(),
                           result_names.size());
    }

private:
    Ort::Env env{ORT_LOGGING_LEVEL_FATAL};
    Ort::Session session;
    Ort::AllocatorWithDefaultOptions allocator;
    std::vector<Ort::AllocatedStringPtr> names;
    std::vector<const char *> feed_names, result_names;
};

// Trains from step number `first` to `last`, and writes the new numbers over those of the state.
void train(const fs::path &file, const std::vector<Tensor> &inputs, const std::vector<Tensor> &state, uint64_t first,
           uint64_t last, uint32_t size, uint32_t seed) {
    Step step(file);
    Ort::AllocatorWithDefaultOptions allocator;
    std::vector<Ort::Value> feeds;
    for (auto [dtype, shape, data, _] : inputs) {
        shape[0] = size;
        feeds.push_back(Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), dtype.type));
    }
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    for (const auto &[dtype, shape, data, bytes] : state)  // no copy: the first step reads the file's own numbers
        feeds.push_back(Ort::Value::CreateTensor(memory, data, bytes, shape.data(), shape.size(), dtype.type));
    const uint32_t rows = inputs[0].shape[0], batches = rows / size;
    std::vector<uint32_t> order;
    for (uint64_t k = first; k < last; k++) {
        if (k == first || k % batches == 0) order = draw_order(seed, k / batches, rows);
        for (size_t i = 0; i < inputs.size(); i++)
            take_rows(inputs[i], &order[k % batches * size], size, feeds[i].GetTensorMutableData<char>());
        std::vector<Ort::Value> results = step.run(feeds);
        const float loss = *results[0].GetTensorData<float>();
        if (!std::isfinite(loss))
            fail("The loss of step ", k + 1, " is not finite: the kit needs a smaller step size, or the data hold ",
                 "numbers that are none.");
        if ((k + 1) % 10 == 0 || k + 1 == last) std::cout << "step " << k + 1 << ": loss " << loss << '\n';
        std::move(results.end() - state.size(), results.end(), feeds.end() - state.size());
    }
    for (size_t i = 0; i < state.size(); i++)
        std::memmove(state[i].data, feeds[inputs.size() + i].GetTensorRawData(), state[i].size);
}

void run(const fs::path &folder, const fs::path &data_file, uint32_t steps, uint32_t size, uint32_t seed) {
    const json kit = read_manifest(folder);
    State state(folder / "state.safetensors");
    TensorFile data(data_file, " is no safetensors file, or a damaged one.");
    if (size == 0) size = kit.at("batch_size");
    const std::string file = find_step(kit.at("steps"), size);
    const std::vector<Tensor> inputs = find_inputs(data, kit.at("inputs"));
    const std::vector<Tensor> tensors = state.find_all(kit.at("state").at("tensors"));
    const int64_t rows = inputs.at(0).shape[0];
    if (rows < size) fail("The data have ", rows, " rows, fewer than a batch of ", size, ".");
    if (!OrtGetApiBase()->GetApi(ORT_API_VERSION)) fail("onnxruntime is older than its header.");
    try {
        train(folder / file, inputs, tensors, state.steps(), state.steps() + steps, size, seed);
    } catch (const Ort::Exception &error) {
        fail("onnxruntime ", Ort::GetVersionString(), " cannot run ", file, ": ", error.what());
    }
    state.save(state.steps() + steps);
}

int main(int argc, char **argv) {
    std::array<uint32_t, 3> numbers{100, 0, 0};
    bool usable = argc > 2 && argc < 7;
    for (int i = 3; usable && i < argc; i++) {
        const char *end = argv[i] + std::strlen(argv[i]);
        const auto [rest, error] = std::from_chars(argv[i], end, numbers[i - 3]);
        usable = error == std::errc() && rest == end && (i != 4 || numbers[1] > 0);
    }
    try {
        if (!usable) fail("Usage: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]");
        run(argv[1], argv[2], numbers[0], numbers[1], numbers[2]);
        return EXIT_SUCCESS;
    } catch (const json::exception &) {
        std::cerr << "kit.json is no manifest of a training kit.\n";
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
    }
    return EXIT_FAILURE;
}

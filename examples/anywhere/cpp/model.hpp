// The inference model of a kit, with the weights that a state has.
#pragma once
#include "kit.hpp"
#include "rows.hpp"
#include "step.hpp"

// The file of the model, with the weights of a state, whose tensors are in the order of the manifest.
inline std::string read_model(const fs::path &folder, const json &kit, const std::vector<Tensor> &tensors) {
    std::ifstream stream(folder / "model.onnx", std::ios::binary);
    if (!stream) fail((folder / "model.onnx").string(), " cannot be read.");
    std::string bytes(std::istreambuf_iterator<char>(stream), {});
    const json &described = kit.at("state").at("tensors");
    for (const json &weight : kit.at("model").at("weights")) {
        const auto has_name = [&](const json &tensor) { return tensor.at("name") == weight.at("name"); };
        const size_t i = std::find_if(described.begin(), described.end(), has_name) - described.begin();
        const size_t offset = weight.at("offset").get_ref<const json::number_unsigned_t &>();
        if (i == tensors.size() || offset > bytes.size() || tensors[i].size > bytes.size() - offset)
            fail("model.onnx is not that of kit.json: export the kit again.");
        bytes.replace(offset, tensors[i].size, tensors[i].data, tensors[i].size);
    }
    return bytes;
}

// The inputs of a model, each as the manifest describes it; of one that no step reads, only the name is known.
inline json list_inputs(const json &inputs, const std::vector<std::string> &names) {
    json list = json::array();
    for (const std::string &name : names) {
        const auto has_name = [&](const json &input) { return input.at("name") == name; };
        const auto input = std::find_if(inputs.begin(), inputs.end(), has_name);
        list.push_back(input == inputs.end() ? json{{"name", name}} : *input);
    }
    return list;
}

// A tensor over the numbers of an output, which stay in the memory of onnxruntime.
inline Tensor read_output(Ort::Value &value) {
    const Ort::TensorTypeAndShapeInfo info = value.GetTensorTypeAndShapeInfo();
    for (const auto &[stored, dtype] : dtypes)
        if (dtype.type == info.GetElementType())
            return {dtype, info.GetShape(), value.GetTensorMutableData<char>(), info.GetElementCount() * dtype.size};
    fail("An output of the model is none that a file of safetensors holds.");
}

// The outputs of a model for the rows of a file, in the order of the names of its outputs.
inline std::vector<Ort::Value> predict(Step &model, const json &kit, TensorFile &data) {
    std::vector<Ort::Value> values;
    for (const Tensor &tensor : find_inputs(data, list_inputs(kit.at("inputs"), model.inputs())))
        values.push_back(model.wrap(tensor));
    return model.run(values);
}

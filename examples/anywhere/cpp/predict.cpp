// Runs the model of a training kit on ONNX Runtime: predict KIT DATA PREDICTIONS [MODEL]
#include "model.hpp"
#include <iostream>

void run(const fs::path &folder, const fs::path &data_file, const fs::path &predictions, const char *model_file) {
    const json kit = read_manifest(folder);
    State state(folder / "state.safetensors");
    TensorFile data(data_file, " is no safetensors file, or a damaged one.");
    const std::string bytes = read_model(folder, kit, state.find_all(kit.at("state").at("tensors")));
    if (!OrtGetApiBase()->GetApi(ORT_API_VERSION)) fail("onnxruntime is older than its header.");
    try {
        Step model(bytes);
        std::vector<Ort::Value> values = predict(model, kit, data);
        std::vector<std::pair<std::string, Tensor>> outputs;
        for (const std::string &name : model.outputs()) outputs.emplace_back(name, read_output(values[outputs.size()]));
        replace_file(predictions, write_tensors(outputs));
    } catch (const Ort::Exception &error) {
        fail("onnxruntime ", Ort::GetVersionString(), " cannot run model.onnx: ", error.what());
    }
    if (model_file) replace_file(model_file, bytes);
}

int main(int argc, char **argv) {
    try {
        if (argc < 4 || argc > 5) fail("Usage: predict KIT DATA PREDICTIONS [MODEL]");
        run(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : nullptr);
        return EXIT_SUCCESS;
    } catch (const json::exception &) {
        std::cerr << "kit.json is no manifest of a training kit.\n";
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
    }
    return EXIT_FAILURE;
}

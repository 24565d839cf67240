// Trains a training kit on ONNX Runtime: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]
#include "kit.hpp"
#include "rows.hpp"
#include "step.hpp"
#include <array>
#include <charconv>
#include <cmath>
#include <iostream>

// Trains from step number `first` to `last`, and writes the new numbers over those of the state.
void train(Step &step, const std::vector<Tensor> &inputs, const std::vector<Tensor> &state, uint64_t first,
           uint64_t last, uint32_t size, uint32_t seed) {
    std::vector<Ort::Value> values;
    for (const Tensor &input : inputs) values.push_back(step.make_batch(input, size));
    for (const Tensor &tensor : state) values.push_back(step.wrap(tensor));
    const uint32_t rows = inputs[0].shape[0], batches = rows / size;
    std::vector<uint32_t> order;
    std::cout.precision(7);
    for (uint64_t k = first; k < last; k++) {
        if (k == first || k % batches == 0) order = draw_order(seed, k / batches, rows);
        for (size_t i = 0; i < inputs.size(); i++)
            take_rows(inputs[i], &order[k % batches * size], size, values[i].GetTensorMutableData<char>());
        std::vector<Ort::Value> results = step.run(values);
        const float loss = *results[0].GetTensorData<float>();
        if (!std::isfinite(loss))
            fail("The loss of step ", k + 1, " is not finite: the kit needs a smaller step size, or the data hold ",
                 "numbers that are none.");
        if ((k + 1) % 10 == 0 || k + 1 == last) std::cout << "step " << k + 1 << ": loss " << loss << '\n';
        std::move(results.end() - state.size(), results.end(), values.end() - state.size());
    }
    for (size_t i = 0; i < state.size(); i++)
        std::memmove(state[i].data, values[inputs.size() + i].GetTensorRawData(), state[i].size);
}

void run(const fs::path &folder, const fs::path &data_file, uint32_t steps, uint32_t size, uint32_t seed) {
    const json kit = read_manifest(folder);
    State state(folder / "state.safetensors");
    TensorFile data(data_file, " is no safetensors file, or a damaged one.");
    if (size == 0) size = kit.at("batch_size");
    const std::string file = find_step(kit.at("steps"), size);
    const std::vector<Tensor> inputs = find_inputs(data, kit.at("inputs"), size);
    const std::vector<Tensor> tensors = state.find_all(kit.at("state").at("tensors"));
    if (!OrtGetApiBase()->GetApi(ORT_API_VERSION)) fail("onnxruntime is older than its header.");
    try {
        Step step(folder / file);
        std::vector<std::string> names;
        for (const json &bindings : {kit.at("inputs"), kit.at("state").at("tensors")})
            for (const json &binding : bindings) names.push_back(binding.at("name"));
        if (step.inputs() != names || step.outputs().size() != kit.at("outputs").size() + tensors.size())
            fail(file, " is damaged: its inputs and outputs are not those of kit.json.");
        train(step, inputs, tensors, state.steps(), state.steps() + steps, size, seed);
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

// The rows of a training: checked, shuffled, and taken for a batch.
#pragma once
#include "safetensors.hpp"
#include <algorithm>
#include <numeric>

inline std::string to_text(const json &shape) {  // as in [N, 64]
    std::string text;
    for (const json &size : shape)
        text += (text.empty() ? "" : ", ") + (size.is_string() ? size.get<std::string>() : size.dump());
    return "[" + text + "]";
}

inline std::string quote_name(const json &input) { return "'" + input.at("name").get<std::string>() + "'"; }

// Labels and indices are whole numbers of any size.
inline std::vector<int64_t> read_whole_numbers(const Tensor &tensor) {
    const size_t size = tensor.dtype.size, unused = tensor.dtype.name[0] == 'i' ? 64 - 8 * size : 0;
    std::vector<int64_t> numbers;
    for (size_t at = 0; at < tensor.size; at += size) {
        uint64_t bits = 0;
        std::memcpy(&bits, tensor.data + at, size);
        numbers.push_back(static_cast<int64_t>(bits << unused) >> unused);  // shifts in the sign
    }
    return numbers;
}

inline void check_range(const Tensor &tensor, const json &input) {
    const int64_t low = input.at("low"), high = input.at("high");
    std::vector<int64_t> numbers = read_whole_numbers(tensor);
    std::string unless;
    if (input.contains("ignored")) {
        const int64_t ignored = input.at("ignored");
        numbers.erase(std::remove(numbers.begin(), numbers.end(), ignored), numbers.end());
        unless = ", or " + std::to_string(ignored) + " for what does not count";
    }
    const auto [least, greatest] = std::minmax_element(numbers.begin(), numbers.end());
    if (!numbers.empty() && (*least < low || *greatest > high))
        fail("Input ", quote_name(input), " has values from ", *least, " to ", *greatest, ", where ", low, " to ", high,
             " are expected", unless, ".");
}

// An input among the data, whose dtype, shape and values are those of the manifest, if it has them.
inline Tensor find_input(TensorFile &data, const json &input) {
    const std::string name = quote_name(input);
    if (!data.contains(input.at("name"))) fail("The data lack the input ", name, ".");
    const Tensor tensor = data.find(input.at("name"));
    if (!input.contains("dtype")) return tensor;
    const std::string dtype = input.at("dtype");
    const json &expected = input.at("shape");
    if (tensor.dtype.name != dtype)
        fail("Input ", name, " is ", tensor.dtype.name, ", where ", dtype, " is expected.");
    const auto fits = [](int64_t size, const json &axis) { return axis.is_string() || axis == size; };
    const std::vector<int64_t> &shape = tensor.shape;  // of any number of rows
    if (shape.empty() || !std::equal(shape.begin() + 1, shape.end(), expected.begin() + 1, expected.end(), fits))
        fail("Input ", name, " has the shape ", to_text(shape), ", where ", to_text(expected), " is expected.");
    if (input.contains("low")) check_range(tensor, input);
    return tensor;
}

// All inputs, which have the same number of rows, enough for a batch.
inline std::vector<Tensor> find_inputs(TensorFile &data, const json &inputs, uint32_t size = 0) {
    std::vector<Tensor> tensors;
    for (const json &input : inputs) {
        tensors.push_back(find_input(data, input));
        if (tensors.back().shape[0] != tensors[0].shape[0])
            fail("The inputs have different numbers of rows: ", quote_name(inputs[0]), " has ", tensors[0].shape[0],
                 ", ", quote_name(input), " has ", tensors.back().shape[0], ".");
    }
    if (tensors[0].shape[0] < size)
        fail("The data have ", tensors[0].shape[0], " rows, fewer than a batch of ", size, ".");
    return tensors;
}

// The rows of an epoch in random order, which is the same in every language.
inline std::vector<uint32_t> draw_order(uint32_t seed, uint32_t epoch, uint32_t count) {
    std::vector<uint32_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    uint32_t s = seed ^ epoch * 0x85EBCA6B;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t z = s += 0x9E3779B9;
        z = (z ^ z >> 16) * 0x21F0AAAD;
        z = (z ^ z >> 15) * 0x735A2D97;
        std::swap(rows[i], rows[(z ^ z >> 15) % (i + 1)]);
    }
    return rows;
}

inline void take_rows(const Tensor &tensor, const uint32_t *rows, uint32_t count, char *batch) {
    const size_t size = tensor.size / tensor.shape[0];
    for (uint32_t i = 0; i < count; i++) std::memcpy(batch + i * size, tensor.data + rows[i] * size, size);
}

// Files that are written.
#pragma once
#include "safetensors.hpp"
#include <algorithm>
#include <random>

// Writes a whole file under another name, which then replaces the former one.
inline void replace_file(const fs::path &path, const std::string &bytes) {
    const fs::path temporary = path.string() + "." + std::to_string(std::random_device()()) + ".tmp";
    std::ofstream stream(temporary, std::ios::binary);
    stream << bytes;
    stream.close();
    if (stream) return fs::rename(temporary, path);
    fs::remove(temporary);
    fail(path.filename().string(), " cannot be written.");
}

// The bytes of a file of safetensors with tensors by name.
inline std::string write_tensors(const std::vector<std::pair<std::string, Tensor>> &tensors) {
    json header = json::object();
    std::string numbers;
    for (const auto &[name, tensor] : tensors) {
        const auto is_stored = [&](const auto &entry) { return entry.second.type == tensor.dtype.type; };
        const size_t begin = numbers.size();
        numbers.append(tensor.data, tensor.size);
        header[name] = {{"dtype", std::find_if(dtypes.begin(), dtypes.end(), is_stored)->first},
                        {"shape", tensor.shape}, {"data_offsets", {begin, numbers.size()}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // numbers begin at a multiple of their size
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char *>(&length), 8) + text + numbers;
}

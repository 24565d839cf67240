// A training kit: its manifest, and its state, which a training replaces.
#pragma once
#include "files.hpp"
#include <zlib.h>

inline json read_manifest(const fs::path &folder) {
    std::ifstream stream(folder / "kit.json");
    if (!stream) fail((folder / "kit.json").string(), " cannot be read.");
    json kit = json::parse(stream, nullptr, false);
    if (!kit.is_object() || kit.value("format", "") != "ortpartial.kit" || kit.value("version", 0) < 1)
        fail("kit.json is no manifest of a training kit.");
    if (kit.at("version") > 1)
        fail("kit.json is of version ", kit.at("version"), ", and this runner reads version 1: ",
             "take the runner that was exported with the kit.");
    const auto is_size = [](const json &n) { return n.is_number_unsigned() && n > 0 && n <= UINT32_MAX; };
    bool sound = is_size(kit.at("batch_size")) && !kit.at("steps").empty();
    for (const json &step : kit.at("steps")) {
        const std::string file = step.at("file");
        sound &= !file.empty() && file.find_first_of("/\\") == std::string::npos;
        sound &= step.at("batch_size").is_null() || is_size(step.at("batch_size"));
    }
    for (const json *tensors : {&kit.at("inputs"), &kit.at("outputs"), &kit.at("state").at("tensors")}) {
        sound &= !tensors->empty();
        for (const json &tensor : *tensors)
            sound &= tensor.at("name").is_string() && tensor.at("dtype").is_string() && tensor.at("shape").is_array();
    }
    if (!sound) fail("kit.json is no manifest of a training kit.");
    return kit;
}

// The file of the step for batches of so many rows.
inline std::string find_step(const json &steps, uint32_t rows) {
    std::string sizes;
    for (const json &step : steps) {
        const json &size = step.at("batch_size");
        if (size.is_null() || size == rows) return step.at("file");
        sizes += (sizes.empty() ? "" : " or ") + size.dump();
    }
    fail("The kit has steps for batches of ", sizes, " rows, not of ", rows, ".");
}

class State : public TensorFile {
public:
    explicit State(const fs::path &path)
        : TensorFile(path, " is damaged: restore a copy of it, or export the kit again."), path(path) {
        const std::string former = bytes;
        sign();
        const size_t digits = find_digits("steps");
        if (bytes != former || bytes.find_first_not_of("0123456789", digits) != digits + 12) throw Error(flaw);
    }

    uint64_t steps() const { return std::strtoull(&bytes[find_digits("steps")], nullptr, 10); }

    // The tensors that the manifest describes.
    std::vector<Tensor> find_all(const json &described) {
        std::vector<Tensor> tensors;
        for (const json &expected : described) {
            const std::string name = expected.at("name");
            if (contains(name)) tensors.push_back(find(name));
            if (!contains(name) || tensors.back().dtype.name != expected.at("dtype") ||
                json(tensors.back().shape) != expected.at("shape"))
                fail(path.filename().string(), " is the state of another kit: its tensors are not those of kit.json.");
        }
        return tensors;
    }

    void save(uint64_t steps) {
        const std::string digits = std::to_string(steps);
        bytes.replace(find_digits("steps") + 12 - digits.size(), digits.size(), digits);
        sign();
        replace_file(path, bytes);
    }

private:
    fs::path path;

    // Where the digits after a key begin in the header.
    size_t find_digits(const std::string &key) const {
        const size_t at = bytes.find('"' + key + "\":\"");
        if (at >= start) throw Error(flaw);
        return at + key.size() + 4;
    }

    // Writes the checksum, in which its own digits count as 0.
    void sign() {
        const size_t at = find_digits("crc32");
        bytes.replace(at, 8, "00000000");
        const unsigned long checksum = crc32_z(0, reinterpret_cast<const Bytef *>(bytes.data()), bytes.size());
        std::snprintf(&bytes[at], 9, "%08lx", checksum);
        bytes[at + 8] = '"';  // in place of the end of the text
    }
};

// Files of safetensors.
#pragma once
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <onnxruntime_c_api.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using nlohmann::json;
namespace fs = std::filesystem;

// What is wrong, in one sentence.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void fail(const Parts &...parts) {
    std::ostringstream sentence;
    (sentence << ... << parts);
    throw Error(sentence.str());
}

struct Dtype {
    std::string name;
    ONNXTensorElementDataType type;
    size_t size;
};

struct Tensor {
    Dtype dtype;
    std::vector<int64_t> shape;
    char *data;
    size_t size;
};

inline const std::map<std::string, Dtype> dtypes{
    {"F32", {"float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4}},
    {"F64", {"float64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8}},
    {"F16", {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2}},
    {"BF16", {"bfloat16", ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 2}},
    {"I64", {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8}},
    {"I32", {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4}},
    {"I16", {"int16", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2}},
    {"I8", {"int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1}},
    {"U64", {"uint64", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 8}},
    {"U32", {"uint32", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4}},
    {"U16", {"uint16", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 2}},
    {"U8", {"uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1}},
    {"BOOL", {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1}},
};

class TensorFile {
public:
    TensorFile(const fs::path &path, const std::string &what) : flaw(path.filename().string() + what) {
        std::ifstream stream(path, std::ios::binary);
        if (!stream || fs::is_directory(path)) fail(path.string(), " cannot be read.");
        bytes.assign(std::istreambuf_iterator<char>(stream), {});
        uint64_t length = 0;
        std::memcpy(&length, bytes.data(), std::min<size_t>(bytes.size(), 8));
        if (bytes.size() < 8 || length > bytes.size() - 8) throw Error(flaw);
        start = 8 + length;
        header = json::parse(&bytes[8], &bytes[start], nullptr, false);
        if (!header.is_object()) throw Error(flaw);
    }

    bool contains(const std::string &name) const { return header.contains(name); }

    // A tensor, whose numbers stay in the memory of the file.
    Tensor find(const std::string &name) {
        try {
            const json &entry = header.at(name);
            const json &offsets = entry.at("data_offsets");
            const size_t begin = read_size(offsets.at(0)), end = read_size(offsets.at(1));
            const Dtype &dtype = dtypes.at(entry.at("dtype"));
            std::vector<int64_t> shape;
            double size = dtype.size;
            for (const json &length : entry.at("shape")) size *= shape.emplace_back(read_size(length));
            if (begin <= end && end <= bytes.size() - start && end - begin == size)
                return {dtype, shape, &bytes[start] + begin, end - begin};
        } catch (const std::exception &) {  // the entry lacks something, or has another type
        }
        throw Error(flaw);
    }

protected:
    std::string bytes, flaw;
    size_t start;
    json header;

private:
    static size_t read_size(const json &number) { return number.get_ref<const json::number_unsigned_t &>(); }
};

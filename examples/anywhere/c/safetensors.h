// Files of safetensors, and the manifest of a kit, which is JSON as their headers are.
#pragma once
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(EXIT_FAILURE))

enum { MAX_RANK = 16 };
typedef struct { int type; int64_t shape[MAX_RANK]; size_t rank, size; char *data; } Tensor;
typedef struct { const char *name, *flaw; cJSON *json; char *bytes, *data; size_t size; } File;

static const struct { const char *name, *stored; size_t size; } dtypes[] = {  // numbered as in ONNX
    {"", "", 0}, {"float32", "F32", 4}, {"uint8", "U8", 1}, {"int8", "I8", 1}, {"uint16", "U16", 2},
    {"int16", "I16", 2}, {"int32", "I32", 4}, {"int64", "I64", 8}, {"", "", 0}, {"bool", "BOOL", 1},
    {"float16", "F16", 2}, {"float64", "F64", 8}, {"uint32", "U32", 4},
    {"uint64", "U64", 8}, {"", "", 0}, {"", "", 0}, {"bfloat16", "BF16", 2}};

static cJSON *get(const cJSON *object, const char *key) { return cJSON_GetObjectItemCaseSensitive(object, key); }

static double number(const cJSON *object, const char *key) { return cJSON_GetNumberValue(get(object, key)); }

static const char *text(const cJSON *object, const char *key) {
    const char *value = cJSON_GetStringValue(get(object, key));
    return value ? value : "";
}

static void refuse(const File *file) { FAIL("%s %s", file->name, file->flaw); }

static File read_bytes(const char *path, const char *flaw) {
    const char *slash = strrchr(path, '/');
    File file = {.name = slash ? slash + 1 : path, .flaw = flaw};
    FILE *stream = fopen(path, "rb");
    if (!stream) FAIL("%s cannot be read.", path);
    if (fseek(stream, 0, SEEK_END)) refuse(&file);
    file.size = ftell(stream);
    rewind(stream);
    file.bytes = calloc(file.size + 9, 1);  // with zeros at the end: even an empty file has a prefix, and any text ends
    if (!file.bytes || fread(file.bytes, 1, file.size, stream) != file.size) refuse(&file);
    fclose(stream);
    return file;
}

// Reads a file of JSON, or one of safetensors: the length of its JSON in 8 bytes (the prefix), its JSON, its numbers.
static File read_file(const char *path, const char *flaw, size_t prefix) {
    File file = read_bytes(path, flaw);
    uint64_t length = file.size;
    memcpy(&length, file.bytes, prefix);
    if (file.size < prefix || length > file.size - prefix) refuse(&file);
    file.data = file.bytes + prefix + length;
    file.json = cJSON_ParseWithLength(file.bytes + prefix, length);
    if (!file.json) refuse(&file);
    return file;
}

static void close_file(File *file) {
    cJSON_Delete(file->json);
    free(file->bytes);
}

// Finds a tensor, whose numbers stay in the memory of the file.
static Tensor find_tensor(const File *file, const char *name) {
    const cJSON *entry = get(file->json, name), *offsets = get(entry, "data_offsets"), *length;
    double begin = cJSON_GetNumberValue(cJSON_GetArrayItem(offsets, 0));
    double end = cJSON_GetNumberValue(cJSON_GetArrayItem(offsets, 1));
    Tensor tensor = {.type = sizeof dtypes / sizeof *dtypes - 1};
    while (tensor.type && strcmp(dtypes[tensor.type].stored, text(entry, "dtype"))) tensor.type--;
    double size = dtypes[tensor.type].size;
    if (!size || cJSON_GetArraySize(get(entry, "shape")) > MAX_RANK) refuse(file);
    cJSON_ArrayForEach(length, get(entry, "shape")) {
        double count = cJSON_GetNumberValue(length);
        if (!(count >= 0 && count < 1e15)) refuse(file);
        size *= tensor.shape[tensor.rank++] = (int64_t)count;
    }
    if (!(begin >= 0 && end <= file->bytes + file->size - file->data && end - begin == size)) refuse(file);
    tensor.data = file->data + (size_t)begin;
    tensor.size = (size_t)size;
    return tensor;
}

// Writes a whole file under another name, which then replaces the former one.
static void replace_file(const char *path, const char *bytes, size_t size) {
    char temporary[strlen(path) + 32];
    sprintf(temporary, "%s.%d.tmp", path, (int)getpid());
    FILE *stream = fopen(temporary, "wb");
    if (stream && fwrite(bytes, 1, size, stream) == size && !fclose(stream) && !rename(temporary, path)) return;
    remove(temporary);
    FAIL("%s cannot be written.", path);
}

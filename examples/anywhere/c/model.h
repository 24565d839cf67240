// The inference model of a kit, with the weights that a state has.
#pragma once
#include "kit.h"
#include "session.h"

// Reads the model, and writes the weights into it.
static File read_model(const cJSON *kit, const Tensor *tensors) {
    File file = read_bytes("model.onnx", "is not that of kit.json: export the kit again.");
    const cJSON *weight, *described;
    cJSON_ArrayForEach(weight, get(get(kit, "model"), "weights")) {
        const Tensor *tensor = tensors;
        cJSON_ArrayForEach(described, get(get(kit, "state"), "tensors")) {
            if (!strcmp(text(described, "name"), text(weight, "name"))) break;
            tensor++;
        }
        double offset = number(weight, "offset");
        if (!described || !(offset >= 0 && offset + tensor->size <= file.size)) refuse(&file);
        memcpy(file.bytes + (size_t)offset, tensor->data, tensor->size);
    }
    return file;
}

// The inputs of the model, each as the manifest describes it; of one that no step reads, only the name is known.
static cJSON *list_inputs(const cJSON *kit, const Bindings *bindings) {
    cJSON *list = cJSON_CreateArray(), *input;
    for (size_t i = 0; i < bindings->count; i++) {
        cJSON_ArrayForEach(input, get(kit, "inputs"))
            if (!strcmp(text(input, "name"), bindings->names[i])) break;
        if (input) cJSON_AddItemReferenceToArray(list, input);
        else {
            cJSON_AddItemToArray(list, input = cJSON_CreateObject());
            cJSON_AddStringToObject(input, "name", bindings->names[i]);
        }
    }
    return list;
}

// The numbers of an output, which stay in the memory of onnxruntime.
static Tensor read_output(const Bindings *outputs, size_t i) {
    Tensor tensor = {0};
    OrtTensorTypeAndShapeInfo *info;
    ONNXTensorElementDataType type;
    size_t count;
    check(ort->GetTensorTypeAndShape(outputs->values[i], &info));
    check(ort->GetTensorElementType(info, &type));
    check(ort->GetTensorShapeElementCount(info, &count));
    check(ort->GetDimensionsCount(info, &tensor.rank));
    if (type >= sizeof dtypes / sizeof *dtypes || !dtypes[type].size || tensor.rank > MAX_RANK)
        FAIL("The output '%s' is none that a file of safetensors holds.", outputs->names[i]);
    check(ort->GetDimensions(info, tensor.shape, tensor.rank));
    ort->ReleaseTensorTypeAndShapeInfo(info);
    tensor.type = type;
    tensor.size = count * dtypes[type].size;
    tensor.data = numbers_of(outputs->values[i]);
    return tensor;
}

// Writes the outputs of the model to a file of safetensors.
static void write_outputs(const char *path, const Bindings *outputs) {
    cJSON *header = cJSON_CreateObject();
    Tensor tensors[outputs->count];
    size_t end = 0;
    for (size_t i = 0; i < outputs->count; i++) {
        Tensor *t = &tensors[i];
        *t = read_output(outputs, i);
        cJSON *entry = cJSON_AddObjectToObject(header, outputs->names[i]), *shape, *offsets;
        cJSON_AddStringToObject(entry, "dtype", dtypes[t->type].stored);
        shape = cJSON_AddArrayToObject(entry, "shape"), offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        for (size_t axis = 0; axis < t->rank; axis++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[axis]));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)end));
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(end += t->size)));
    }
    char *text = cJSON_PrintUnformatted(header);
    uint64_t length = (strlen(text) + 7) / 8 * 8, start = 8 + length;  // numbers begin at a multiple of their size
    char *bytes = malloc(start + end), *at = bytes + start;
    memcpy(bytes, &length, 8);
    memset(bytes + 8, ' ', length);  // a header may end with spaces
    memcpy(bytes + 8, text, strlen(text));
    for (size_t i = 0; i < outputs->count; at += tensors[i++].size) memcpy(at, tensors[i].data, tensors[i].size);
    replace_file(path, bytes, start + end);
    free(bytes), free(text), cJSON_Delete(header);
}

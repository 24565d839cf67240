// The rows of a training: checked, shuffled, and taken for a batch.
#pragma once
#include "safetensors.h"

static char *print_shape(cJSON *shape, char text[256]) {  // as in [N, 64]
    cJSON_PrintPreallocated(shape, text, 256, 1);
    for (char *quote = text; (quote = strchr(quote, '"'));) memmove(quote, quote + 1, strlen(quote));
    return text;
}

// Checks labels or indices, which are whole numbers.
static void check_range(const Tensor *tensor, const cJSON *input) {
    const cJSON *ignored = get(input, "ignored");
    double low = number(input, "low"), high = number(input, "high");
    int64_t least = INT64_MAX, greatest = INT64_MIN;
    size_t size = dtypes[tensor->type].size, unused = *dtypes[tensor->type].name == 'i' ? 64 - 8 * size : 0;
    for (const char *at = tensor->data; at < tensor->data + tensor->size; at += size) {
        uint64_t bits = 0;
        memcpy(&bits, at, size);
        int64_t value = (int64_t)(bits << unused) >> unused;  // shifts in the sign
        if (ignored && value == ignored->valuedouble) continue;
        if (value < least) least = value;
        if (value > greatest) greatest = value;
    }
    if (least > greatest || (least >= low && greatest <= high)) return;
    char unless[64] = "";
    if (ignored) snprintf(unless, sizeof unless, ", or %.0f for what does not count", ignored->valuedouble);
    FAIL("Input '%s' has values from %" PRId64 " to %" PRId64 ", where %.0f to %.0f are expected%s.",
         text(input, "name"), least, greatest, low, high, unless);
}

// Finds an input in the data, and checks that its dtype, shape and values are those of the manifest, if it is there.
static Tensor find_input(const File *data, const cJSON *input) {
    const char *name = text(input, "name"), *dtype = text(input, "dtype");
    if (!get(data->json, name)) FAIL("The data lack the input '%s'.", name);
    Tensor tensor = find_tensor(data, name);
    if (!*dtype) return tensor;
    const char *stored = dtypes[tensor.type].name;
    if (strcmp(stored, dtype)) FAIL("Input '%s' is %s, where %s is expected.", name, stored, dtype);
    cJSON *shape = get(get(data->json, name), "shape"), *expected = get(input, "shape");
    const cJSON *length = cJSON_GetArrayItem(shape, 0), *axis = cJSON_GetArrayItem(expected, 0);
    for (; length && axis; length = length->next, axis = axis->next)  // of any number of rows
        if (axis != expected->child && cJSON_IsNumber(axis) && axis->valuedouble != length->valuedouble) break;
    if (length || axis || !tensor.rank)
        FAIL("Input '%s' has the shape %s, where %s is expected.", name, print_shape(shape, (char[256]){""}),
             print_shape(expected, (char[256]){""}));
    if (get(input, "low")) check_range(&tensor, input);
    return tensor;
}

// Finds all inputs, and returns the number of their rows.
static uint32_t find_inputs(const File *data, const cJSON *inputs, Tensor *tensors) {
    int64_t rows = -1;
    const cJSON *input;
    cJSON_ArrayForEach(input, inputs) {
        *tensors = find_input(data, input);
        if (rows >= 0 && tensors->shape[0] != rows)
            FAIL("The inputs have different numbers of rows: '%s' has %" PRId64 ", '%s' has %" PRId64 ".",
                 text(input->prev, "name"), rows, text(input, "name"), tensors->shape[0]);
        rows = tensors++->shape[0];
    }
    return rows;
}

// Draws the order of the rows of an epoch, which is the same in every language.
static inline void shuffle(uint32_t *rows, uint32_t count, uint32_t s) {
    for (uint32_t i = 0; i < count; i++) rows[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t z = s += 0x9E3779B9;
        z = (z ^ z >> 16) * 0x21F0AAAD;
        z = (z ^ z >> 15) * 0x735A2D97;
        uint32_t j = (z ^ z >> 15) % (i + 1), row = rows[i];
        rows[i] = rows[j];
        rows[j] = row;
    }
}

static inline Tensor make_batch(Tensor tensor, uint32_t rows) {  // of the shape of a tensor, but for the number of rows
    tensor.size = tensor.size / tensor.shape[0] * rows;
    tensor.shape[0] = rows;
    tensor.data = malloc(tensor.size);
    return tensor;
}

static inline void take_rows(const Tensor *batch, const Tensor *tensor, const uint32_t *rows) {
    size_t size = batch->size / batch->shape[0];
    for (int64_t i = 0; i < batch->shape[0]; i++) memcpy(batch->data + i * size, tensor->data + rows[i] * size, size);
}

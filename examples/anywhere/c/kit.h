// A training kit: its manifest, and its state, which a training replaces.
#pragma once
#include "safetensors.h"
#include <zlib.h>

static int is_file(const cJSON *step) { return *text(step, "file") && !strpbrk(text(step, "file"), "/\\"); }

static int has_size(const cJSON *step) {
    return cJSON_IsNull(get(step, "batch_size")) || number(step, "batch_size") >= 1;
}

static int is_tensor(const cJSON *item) {
    return cJSON_IsString(get(item, "name")) && cJSON_IsString(get(item, "dtype")) && cJSON_IsArray(get(item, "shape"));
}

static File read_manifest(void) {
    File kit = read_file("kit.json", "is no manifest of a training kit.", 0);
    double version = number(kit.json, "version");
    if (strcmp(text(kit.json, "format"), "ortpartial.kit") || !(version >= 1)) refuse(&kit);
    if (version > 1)
        FAIL("kit.json is of version %g, and this runner reads version 1: take the runner that was exported with the "
             "kit.", version);
    const cJSON *steps = get(kit.json, "steps"), *tensors = get(get(kit.json, "state"), "tensors"), *item;
    const cJSON *lists[] = {get(kit.json, "inputs"), get(kit.json, "outputs"), tensors};
    double rows = number(kit.json, "batch_size");
    int sound = rows >= 1 && rows <= UINT32_MAX && cJSON_GetArraySize(steps);
    cJSON_ArrayForEach(item, steps) sound &= is_file(item) && has_size(item);
    for (int i = 0; i < 3; i++) {
        sound &= cJSON_GetArraySize(lists[i]) > 0;
        cJSON_ArrayForEach(item, lists[i]) sound &= is_tensor(item);
    }
    if (!sound) refuse(&kit);
    return kit;
}

// The file of the step for batches of so many rows.
static inline const char *find_step(const cJSON *kit, double rows) {
    const cJSON *steps = get(kit, "steps"), *step;
    cJSON_ArrayForEach(step, steps)
        if (cJSON_IsNull(get(step, "batch_size")) || number(step, "batch_size") == rows) return text(step, "file");
    fputs("The kit has steps for batches of ", stderr);
    cJSON_ArrayForEach(step, steps)
        fprintf(stderr, "%s%.0f", step == steps->child ? "" : " or ", number(step, "batch_size"));
    FAIL(" rows, not of %.0f.", rows);
}

// The digits after a key in the header of a state.
static char *find_digits(const File *state, const char *key) {
    char *at = strstr(state->bytes + 8, key);
    if (!at || at > state->data) refuse(state);
    return at + strlen(key);
}

// Writes the checksum of a state, in which its own digits count as 0. Returns whether it stood there before.
static int sign(const File *state) {
    char *digits = find_digits(state, "\"crc32\":\""), former[8];
    memcpy(former, digits, 8);
    memcpy(digits, "00000000", 8);
    digits[sprintf(digits, "%08lx", crc32_z(0, (Bytef *)state->bytes, state->size))] = '"';
    return !memcmp(former, digits, 8);
}

static File read_state(uint64_t *steps) {
    File state = read_file("state.safetensors", "is damaged: restore a copy of it, or export the kit again.", 8);
    if (!sign(&state)) refuse(&state);
    const char *digits = find_digits(&state, "\"steps\":\"");
    if (strspn(digits, "0123456789") != 12) refuse(&state);
    *steps = strtoull(digits, NULL, 10);
    return state;
}

// Finds the tensors of a state, which are those of the manifest.
static void find_state(const File *state, const cJSON *described, Tensor *tensors) {
    const cJSON *tensor;
    cJSON_ArrayForEach(tensor, described) {
        const cJSON *entry = get(state->json, text(tensor, "name"));
        int fits = cJSON_Compare(get(entry, "shape"), get(tensor, "shape"), 1);
        if (fits) *tensors = find_tensor(state, entry->string);
        if (!fits || strcmp(dtypes[tensors++->type].name, text(tensor, "dtype")))
            FAIL("%s is the state of another kit: its tensors are not those of kit.json.", state->name);
    }
}

// Writes a state whose numbers have changed.
static inline void save_state(const File *state, uint64_t steps) {
    char *digits = find_digits(state, "\"steps\":\"");
    digits[sprintf(digits, "%012" PRIu64, steps)] = '"';
    sign(state);
    replace_file(state->name, state->bytes, state->size);
}

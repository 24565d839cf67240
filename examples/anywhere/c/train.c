// Trains a training kit on ONNX Runtime: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]
#include "kit.h"
#include "rows.h"
#include "session.h"
#include <math.h>

#define USAGE "Usage: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]"

static uint32_t read_number(const char *argument, uint32_t least) {
    unsigned long long number = strtoull(argument, NULL, 10);
    if (!*argument || argument[strspn(argument, "0123456789")] || number < least || number > UINT32_MAX) FAIL(USAGE);
    return number;
}

// Runs a step and returns its loss. Its results are the outputs, the loss first, and then the next state.
static float take_step(Session *session, size_t n_outputs, size_t n_tensors) {
    OrtValue **results = session->outputs.values, **state = session->inputs.values + session->inputs.count - n_tensors;
    run(session);
    float loss = *(float *)numbers_of(results[0]);
    for (size_t i = 0; i < n_outputs; i++) ort->ReleaseValue(results[i]);
    for (size_t i = 0; i < n_tensors; i++) {
        ort->ReleaseValue(state[i]);
        state[i] = results[n_outputs + i];
    }
    memset(results, 0, session->outputs.count * sizeof *results);
    return loss;
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 6) FAIL(USAGE);
    uint32_t steps = argc > 3 ? read_number(argv[3], 0) : 100, size = argc > 4 ? read_number(argv[4], 1) : 0;
    uint32_t seed = argc > 5 ? read_number(argv[5], 0) : 0;
    uint64_t k, epoch = UINT64_MAX;
    File data = read_file(argv[2], "is no safetensors file, or a damaged one.", 8);
    if (chdir(argv[1])) FAIL("There is no kit %s.", argv[1]);
    File kit = read_manifest(), state = read_state(&k);
    if (!size) size = number(kit.json, "batch_size");

    const cJSON *inputs = get(kit.json, "inputs"), *described = get(get(kit.json, "state"), "tensors");
    size_t n_inputs = cJSON_GetArraySize(inputs), n_outputs = cJSON_GetArraySize(get(kit.json, "outputs"));
    size_t n_tensors = cJSON_GetArraySize(described);
    Tensor sources[n_inputs], batch[n_inputs], tensors[n_tensors];
    find_state(&state, described, tensors);
    Session session = open_session(find_step(kit.json, size), NULL);
    int fits = session.inputs.count == n_inputs + n_tensors && session.outputs.count == n_outputs + n_tensors;
    for (size_t i = 0; fits && i < session.inputs.count; i++) {
        const cJSON *tensor = i < n_inputs ? cJSON_GetArrayItem(inputs, i) :
                                             cJSON_GetArrayItem(described, i - n_inputs);
        fits = !strcmp(session.inputs.names[i], text(tensor, "name"));
    }
    if (!fits)
        FAIL("%s is damaged: its inputs and outputs are not those of kit.json.", find_step(kit.json, size));

    uint32_t rows = find_inputs(&data, inputs, sources), batches = rows / size, *order = malloc(rows * sizeof *order);
    if (rows < size) FAIL("The data have %u rows, fewer than a batch of %u.", rows, size);
    for (size_t i = 0; i < n_inputs; i++) {
        batch[i] = make_batch(sources[i], size);
        bind(&session, i, &batch[i]);
    }
    for (size_t i = 0; i < n_tensors; i++) bind(&session, n_inputs + i, &tensors[i]);

    for (uint64_t end = k + steps; k < end; k++) {
        if (k / batches != epoch) shuffle(order, rows, seed ^ (uint32_t)(epoch = k / batches) * 0x85EBCA6B);
        for (size_t i = 0; i < n_inputs; i++) take_rows(&batch[i], &sources[i], order + k % batches * size);
        float loss = take_step(&session, n_outputs, n_tensors);
        if (!isfinite(loss))
            FAIL("The loss of step %" PRIu64 " is not finite: the kit needs a smaller step size, or the data hold "
                 "numbers that are none.", k + 1);
        if ((k + 1) % 10 == 0 || k + 1 == end) printf("step %" PRIu64 ": loss %.7g\n", k + 1, loss);
    }
    for (size_t i = 0; i < n_tensors; i++)
        memmove(tensors[i].data, numbers_of(session.inputs.values[n_inputs + i]), tensors[i].size);
    save_state(&state, k);

    close_session(&session);
    for (size_t i = 0; i < n_inputs; i++) free(batch[i].data);
    free(order);
    close_file(&data), close_file(&kit), close_file(&state);
}

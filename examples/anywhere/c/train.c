// Trains a training kit on ONNX Runtime: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]
#include "kit.h"
#include "rows.h"
#include <math.h>
#include <onnxruntime_c_api.h>
#include <unistd.h>

#define USAGE "Usage: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]"
static const OrtApi *ort;
static const char *step;

static void check(OrtStatus *status) {
    if (!status) return;
    FAIL("onnxruntime %s cannot run %s: %s", OrtGetApiBase()->GetVersionString(), step, ort->GetErrorMessage(status));
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 6) FAIL(USAGE);
    uint64_t k, epoch = UINT64_MAX;
    File data = read_file(argv[2], "is no safetensors file, or a damaged one.", 8);
    if (chdir(argv[1])) FAIL("There is no kit %s.", argv[1]);
    File kit = read_manifest(), state = read_state(&k);
    uint32_t numbers[] = {100, number(kit.json, "batch_size"), 0};
    for (int i = 3; i < argc; i++) {
        unsigned long long value = strtoull(argv[i], NULL, 10);
        if (argv[i][strspn(argv[i], "0123456789")] || value > UINT32_MAX || (i == 4 && !value)) FAIL(USAGE);
        numbers[i - 3] = value;
    }
    uint32_t steps = numbers[0], size = numbers[1], seed = numbers[2];
    step = find_step(kit.json, size);

    OrtEnv *env;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtMemoryInfo *memory;
    OrtAllocator *allocator;
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!ort) FAIL("onnxruntime is older than its header.");
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "train", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->CreateSession(env, step, options, &session));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    check(ort->GetAllocatorWithDefaultOptions(&allocator));

    // A step reads a batch of the inputs, then the state; it returns the outputs, the loss first, then the next state.
    const cJSON *inputs = get(kit.json, "inputs"), *described = get(get(kit.json, "state"), "tensors");
    size_t n_inputs = cJSON_GetArraySize(inputs), n_outputs = cJSON_GetArraySize(get(kit.json, "outputs"));
    size_t n_feeds = n_inputs + cJSON_GetArraySize(described), n_fetches = n_feeds - n_inputs + n_outputs;
    Tensor tensors[n_feeds], batch[n_feeds];
    OrtValue *feeds[n_feeds], *fetches[n_fetches];
    char *feed_names[n_feeds], *fetch_names[n_fetches];
    uint32_t rows = find_inputs(&data, inputs, tensors), batches = rows / size, *order = malloc(rows * sizeof *order);
    if (rows < size) FAIL("The data have %u rows, fewer than a batch of %u.", rows, size);
    find_state(&state, described, tensors + n_inputs);
    for (size_t i = 0; i < n_feeds; i++) {
        batch[i] = i < n_inputs ? make_batch(tensors[i], size) : tensors[i];
        check(ort->SessionGetInputName(session, i, allocator, &feed_names[i]));
        check(ort->CreateTensorWithDataAsOrtValue(memory, batch[i].data, batch[i].size, batch[i].shape, batch[i].rank,
                                                  batch[i].type, &feeds[i]));
    }
    for (size_t i = 0; i < n_fetches; i++) check(ort->SessionGetOutputName(session, i, allocator, &fetch_names[i]));

    for (uint64_t end = k + steps; k < end; k++) {
        if (k / batches != epoch) shuffle(order, rows, seed ^ (uint32_t)(epoch = k / batches) * 0x85EBCA6B);
        for (size_t i = 0; i < n_inputs; i++) take_rows(&batch[i], &tensors[i], order + k % batches * size);
        memset(fetches, 0, sizeof fetches);
        check(ort->Run(session, NULL, (const char **)feed_names, (const OrtValue **)feeds, n_feeds,
                       (const char **)fetch_names, n_fetches, fetches));
        float *loss;
        check(ort->GetTensorMutableData(fetches[0], (void **)&loss));
        if (!isfinite(*loss))
            FAIL("The loss of step %" PRIu64 " is not finite: the kit needs a smaller step size, or the data hold "
                 "numbers that are none.", k + 1);
        if ((k + 1) % 10 == 0 || k + 1 == end) printf("step %" PRIu64 ": loss %.7g\n", k + 1, *loss);
        for (size_t i = 0; i < n_outputs; i++) ort->ReleaseValue(fetches[i]);
        for (size_t i = n_inputs; i < n_feeds; i++) {
            ort->ReleaseValue(feeds[i]);
            feeds[i] = fetches[i - n_inputs + n_outputs];
        }
    }
    for (size_t i = n_inputs; i < n_feeds; i++) {
        void *numbers;
        check(ort->GetTensorMutableData(feeds[i], &numbers));
        memmove(tensors[i].data, numbers, tensors[i].size);
    }
    save_state(&state, k);

    for (size_t i = 0; i < n_feeds; i++) ort->ReleaseValue(feeds[i]), allocator->Free(allocator, feed_names[i]);
    for (size_t i = 0; i < n_fetches; i++) allocator->Free(allocator, fetch_names[i]);
    for (size_t i = 0; i < n_inputs; i++) free(batch[i].data);
    free(order);
    close_file(&data), close_file(&kit), close_file(&state);
    ort->ReleaseMemoryInfo(memory);
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(env);
}

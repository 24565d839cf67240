// A session of onnxruntime, with the tensors that it reads and those that it returns.
#pragma once
#include "safetensors.h"
#include <onnxruntime_c_api.h>

typedef struct { size_t count; char **names; OrtValue **values; } Bindings;
typedef struct { OrtEnv *env; OrtSession *session; OrtMemoryInfo *memory; Bindings inputs, outputs; } Session;

static const OrtApi *ort;
static OrtAllocator *allocator;
static const char *model;

static void check(OrtStatus *status) {
    if (!status) return;
    FAIL("onnxruntime %s cannot run %s: %s", OrtGetApiBase()->GetVersionString(), model, ort->GetErrorMessage(status));
}

static Bindings make_bindings(size_t count) {
    return (Bindings){count, calloc(count, sizeof(char *)), calloc(count, sizeof(OrtValue *))};
}

// Opens a graph: its file, or the bytes of one.
static Session open_session(const char *file, const File *bytes) {
    Session s;
    size_t inputs, outputs;
    OrtSessionOptions *options;
    model = file;
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!ort) FAIL("onnxruntime is older than its header.");
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "train", &s.env));
    check(ort->CreateSessionOptions(&options));
    check(bytes ? ort->CreateSessionFromArray(s.env, bytes->bytes, bytes->size, options, &s.session) :
                  ort->CreateSession(s.env, file, options, &s.session));
    ort->ReleaseSessionOptions(options);
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &s.memory));
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    check(ort->SessionGetInputCount(s.session, &inputs));
    check(ort->SessionGetOutputCount(s.session, &outputs));
    s.inputs = make_bindings(inputs);
    s.outputs = make_bindings(outputs);
    for (size_t i = 0; i < inputs; i++) check(ort->SessionGetInputName(s.session, i, allocator, &s.inputs.names[i]));
    for (size_t i = 0; i < outputs; i++) check(ort->SessionGetOutputName(s.session, i, allocator, &s.outputs.names[i]));
    return s;
}

// Makes a tensor an input: onnxruntime reads its memory.
static void bind(Session *s, size_t input, const Tensor *t) {
    check(ort->CreateTensorWithDataAsOrtValue(s->memory, t->data, t->size, t->shape, t->rank, t->type,
                                              &s->inputs.values[input]));
}

static void *numbers_of(OrtValue *value) {
    void *numbers;
    check(ort->GetTensorMutableData(value, &numbers));
    return numbers;
}

static void run(Session *s) {
    const OrtValue *const *inputs = (const OrtValue *const *)s->inputs.values;
    check(ort->Run(s->session, NULL, (const char *const *)s->inputs.names, inputs, s->inputs.count,
                   (const char *const *)s->outputs.names, s->outputs.count, s->outputs.values));
}

static void release_bindings(Bindings *bindings) {
    for (size_t i = 0; i < bindings->count; i++) {
        ort->ReleaseValue(bindings->values[i]);
        check(ort->AllocatorFree(allocator, bindings->names[i]));
    }
    free(bindings->names);
    free(bindings->values);
}

static void close_session(Session *s) {
    release_bindings(&s->inputs);
    release_bindings(&s->outputs);
    ort->ReleaseMemoryInfo(s->memory);
    ort->ReleaseSession(s->session);
    ort->ReleaseEnv(s->env);
}

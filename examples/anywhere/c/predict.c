// Runs the model of a training kit on ONNX Runtime: predict KIT DATA PREDICTIONS [MODEL]
#include "model.h"
#include "rows.h"

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5) FAIL("Usage: predict KIT DATA PREDICTIONS [MODEL]");
    uint64_t steps;
    char *folder = getcwd(NULL, 0);
    File data = read_file(argv[2], "is no safetensors file, or a damaged one.", 8);
    if (chdir(argv[1])) FAIL("There is no kit %s.", argv[1]);
    File kit = read_manifest(), state = read_state(&steps);
    const cJSON *described = get(get(kit.json, "state"), "tensors");
    Tensor tensors[cJSON_GetArraySize(described)];
    find_state(&state, described, tensors);
    File file = read_model(kit.json, tensors);
    if (!folder || chdir(folder)) FAIL("The working directory is no more.");

    Session session = open_session(file.name, &file);
    cJSON *inputs = list_inputs(kit.json, &session.inputs);
    Tensor rows[session.inputs.count];
    find_inputs(&data, inputs, rows);
    for (size_t i = 0; i < session.inputs.count; i++) bind(&session, i, &rows[i]);
    run(&session);
    write_outputs(argv[3], &session.outputs);
    if (argc > 4) replace_file(argv[4], file.bytes, file.size);

    close_session(&session);
    cJSON_Delete(inputs), free(folder);
    close_file(&data), close_file(&kit), close_file(&state), close_file(&file);
}

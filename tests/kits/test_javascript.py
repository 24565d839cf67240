"""Training kits in JavaScript: in Node, by onnxruntime-node, and by onnxruntime-web, as on a page."""

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from forgeries import forge_header, forge_json
from kits import (
    PAIRS,
    assert_predicts_as_in_python,
    assert_state_close,
    assert_trained_as_in_python,
    make_data,
    write_kit_and_data,
    write_kit_of_two_inputs,
)
from models import mlp

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingKit, build, op, variable, write_kit
from ortpartial.kits.manifest import Manifest, Tensor
from ortpartial.kits.state_file import pack_state
from ortpartial.learning import LearningRateAdagrad, LearningRateAdam, LearningRateSGDNesterov
from ortpartial.model import write_tensors

ROOT = Path(__file__).parents[2]
JAVASCRIPT, NODE = ROOT / "examples" / "anywhere" / "javascript", ROOT / "tests" / "kits" / "node"
#: Where the package of each runtime is installed, and how near to Python's its weights are.
RUNTIMES = {"onnxruntime-node": (JAVASCRIPT, 1e-5), "onnxruntime-web": (NODE, 1e-4)}


def missing() -> str | None:
    """Why this machine cannot train kits in JavaScript, or should not, or None."""
    if int(onnxruntime.__version__.split(".")[1]) < 30:
        return f"runs beside onnxruntime 1.30.0 or later, as in JavaScript, and this is {onnxruntime.__version__}"
    node = shutil.which("node")
    if node is None:
        return "needs Node 20 or later, and there is no `node`"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 20:
        return f"needs Node 20 or later, found {version}"
    absent = [name for name, (folder, _) in RUNTIMES.items() if not (folder / "node_modules" / name).is_dir()]
    return f"needs {' and '.join(absent)} 1.30.0, which `make node` installs" if absent else None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def start(kit: Path, *arguments: object, program: Path = JAVASCRIPT / "train.mjs", **settings):
    """Run a program for Node."""
    command = ["node", program, kit, kit / "data.safetensors", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def train(runtime: str, *requests: dict) -> list[dict]:
    """Train kits by the modules of the runner, all in one process."""
    text = json.dumps(requests, default=str)
    done = subprocess.run(["node", NODE / "try_kits.mjs", RUNTIMES[runtime][0], runtime], input=text,
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def copy(kit: TrainingKit, folder: Path) -> Path:
    return Path(shutil.copytree(kit.folder, folder))


@pytest.mark.parametrize(("model", "rate"), PAIRS)
def test_a_kit_trains_in_node_as_in_python(model, rate, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", model, rate, targets="node")
    whole, parts = (copy(kit, tmp_path / n) for n in ("whole", "parts"))
    (whole / "node_modules").symlink_to(JAVASCRIPT / "node_modules")
    done = start(whole, program=whole / "train.mjs")
    assert (done.returncode, done.stderr) == (0, "")
    for _ in range(2):
        assert start(parts, 50).returncode == 0
    assert (parts / "state.safetensors").read_bytes() == (whole / "state.safetensors").read_bytes()
    assert_trained_as_in_python(kit, whole, done.stdout)
    done = start(whole, tmp_path / "predictions", tmp_path / "trained.onnx", program=whole / "predict.mjs")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_predicts_as_in_python(whole, tmp_path / "predictions", tmp_path / "trained.onnx")


def test_a_model_reads_what_no_step_does_and_has_several_outputs(tmp_path, rng):
    kit, program = write_kit_of_two_inputs(tmp_path / "kit", rng), JAVASCRIPT / "predict.mjs"
    assert start(kit, tmp_path / "predictions", tmp_path / "trained.onnx", program=program).returncode == 0
    assert_predicts_as_in_python(kit, tmp_path / "predictions", tmp_path / "trained.onnx")
    write_tensors({"x": np.ones((7, 3), np.float32)}, kit / "data.safetensors")
    for arguments, sentence in (((), "Usage: node predict.mjs KIT DATA PREDICTIONS [MODEL]\n"),
                                ((tmp_path / "p",), "The data lack the input 'z'.\n")):
        done = start(kit, *arguments, program=program)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence)
    assert not (tmp_path / "p").exists()


# A process of onnxruntime-web takes a second to start.
@pytest.mark.parametrize("runtime", ["onnxruntime-node", pytest.param("onnxruntime-web", marks=pytest.mark.slow)])
def test_predictions_follow_the_weights(runtime, tmp_path):
    kit, tolerance = write_kit_and_data(tmp_path / "kit", "mlp", "adam"), RUNTIMES[runtime][1]
    request = {"kit": kit.folder, "data": kit.folder / "data.safetensors", "steps": 2, "predict": True}
    [result] = train(runtime, request)
    for outputs in result["predictions"]:
        expected = kit.predict(request["data"])["y"]
        np.testing.assert_allclose(np.reshape(outputs, expected.shape), expected, rtol=tolerance, atol=tolerance)
        kit.train(request["data"], 1)
    assert kit.steps_taken == 3


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_batches_of_several_sizes(runtime, tmp_path):
    kits = [write_kit_and_data(tmp_path / n, "cnn", "adam", **settings)
            for n, settings in {"any": {}, "some": {"batch_sizes": (16, 32)}}.items()]
    cases = [(kit, size, seed) for kit, sizes in zip(kits, ((7, 16), (16, 32)), strict=True)
             for seed, size in enumerate(sizes, 2**32 - 2)]
    requests = [{"kit": kit.folder, "data": kit.folder / "data.safetensors", "steps": 10, "batchSize": size,
                 "seed": seed, "save": copy(kit, tmp_path / f"saved{i}")} for i, (kit, size, seed) in enumerate(cases)]
    for (kit, size, seed), request, result in zip(cases, requests, train(runtime, *requests), strict=True):
        trained = TrainingKit(kit.folder)
        np.testing.assert_allclose(result["losses"], trained.train(request["data"], 10, batch_size=size, seed=seed),
                                   rtol=1e-4)
        saved = TrainingKit(request["save"])
        assert saved.steps_taken == result["stepsTaken"] == 10
        assert_state_close(saved, trained.state, RUNTIMES[runtime][1])


SGD, ADAM, ADAGRAD = LearningRateSGDNesterov(0.05), LearningRateAdam(0.005, epsilon_hat=True), LearningRateAdagrad(0.05)


@pytest.mark.parametrize("cases", [
    [(SGD, "lowered"), (ADAM, "standard")],
    pytest.param([(SGD, "standard"), (ADAM, "lowered"), (ADAGRAD, "standard"), (ADAGRAD, "lowered")],
                 marks=pytest.mark.slow)], ids=["sampled", "others"])
def test_exported_trainings_in_onnxruntime_web(cases, tmp_path):
    data = tmp_path / "data.safetensors"
    write_tensors(make_data("mlp"), data)
    kits = []
    for i, (rate, style) in enumerate(cases):
        optimizer = OrtGradientForwardBackwardOptimizer(
            mlp(64, 10, hidden=20), learning_loss="softmax_cross_entropy", learning_rate=rate)
        write_kit(optimizer.get_training_onnx(style), tmp_path / str(i), targets=())
        kits.append(TrainingKit(tmp_path / str(i)))
    requests = [{"kit": kit.folder, "data": data, "steps": 80, "save": kit.folder} for kit in kits]
    for kit, result in zip(kits, train("onnxruntime-web", *requests), strict=True):
        np.testing.assert_allclose(kit.train(data, 80), result["losses"], rtol=1e-3)
        assert_state_close(TrainingKit(kit.folder), kit.state, 1e-4)
        assert np.mean(result["losses"][-10:]) < 0.5 * result["losses"][0]


DAMAGED = "state.safetensors is damaged: restore a copy of it, or export the kit again."
NO_MANIFEST = "kit.json is no manifest of a training kit."
NO_DATA = "data.safetensors is no safetensors file, or a damaged one."

#: What is wrong with a file, and the sentence that says so, or its beginning.
FILES = [
    ("kit.json", lambda b: b.replace(b'"version": 1', b'"version": 2'), "kit.json is of version 2, and this runner "
     "reads version 1: take the runner that was exported with the kit."),
    ("kit.json", lambda b: b[:200], NO_MANIFEST),
    ("kit.json", lambda b: b"null", NO_MANIFEST),
    ("kit.json", lambda b: b.replace(b'"version": 1', b'"version": "1"'), NO_MANIFEST),
    ("kit.json", lambda b: b.replace(b'"steps"', b'"stops"'), NO_MANIFEST),
    ("kit.json", lambda b: b.replace(b"ortpartial.kit", b"other.kit"), NO_MANIFEST),
    ("kit.json", lambda b: b.replace(b'"batch_size": 32', b'"batch_size": -1'), NO_MANIFEST),
    ("kit.json", lambda b: b.replace(b"step.onnx", b"../step.onnx"), NO_MANIFEST),
    ("step.onnx", lambda b: b.replace(b"y_target", b"z_target"),
     "step.onnx is damaged: its inputs and outputs are not those of kit.json."),
    ("kit.json", lambda b: b.replace(b"[64, 10]", b"[10, 64]"),
     "state.safetensors is the state of another kit: its tensors are not those of kit.json."),
    ("state.safetensors", lambda b: b[:-5] + bytes([b[-5] ^ 1]) + b[-4:], DAMAGED),
    ("state.safetensors", lambda b: b[:100], DAMAGED),
    ("state.safetensors", lambda b: b"", DAMAGED),
    ("state.safetensors", lambda b: b + b" ", DAMAGED),
    ("state.safetensors", lambda b: b.replace(b'"steps":"0', b'"steps":"7'), DAMAGED),
    ("state.safetensors", lambda b: b.replace(b"crc32", b"crc64"), DAMAGED),
    ("step.onnx", lambda b: b[:100], "onnxruntime 1.30.0 cannot run step.onnx: "),
    ("step.onnx", lambda b: b.replace(b"Gemm", b"Germ"), "onnxruntime 1.30.0 cannot run step.onnx: "),
    ("data.safetensors", lambda b: b[:-1], NO_DATA),
    ("data.safetensors", lambda b: b[:7], NO_DATA),
    ("data.safetensors", lambda b: b"not a file of tensors", NO_DATA),
]

#: What is wrong with the data, and the sentence that says so.
DATA = [
    (lambda x, y: {"x": x}, "The data lack the input 'y_target'."),
    (lambda x, y: {"x": x[:10], "y_target": y[:10]}, "The data have 10 rows, fewer than a batch of 32."),
    (lambda x, y: {"x": x[:20], "y_target": y},
     "The inputs have different numbers of rows: 'x' has 20, 'y_target' has 300."),
    (lambda x, y: {"x": x[:, :63], "y_target": y}, "Input 'x' has the shape [300, 63], where [N, 64] is expected."),
    (lambda x, y: {"x": x[:, :, None], "y_target": y},
     "Input 'x' has the shape [300, 64, 1], where [N, 64] is expected."),
    (lambda x, y: {"x": x.astype(np.float64), "y_target": y}, "Input 'x' is float64, where float32 is expected."),
    (lambda x, y: {"x": x, "y_target": y + 3},
     "Input 'y_target' has values from 3 to 12, where 0 to 9 are expected, or -100 for what does not count."),
    (lambda x, y: {"x": np.full_like(x, np.nan), "y_target": y}, "The loss of step 1 is not finite: the kit needs a "
     "smaller step size, or the data hold numbers that are none."),
]


# A process of onnxruntime-web takes a second to start, and the modules of the runner are the same.
@pytest.mark.parametrize("runtime", ["onnxruntime-node", pytest.param("onnxruntime-web", marks=pytest.mark.slow)])
def test_what_does_not_fit_is_one_sentence(runtime, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    fixed = write_kit_and_data(tmp_path / "fixed", "linear", "sgd", batch_sizes=(16, 32))
    folders = [copy(kit, tmp_path / str(i)) for i in range(len(FILES) + len(DATA) + 1)]
    for folder, (file, change, _) in zip(folders, FILES, strict=False):
        (folder / file).write_bytes(change((folder / file).read_bytes()))
    for folder, (change, _) in zip(folders[len(FILES):], DATA, strict=False):
        write_tensors(change(*make_data("linear").values()), folder / "data.safetensors")
    counts = folders[-1] / "kit.json"
    counts.write_bytes(counts.read_bytes().replace(b'9, "ignored": -100', b"8"))
    requests = [{"kit": folder, "data": folder / "data.safetensors"} for folder in (*folders, fixed.folder, kit.folder)]
    requests[-2]["batchSize"], requests[-1]["load"] = 20, kit.folder / "step.onnx"
    expected = [*(case[-1] for case in (*FILES, *DATA)),
                "Input 'y_target' has values from 0 to 9, where 0 to 8 are expected.",
                "The kit has steps for batches of 16 or 32 rows, not of 20.",
                "This is no model of the kit: it differs in more than its weights."]
    for sentence, result in zip(expected, train(runtime, *requests), strict=True):
        error = result.get("error", "")
        assert error == sentence or (sentence.endswith(": ") and error.startswith(sentence)), (sentence, result)


def test_labels_that_do_not_count(tmp_path):
    kit, data = write_kit_and_data(tmp_path / "kit", "linear", "sgd"), make_data("linear")
    data["y_target"][::2] = -100
    write_tensors(data, kit.folder / "data.safetensors")
    assert start(kit.folder, 10).returncode == 0
    kit.train(data, 10)
    assert_state_close(TrainingKit(kit.folder), kit.state, 1e-5)


@pytest.mark.parametrize(("arguments", "message"), [
    ((10, 301), "The data have 300 rows, fewer than a batch of 301."),
    ((10, 0), "Usage: node train.mjs KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]"),
    ((-1,), "Usage: node train.mjs"), ((10, 32, 2**32), "Usage: node train.mjs"), (("ten",), "Usage: node train.mjs"),
])
def test_the_program_says_what_is_wrong(arguments, message, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    before = {path.name: path.read_bytes() for path in kit.folder.iterdir()}
    done = start(kit.folder, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in kit.folder.iterdir()} == before


def test_an_interrupted_save_leaves_the_former_state(tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    before = (kit.folder / "state.safetensors").read_bytes()

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = start(kit.folder, 20, preexec_fn=limit_files)
    assert done.returncode != 0
    assert "step 20: loss" in done.stdout
    assert (kit.folder / "state.safetensors").read_bytes() == before
    assert start(kit.folder, 20).returncode == 0
    assert TrainingKit(kit.folder).steps_taken == 20


def test_a_training_that_is_to_stop_does(tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    request = {"kit": kit.folder, "data": kit.folder / "data.safetensors", "steps": 20, "save": kit.folder}
    stopped, resumed = train("onnxruntime-node", {**request, "until": 7}, {**request, "steps": 13})
    assert (stopped["stepsTaken"], resumed["stepsTaken"]) == (7, 20)
    losses = kit.train(request["data"], 20)
    np.testing.assert_allclose(stopped["losses"] + resumed["losses"], losses, rtol=1e-5)


def test_a_model_goes_from_python_to_javascript_and_back(tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "cnn", "adam")
    first, data = copy(kit, tmp_path / "first"), kit.folder / "data.safetensors"
    kit.train(data, 5)
    onnx.save(kit.model(), tmp_path / "trained.onnx")
    [result] = train("onnxruntime-node", {"kit": first, "data": data, "steps": 0, "load": tmp_path / "trained.onnx",
                                          "save": first})
    assert result == {"losses": [], "stepsTaken": 0}
    assert (first / "model.onnx").read_bytes() == (tmp_path / "trained.onnx").read_bytes()
    loaded, untouched = TrainingKit(first).state, TrainingKit(kit.folder).state
    for name, a in loaded.items():
        expected = kit.state if name in kit.manifest.weights else untouched
        np.testing.assert_array_equal(a, expected[name], err_msg=name)


@pytest.mark.parametrize("n", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_forged_files_end_in_one_sentence_of_one_class(n, tmp_path):
    """A file with another entry in its JSON is read as it should be, or is refused: no bare TypeError, no gigabytes."""
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    forgeries = {"kit.json": forge_json, "state.safetensors": forge_header, "data.safetensors": forge_header}
    requests = []
    for seed in range(n):
        for file, forge in forgeries.items():
            folder = tmp_path / f"{seed}-{file}"
            shutil.copytree(kit.folder, folder, copy_function=os.link)
            (folder / file).unlink()
            shutil.copy(kit.folder / file, folder / file)
            forge(folder / file, np.random.default_rng(seed))
            requests.append({"kit": folder, "data": folder / "data.safetensors", "steps": 1, "predict": True})
    results = train("onnxruntime-node", *requests)
    refused = [result for result in results if "error" in result]
    unclear = [(request["kit"].name, result) for request, result in zip(requests, results, strict=True)
               if "error" in result and (result["kind"] != "KitError" or len(result["error"]) > 1000
                                         or not result["error"].isprintable())]
    assert unclear == []
    assert len(refused) > n
    assert max(result["memory"] for result in refused) < 500


def write_kit_of_dtypes(folder: Path, dtypes: list[np.dtype]) -> Path:
    """A kit by hand, whose step returns a mean and hands on a tensor of each dtype."""
    x, state = variable("x", "float32", ["N"]), {f"{d.name}_": np.array([[0, 1, 1]]).astype(d) for d in dtypes}
    before = {n: variable(n, a.dtype, a.shape) for n, a in state.items()}
    outputs = {"loss": op.ReduceMean(x, keepdims=0), **{f"{n}next": op.Identity(v) for n, v in before.items()}}
    proto = build({"x": x, **before}, outputs)
    manifest = Manifest(2, {None: "step.onnx"}, (Tensor("x", "float32", ("N",)),), (Tensor("loss", "float32", ()),),
                        tuple(Tensor(n, a.dtype.name, a.shape) for n, a in state.items()), {})
    for name, data in {"step.onnx": proto.SerializeToString(), "kit.json": manifest.to_json().encode(),
                       "model.onnx": b"", "state.safetensors": pack_state(state, 0)}.items():
        (folder / name).write_bytes(data)
    write_tensors({"x": np.ones(4, np.float32)}, folder / "data.safetensors")
    return folder


@pytest.mark.parametrize("runtime", ["onnxruntime-node", pytest.param("onnxruntime-web", marks=pytest.mark.slow)])
def test_state_of_every_dtype(runtime, tmp_path):
    names = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8",
             "bool"]
    folder = write_kit_of_dtypes(tmp_path, [np.dtype(n) for n in names])
    state = TrainingKit(folder).state
    request = {"kit": folder, "data": folder / "data.safetensors", "steps": 3, "save": folder}
    assert train(runtime, request) == [{"losses": [1, 1, 1], "stepsTaken": 3}]
    after = TrainingKit(folder)
    assert after.steps_taken == 3
    for name, a in state.items():
        np.testing.assert_array_equal(after.state[name], a)
    write_kit_of_dtypes(folder, [np.dtype(ml_dtypes.bfloat16)])
    [result] = train(runtime, request)
    assert result["error"].startswith("onnxruntime 1.30.0 cannot run step.onnx: ")

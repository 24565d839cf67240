"""Training kits in C and C++, by the library of the onnxruntime that this Python has."""

import json
import resource
import shutil
import subprocess
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from kits import (
    PAIRS,
    assert_predicts_as_in_python,
    assert_state_close,
    assert_trained_as_in_python,
    make_data,
    write_kit_and_data,
    write_kit_of_two_inputs,
)
from paths import ROOT

from ortpartial import TrainingKit, build, op, variable
from ortpartial.kits.manifest import Manifest, Tensor
from ortpartial.kits.state_file import pack_state
from ortpartial.model import write_tensors
from ortpartial.runtime.device import has_training

SOURCES = ROOT / "examples" / "anywhere"
HEADERS = SOURCES / "c" / "include"
LIBRARY = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.1.*"), None)
#: How a runner is compiled, by its language.
COMMANDS = {
    "c": ("gcc", "-std=c11", "-O2", "{program}.c", "-lcjson", "-lz"),
    "cpp": ("g++", "-std=c++17", "-O0", "{program}.cpp", "-lz"),  # the library of JSON alone takes 4 s with -O2
}
FLAGS = ("-Wall", "-Wextra", "-Werror")
DEBIAN = {"cjson/cJSON.h": "libcjson-dev", "nlohmann/json.hpp": "nlohmann-json3-dev", "zlib.h": "zlib1g-dev"}


def missing() -> str | None:
    """Why this machine cannot compile and test the runners, or should not, or None."""
    if LIBRARY is None or int(onnxruntime.__version__.split(".")[1]) < 30:
        return f"runs beside the library of onnxruntime 1.30.0 or later, and this is {onnxruntime.__version__}"
    absent = [f"{name} 12 or later" for name, *_ in COMMANDS.values() if shutil.which(name) is None]
    absent += [package for header, package in DEBIAN.items() if not Path("/usr/include", header).is_file()]
    if not (HEADERS / "onnxruntime_c_api.h").is_file():
        absent.append("the headers of onnxruntime 1.21, which `make headers` fetches")
    return f"needs {', '.join(absent)}" if absent else None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="session")
def compile_all(tmp_path_factory):
    """What compiles a program in every language."""
    folder = tmp_path_factory.mktemp("runners")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(LIBRARY)

    def compile_one(program: str) -> dict[str, Path]:
        paths = {language: folder / f"{program}_{language}" for language in COMMANDS}
        for language, (compiler, *options) in COMMANDS.items():
            subprocess.run([compiler, *FLAGS, *(o.format(program=program) for o in options), f"-I{HEADERS}",
                            f"-L{folder}", f"-Wl,-rpath,{folder}", "-lonnxruntime", "-o", paths[language]],
                           check=True, cwd=SOURCES / language)
        return paths

    return compile_one


@pytest.fixture(scope="session")
def runners(compile_all) -> dict[str, Path]:
    """The programs that train, by language."""
    return compile_all("train")


@pytest.fixture(scope="session")
def predictors(compile_all) -> dict[str, Path]:
    """The programs that predict, by language."""
    return compile_all("predict")


def start(program: Path, kit: Path, *arguments: object, **settings) -> subprocess.CompletedProcess:
    command = [program, kit, kit / "data.safetensors", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **settings)


def copy(kit: TrainingKit, folder: Path) -> Path:
    return Path(shutil.copytree(kit.folder, folder))


@pytest.mark.parametrize(("model", "rate"), PAIRS)
def test_a_kit_trains_as_in_python(model, rate, runners, predictors, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", model, rate)
    states = []
    for language, program in runners.items():
        whole, parts = (copy(kit, tmp_path / (language + n)) for n in ("whole", "parts"))
        done = start(program, whole)
        assert (done.returncode, done.stderr) == (0, "")
        for _ in range(2):
            assert start(program, parts, 50).returncode == 0
        states += [(folder / "state.safetensors").read_bytes() for folder in (whole, parts)]
    assert states == states[:1] * 4
    assert_trained_as_in_python(kit, whole, done.stdout, rtol=1e-5)
    for program in predictors.values():
        done = start(program, whole, "predictions", "trained.onnx", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert_predicts_as_in_python(whole, tmp_path / "predictions", tmp_path / "trained.onnx")


@pytest.mark.parametrize(("name", "change", "sentence"), [
    ("kit.json", lambda b: b.replace(b'"offset": ', b'"offset": 999999'),
     "model.onnx is not that of kit.json: export the kit again."),
    ("kit.json", lambda b: b.replace(b'{"name": "coef", "off', b'{"name": "hoef", "off'),
     "model.onnx is not that of kit.json: export the kit again."),
    ("model.onnx", lambda b: b.replace(b"Gemm", b"Germ"),
     f"onnxruntime {onnxruntime.__version__} cannot run model.onnx: "),
    ("data.safetensors", lambda b: b.replace(b'"x"', b'"z"'), "The data lack the input 'x'."),
    ("data.safetensors", lambda b: b.replace(b'"F32"', b'"I32"'), "Input 'x' is int32, where float32 is expected."),
])
def test_what_a_model_cannot_predict_is_one_sentence(name, change, sentence, predictors, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd").folder
    (kit / name).write_bytes(change((kit / name).read_bytes()))
    for program in predictors.values():
        done = start(program, kit, tmp_path / "predictions", tmp_path / "trained.onnx")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
        assert done.stderr.startswith(sentence)
        assert not list(tmp_path.glob("predictions*")) + list(tmp_path.glob("*.onnx"))
        assert start(program, kit).stderr == "Usage: predict KIT DATA PREDICTIONS [MODEL]\n"


def test_a_model_reads_what_no_step_does_and_has_several_outputs(predictors, tmp_path, rng):
    kit = write_kit_of_two_inputs(tmp_path / "kit", rng)
    for program in predictors.values():
        assert start(program, kit, tmp_path / "predictions", tmp_path / "trained.onnx").returncode == 0
        assert_predicts_as_in_python(kit, tmp_path / "predictions", tmp_path / "trained.onnx")


def test_batches_of_several_sizes(runners, tmp_path):
    kits = {"any": write_kit_and_data(tmp_path / "any", "cnn", "adam"),
            "some": write_kit_and_data(tmp_path / "some", "cnn", "adam", batch_sizes=(16, 32))}
    for name, size, seed in [("any", 7, 1), ("any", 16, 2**32 - 1), ("some", 16, 2**32 - 1), ("some", 32, 0)]:
        trained = TrainingKit(kits[name].folder)
        trained.train(trained.folder / "data.safetensors", 20, batch_size=size, seed=seed)
        for language, program in runners.items():
            folder = copy(kits[name], tmp_path / f"{name}-{size}-{language}")
            done = start(program, folder, 20, size, seed)
            assert (done.returncode, done.stderr) == (0, "")
            assert_state_close(TrainingKit(folder), trained.state, 1e-5)
            assert TrainingKit(folder).steps_taken == 20


def test_a_model_of_a_fixed_number_of_rows(runners, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd", batch_sizes=(32,)).folder
    text = (kit / "kit.json").read_text()
    (kit / "kit.json").write_text(text.replace('["N", 64]', "[32, 64]").replace('["N"]', "[32]"))
    for program in runners.values():
        done = start(program, kit, 10)
        assert (done.returncode, done.stderr) == (0, "")


def make_other_step() -> bytes:
    """A graph that runs, and is the step of no kit."""
    x = variable("x", "float32", ["N", 64])
    return build({"x": x}, {"loss": op.ReduceMean(x, keepdims=0)}).SerializeToString()


DAMAGED = "state.safetensors is damaged: restore a copy of it, or export the kit again."
NO_MANIFEST = "kit.json is no manifest of a training kit."
NO_DATA = "data.safetensors is no safetensors file, or a damaged one."
UNREADABLE = " cannot be read."
CANNOT_RUN = f"onnxruntime {onnxruntime.__version__} cannot run step.onnx: "

#: What is wrong with a file, and the sentence that says so, or its beginning.
FILES = [
    ("kit.json", lambda b: b.replace(b'"version": 1', b'"version": 2'), "kit.json is of version 2, and this runner "
     "reads version 1: take the runner that was exported with the kit."),
    *[("kit.json", change, NO_MANIFEST) for change in (
        lambda b: b[:200], lambda b: b"null", lambda b: b"[1]", lambda b: b"", lambda b: b'{"format": 3, "version": 1}',
        lambda b: b'{"format": "ortpartial.kit", "version": 1}', lambda b: b.replace(b'"steps"', b'"stops"'),
        lambda b: b.replace(b"ortpartial.kit", b"other.kit"), lambda b: b.replace(b'"version": 1', b'"version": "1"'),
        lambda b: b.replace(b'"inputs": [', b'"inputs": [], "other": ['),
        *[lambda b, size=size: b.replace(b'"batch_size": 32', b'"batch_size": ' + size)
          for size in (b"-1", b"0", b"4294967296")],
        lambda b: b.replace(b'"batch_size": null', b'"batch_size": "32"'), lambda b: b.replace(b"step.", b"../step."),
        lambda b: b.replace(b'"dtype": "int64"', b'"dtype": null'), lambda b: b.replace(b"[64, 10]", b"null"))],
    ("kit.json", lambda b: b.replace(b"[64, 10]", b"[10, 64]"),
     "state.safetensors is the state of another kit: its tensors are not those of kit.json."),
    ("kit.json", lambda b: b.replace(b'"coef"', b'"other"'),
     "state.safetensors is the state of another kit: its tensors are not those of kit.json."),
    *[("state.safetensors", change, DAMAGED) for change in (
        lambda b: b[:-5] + bytes([b[-5] ^ 1]) + b[-4:], lambda b: b[:100], lambda b: b"", lambda b: b + b" ",
        lambda b: b.replace(b'"steps":"0', b'"steps":"7'), lambda b: b.replace(b"crc32", b"crc64"))],
    *[("step.onnx", change, CANNOT_RUN) for change in (
        lambda b: b[:100], lambda b: b.replace(b"Gemm", b"Germ"), lambda b: b"")],
    ("step.onnx", lambda _: make_other_step(),
     "step.onnx is damaged: its inputs and outputs are not those of kit.json."),
    ("step.onnx", lambda b: b.replace(b"y_target", b"z_target"),
     "step.onnx is damaged: its inputs and outputs are not those of kit.json."),
    *[("data.safetensors", change, NO_DATA) for change in (
        lambda b: b[:-1], lambda b: b[:7], lambda b: b"not a file of tensors", lambda b: b"",
        lambda b: b.replace(b'"F32"', b'"F99"'), lambda b: b.replace(b"[300,64]", b"[300,65]"),
        lambda b: b.replace(b"[300,64]", b"[3e99,6]"), lambda b: b"\xff" * 8 + b[8:])],
]

#: What is wrong with the data, and the sentence that says so.
DATA = [
    (lambda x, y: {"x": x}, "The data lack the input 'y_target'."),
    (lambda x, y: {"x": x[:10], "y_target": y[:10]}, "The data have 10 rows, fewer than a batch of 32."),
    (lambda x, y: {"x": x[:0], "y_target": y[:0]}, "The data have 0 rows, fewer than a batch of 32."),
    (lambda x, y: {"x": x[:20], "y_target": y},
     "The inputs have different numbers of rows: 'x' has 20, 'y_target' has 300."),
    (lambda x, y: {"x": x[:, :63], "y_target": y}, "Input 'x' has the shape [300, 63], where [N, 64] is expected."),
    (lambda x, y: {"x": x[:, :, None], "y_target": y},
     "Input 'x' has the shape [300, 64, 1], where [N, 64] is expected."),
    (lambda x, y: {"x": x, "y_target": y[0]}, "Input 'y_target' has the shape [], where [N] is expected."),
    (lambda x, y: {"x": x.astype(np.float64), "y_target": y}, "Input 'x' is float64, where float32 is expected."),
    (lambda x, y: {"x": x, "y_target": y + 3},
     "Input 'y_target' has values from 3 to 12, where 0 to 9 are expected, or -100 for what does not count."),
    (lambda x, y: {"x": x, "y_target": y - 3},
     "Input 'y_target' has values from -3 to 6, where 0 to 9 are expected, or -100 for what does not count."),
    (lambda x, y: {"x": np.full_like(x, np.nan), "y_target": y}, "The loss of step 1 is not finite: the kit needs a "
     "smaller step size, or the data hold numbers that are none."),
]
USAGE = "Usage: train KIT DATA [STEPS=100] [BATCH=batch_size of the kit] [SEED=0]"


def assert_refused(runners, kit: Path, sentence: str, *arguments: object) -> None:
    """Each runner ends with one sentence, and writes nothing."""
    before = {path.name: path.read_bytes() for path in kit.iterdir()}
    for language, program in runners.items():
        done = start(program, kit, *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), (language, done)
        assert done.stderr == sentence + "\n" or (sentence == CANNOT_RUN and done.stderr.startswith(sentence)) or (
            sentence.endswith(UNREADABLE) and done.stderr.endswith(sentence + "\n")), language
    assert {path.name: path.read_bytes() for path in kit.iterdir()} == before


def test_what_does_not_fit_is_one_sentence(runners, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd").folder
    contents = {path: path.read_bytes() for path in kit.iterdir()}
    for name, change, sentence in FILES:
        (kit / name).write_bytes(change(contents[kit / name]))
        assert_refused(runners, kit, sentence)
        (kit / name).write_bytes(contents[kit / name])
    for change, sentence in DATA:
        write_tensors(change(*make_data("linear").values()), kit / "data.safetensors")
        assert_refused(runners, kit, sentence)
    for name in ("data.safetensors", "state.safetensors", "kit.json"):
        (kit / name).unlink()
        assert_refused(runners, kit, name + UNREADABLE)
        (kit / name).write_bytes(contents[kit / name])
    assert_refused(runners, kit, "The data have 300 rows, fewer than a batch of 301.", 10, 301)
    for arguments in ((10, 0), (-1,), (10, 32, 2**32), ("ten",), ("",), (1, 1, 1, 1)):
        assert_refused(runners, kit, USAGE, *arguments)
    (kit / "kit.json").write_bytes(contents[kit / "kit.json"].replace(b'9, "ignored": -100', b"8"))
    assert_refused(runners, kit, "Input 'y_target' has values from 0 to 9, where 0 to 8 are expected.")
    fixed = write_kit_and_data(tmp_path / "fixed", "linear", "sgd", batch_sizes=(16, 32)).folder
    assert_refused(runners, fixed, "The kit has steps for batches of 16 or 32 rows, not of 20.", 10, 20)


def test_labels_that_do_not_count(runners, tmp_path):
    kit, data = write_kit_and_data(tmp_path / "kit", "linear", "sgd"), make_data("linear")
    data["y_target"][::2] = -100
    write_tensors(data, kit.folder / "data.safetensors")
    for program in runners.values():
        assert start(program, kit.folder, 10).returncode == 0
    kit.train(data, 20)
    assert_state_close(TrainingKit(kit.folder), kit.state, 1e-5)


def test_labels_of_every_dtype(runners, tmp_path):
    dtypes = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool")
    labels = {n: np.array([0, 1, 100 if n == "int8" else 200], n) for n in dtypes}
    w = np.zeros(2, np.float32)
    inputs = {**{n: variable(n, a.dtype, ["N"]) for n, a in labels.items()}, "w": variable("w", "float32", [2])}
    outputs = {"loss": op.ReduceMean(inputs["w"], keepdims=0), "w_new": op.Identity(inputs["w"])}
    tensors = [Tensor(n, n, ("N",), 0, int(a.max())) for n, a in labels.items()]
    manifest = Manifest(3, {None: "step.onnx"}, tuple(tensors), (Tensor("loss", "float32", ()),),
                        (Tensor("w", "float32", (2,)),), {})
    for name, data in {"step.onnx": build(inputs, outputs).SerializeToString(), "model.onnx": b"",
                       "kit.json": manifest.to_json().encode(), "state.safetensors": pack_state({"w": w}, 0)}.items():
        (tmp_path / name).write_bytes(data)
    write_tensors(labels, tmp_path / "data.safetensors")
    for program in runners.values():
        done = start(program, tmp_path, 1)
        assert (done.returncode, done.stderr) == (0, "")
    write_tensors({**labels, "uint8": labels["uint8"] + np.uint8(55)}, tmp_path / "data.safetensors")
    assert_refused(runners, tmp_path, "Input 'uint8' has values from 55 to 255, where 0 to 200 are expected.")


def test_tensors_that_are_swapped_do_not_train(runners, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "momentum").folder
    manifest = json.loads((kit / "kit.json").read_text())
    tensors = manifest["state"]["tensors"]
    i, j = next((i, j) for j, b in enumerate(tensors) for i, a in enumerate(tensors[:j]) if a["shape"] == b["shape"])
    tensors[i], tensors[j] = tensors[j], tensors[i]
    (kit / "kit.json").write_text(json.dumps(manifest))
    assert_refused(runners, kit, "step.onnx is damaged: its inputs and outputs are not those of kit.json.")


def test_a_state_that_cannot_be_written_remains(runners, tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd").folder
    before = {path.name: path.read_bytes() for path in kit.iterdir()}
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    for program in runners.values():
        done = start(program, kit, 20, preexec_fn=limit, restore_signals=False)  # Python ignores that of this limit.
        assert (done.returncode, done.stderr) == (1, "state.safetensors cannot be written.\n")
        assert {path.name: path.read_bytes() for path in kit.iterdir()} == before


@pytest.mark.skipif(has_training(), reason="onnxruntime 1.19.2 makes no OrtValue of bfloat16")
def test_state_of_every_dtype(runners, tmp_path):
    dtypes = [np.dtype(n) for n in (
        "float64", "float32", "float16", ml_dtypes.bfloat16, "int64", "int32", "int16", "int8", "uint64", "uint32",
        "uint16", "uint8", "bool")]
    state = {f"{d.name}_": np.array([[0, 1, 1]]).astype(d) for d in dtypes}
    x, before = variable("x", "float32", ["N"]), {n: variable(n, a.dtype, a.shape) for n, a in state.items()}
    outputs = {"loss": op.ReduceMean(x, keepdims=0), **{f"{n}next": op.Identity(v) for n, v in before.items()}}
    manifest = Manifest(2, {None: "step.onnx"}, (Tensor("x", "float32", ("N",)),), (Tensor("loss", "float32", ()),),
                        tuple(Tensor(n, a.dtype.name, a.shape) for n, a in state.items()), {})
    for name, data in {"step.onnx": build({"x": x, **before}, outputs).SerializeToString(), "model.onnx": b"",
                       "kit.json": manifest.to_json().encode(), "state.safetensors": pack_state(state, 0)}.items():
        (tmp_path / name).write_bytes(data)
    write_tensors({"x": np.ones(4, np.float32)}, tmp_path / "data.safetensors")
    for program in runners.values():
        done = start(program, tmp_path, 3)
        assert (done.returncode, done.stderr) == (0, "")
    after = TrainingKit(tmp_path)
    assert after.steps_taken == 6
    for name, a in state.items():
        np.testing.assert_array_equal(after.state[name], a)

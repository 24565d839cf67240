"""Training kits in Java, by onnxruntime 1.17.0, the oldest runtime that kits are tested with."""

import json
import os
import shutil
import subprocess
from pathlib import Path

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
from onnx import parser

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingKit, build, constant, run_kit, variable
from ortpartial.model import write_tensors

JAVA = Path(__file__).parents[2] / "examples" / "anywhere" / "java"
LIBRARIES = JAVA / "lib"


def missing() -> str | None:
    """Why this machine cannot train kits in Java, or should not, or None."""
    if int(onnxruntime.__version__.split(".")[1]) < 30:
        return f"runs beside onnxruntime 1.30.0 or later, and this is {onnxruntime.__version__}"
    if shutil.which("javac") is None:
        return "needs JDK 17 or later, and there is no `javac`"
    if not (LIBRARIES / "ai" / "onnxruntime").is_dir():
        return "needs onnxruntime for Java, which `make java` installs"
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classes")
    page = (JAVA.parents[2] / "docs" / "how_to" / "android.md").read_text()
    (folder / "Learner.java").write_text(page.split("```java\n")[1].split("```")[0])
    compiled = subprocess.run(["javac", "-Xlint:all,-serial", "-Werror", "--release", "17", "-cp", LIBRARIES, "-d",
                               folder, *JAVA.glob("*.java"), folder / "Learner.java",
                               Path(__file__).with_name("TryKits.java")],
                              capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return folder


@pytest.fixture
def launch(classes):
    """Run a class. These options let a short program start sooner."""
    def run(name: str, *arguments: object):
        command = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{LIBRARIES}{os.pathsep}{classes}"]
        return subprocess.run([*command, name, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    return run


@pytest.fixture
def start(launch):
    """Run the program on a kit with its data."""
    return lambda kit, *arguments: launch("Train", kit, kit / "data.safetensors", *arguments)


@pytest.mark.parametrize(("model", "rate"), PAIRS)
def test_a_kit_trains_in_java_as_in_python(model, rate, tmp_path, start):
    kit = write_kit_and_data(tmp_path / "kit", model, rate)
    whole, parts = (Path(shutil.copytree(kit.folder, tmp_path / n)) for n in ("whole", "parts"))
    done = start(whole)
    assert (done.returncode, done.stderr) == (0, "")
    for _ in range(2):
        assert start(parts, 50).returncode == 0
    assert (parts / "state.safetensors").read_bytes() == (whole / "state.safetensors").read_bytes()
    assert_trained_as_in_python(kit, whole, done.stdout)


def write_trained_kit(folder, rng) -> Path:
    write_kit_and_data(folder, "cnn", "adam")
    run_kit(folder, folder / "data.safetensors", 3)
    return folder


@pytest.mark.parametrize("write", [write_trained_kit, write_kit_of_two_inputs])
def test_a_model_predicts_in_java_as_in_python(write, tmp_path, launch, rng):
    kit = write(tmp_path / "kit", rng)
    done = launch("Predict", kit, kit / "data.safetensors", tmp_path / "predictions", tmp_path / "trained.onnx")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_predicts_as_in_python(kit, tmp_path / "predictions", tmp_path / "trained.onnx")


@pytest.mark.parametrize(("sizes", "batch"), [(None, 7), ((16, 20), 20)])
def test_batches_of_several_sizes(tmp_path, start, sizes, batch):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "momentum", batch_sizes=sizes)
    java = Path(shutil.copytree(kit.folder, tmp_path / "java"))
    done = start(java, 31, batch, 2**32 - 1)
    assert (done.returncode, done.stdout.splitlines()[-1].split(":")[0]) == (0, "step 31")
    kit.train(make_data("linear"), 31, batch_size=batch, seed=2**32 - 1)
    assert_state_close(TrainingKit(java), kit.state, 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_dtypes(tmp_path, start, dtype, rng):
    x, w = variable("x", dtype, ["N", 3]), constant(rng.normal(size=(3, 2)).astype(dtype), hint='é/"w":0')
    OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.01).export_step(
        tmp_path / "kit", targets=())
    data = {"x": rng.normal(size=(40, 3)).astype(dtype), "y_target": rng.normal(size=(40, 2)).astype(dtype)}
    write_tensors(data, tmp_path / "kit" / "data.safetensors")
    java = Path(shutil.copytree(tmp_path / "kit", tmp_path / "java"))
    done = start(java, 5, 8)
    assert (done.returncode, done.stderr) == (0, "")
    run_kit(tmp_path / "kit", data, 5, batch_size=8)
    assert_state_close(TrainingKit(java), TrainingKit(tmp_path / "kit").state, 1e-5 if dtype == "float64" else 2e-3)


def edit(name, change):
    """A change of the bytes of a file."""
    return lambda kit: (kit / name).write_bytes(change(bytearray((kit / name).read_bytes())))


def set_version(kit):
    manifest = json.loads((kit / "kit.json").read_text())
    (kit / "kit.json").write_text(json.dumps({**manifest, "version": 2}))


def replace_data(**arrays):
    """Data that differ in some tensors, and lack those that are None."""
    return lambda kit: write_tensors({n: a for n, a in {**make_data("linear"), **arrays}.items() if a is not None},
                                     kit / "data.safetensors")


DAMAGED = "state.safetensors is damaged: restore a copy of it, or export the kit again."
MANIFEST = "kit.json is no manifest of a training kit."
LABELS = np.arange(300) % 13
UNKNOWN = parser.parse_model('<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[N] x) => (float[N] y) '
                             '{y = own.Unheard(x)}').SerializeToString()
BAD = {
    "newer": (set_version, 0, "kit.json is of version 2, and this runner reads version 1: take the runner that was "
              "exported with the kit."),
    "no manifest": (edit("kit.json", lambda b: b"[]"), 0, MANIFEST),
    "manifest without inputs": (edit("kit.json", lambda b: b.replace(b'"inputs"', b'"puts"')), 0, MANIFEST),
    "manifest of nulls": (edit("kit.json", lambda b: b.replace(b'"dtype": "int64"', b'"dtype": null')), 0, MANIFEST),
    "files elsewhere": (edit("kit.json", lambda b: b.replace(b"step-16", b"../step")), 0, MANIFEST),
    "other step": (edit("step-16.onnx", lambda b: b.replace(b"y_target", b"z_target")), 0,
                   "step-16.onnx is damaged: its inputs and outputs are not those of kit.json."),
    "cut state": (edit("state.safetensors", lambda b: b[:-3]), 0, DAMAGED),
    "flipped bit": (edit("state.safetensors", lambda b: b[:-9] + bytes([b[-9] ^ 4]) + b[-8:]), 0, DAMAGED),
    "empty state": (edit("state.safetensors", lambda b: b""), 0, DAMAGED),
    "no such state": (lambda kit: (kit / "state.safetensors").unlink(), 0, "{kit}/state.safetensors cannot be read."),
    "no such data": (lambda kit: (kit / "data.safetensors").unlink(), 0, "{kit}/data.safetensors cannot be read."),
    "no kit": (lambda kit: (kit / "kit.json").unlink(), 0, "{kit}/kit.json cannot be read."),
    "other state": (edit("kit.json", lambda b: b.replace(b"[64, 10]", b"[10, 64]")), 0, "state.safetensors is the "
                    "state of another kit: its tensors are not those of kit.json."),
    "operator": (edit("step-16.onnx", lambda b: UNKNOWN), 0, "onnxruntime 1.17.0 cannot run step-16.onnx: "),
    "batch": (None, 20, "The kit has steps for batches of 16 or 32 rows, not of 20."),
    "rows": (replace_data(x=make_data("linear", 10)["x"], y_target=np.zeros(10, np.int64)), 0, "The data have 10 "
             "rows, fewer than a batch of 16."),
    "lacks": (replace_data(y_target=None), 0, "The data lack the input 'y_target'."),
    "shape": (replace_data(x=np.zeros((300, 63), np.float32)), 0, "Input 'x' has the shape [300, 63], where [N, 64] "
              "is expected."),
    "dtype": (replace_data(x=np.zeros((300, 64))), 0, "Input 'x' is float64, where float32 is expected."),
    "labels": (replace_data(y_target=LABELS), 0, "Input 'y_target' has values from 0 to 12, where 0 to 9 are "
               "expected, or -100 for what does not count."),
    "counts": (replace_data(y_target=LABELS[:99] % 10), 0, "The inputs have different numbers of rows: 'x' has 300, "
               "'y_target' has 99."),
    "not finite": (replace_data(x=np.full((300, 64), np.nan, np.float32)), 0, "The loss of step 1 is not finite: the "
                   "kit needs a smaller step size, or the data hold numbers that are none."),
    "no data": (edit("data.safetensors", lambda b: b[:50]), 0,
                "data.safetensors is no safetensors file, or a damaged one."),
}


def test_bad_input_ends_in_one_sentence(tmp_path, launch):
    good = write_kit_and_data(tmp_path / "good", "linear", "sgd", batch_sizes=(16, 32)).folder
    kits = {}
    for name, (change, batch, _) in BAD.items():
        kit = Path(shutil.copytree(good, tmp_path / name))
        if change is not None:
            change(kit)
        kits[kit] = batch, {p.name: p.read_bytes() for p in kit.iterdir()}
    done = launch("TryKits", *(argument for kit, (batch, _) in kits.items() for argument in (kit, batch)))
    assert (done.returncode, done.stderr) == (0, "")
    for (kit, (_, before)), sentence, line in zip(
            kits.items(), [sentence for *_, sentence in BAD.values()], done.stdout.splitlines(), strict=True):
        assert line.startswith(sentence) if sentence.endswith(" ") else line == sentence.format(kit=kit), kit.name
        assert {p.name: p.read_bytes() for p in kit.iterdir()} == before


def test_a_program_that_fails_says_so(tmp_path, launch, start):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd").folder
    before = (kit / "state.safetensors").read_bytes()
    usage = "Usage: Train KIT DATA [STEPS=100] [BATCH=batch_size of kit.json] [SEED=0]\n"
    for done in (launch("Train", kit), start(kit, -5), start(kit, 5, "all"), start(kit, 5, 0), start(kit, 5, 32, 0, 1)):
        assert (done.returncode, done.stdout, done.stderr) == (1, "", usage)
    set_version(kit)
    done = start(kit)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", BAD["newer"][2] + "\n")
    done = launch("Predict", kit, kit / "data.safetensors", kit / "predictions")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", BAD["newer"][2] + "\n")
    assert not (kit / "predictions").exists()
    assert (kit / "state.safetensors").read_bytes() == before

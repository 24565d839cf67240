"""Every writer of the library, killed while it writes or without room on the disk: nothing is lost or broken."""

import errno
import os
import random
import re
import resource
import signal
import time
import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot
from models import data, mlp
from once import ON_BOTH
from paths import ROOT

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, nn
from ortpartial.adapters import add_lora, save_adapter
from ortpartial.cli import main
from ortpartial.execution.checkpoint import read_checkpoint
from ortpartial.model import external_data, read, read_tensors, write
from ortpartial.plots import plot_losses, save_figure
from ortpartial.runtime import has_adapter_files, read_adapter_file

matplotlib.use("Agg")
X, Y, _ = data(20)


def optimizer(seed):
    return OrtGradientForwardBackwardOptimizer(mlp(hidden=100, seed=seed), max_iter=1)


def session(seed):
    return TrainingSession(optimizer(seed).get_training_onnx(init="model"))


def module(seed):
    return nn.Linear(100, 100).compile(nn.placeholder(["N", 100]), random_state=seed)


def write_model(seed):
    model = mlp(hidden=100, seed=seed)
    return lambda path: write(type(model).FromString(model.SerializeToString()), path)


def gradient(seed):
    source = Path(f"source{seed}.onnx")
    write(mlp(hidden=100 * seed), source)

    def run(path):
        if main(["gradient", str(source), "-o", str(path)]):
            raise OSError(errno.EFBIG, "it has been printed")

    return run


def draw(seed):
    ax = plot_losses([1.0, seed])
    return lambda path: save_figure(ax, path)


def adapter(seed):
    adapted = add_lora(mlp(), ["W1"], random_state=seed)
    return lambda path: save_adapter(adapted, path)


#: By name, how to make of a seed what writes a path.
WRITERS = {
    "write": write_model,
    "external data": write_model,
    "gradient": gradient,
    "save": lambda seed: optimizer(seed).save,
    "TrainingSession.save": lambda seed: session(seed).save,
    "save_onnx_graph": lambda seed: optimizer(seed).save_onnx_graph,
    "save_checkpoint": lambda seed: optimizer(seed).save_checkpoint,
    "save_states": lambda seed: module(seed).save_states,
    "Module.save": lambda seed: module(seed).save,
    "save_figure": draw,
    **({"save_adapter": adapter} if has_adapter_files() else {}),
}


def content(path):
    """What a path holds: a figure, a checkpoint, a model or a folder of models that can be read; None if nothing."""
    if not path.exists():
        return None
    files = sorted(path.glob("*.onnx")) if path.is_dir() else [path]
    if path.suffix == ".safetensors":
        return str(read_checkpoint(path, read_tensors(path)[1]["format"].removeprefix("ortpartial ")))
    if path.suffix == ".png":
        return str(pyplot.imread(path).tobytes())
    if path.suffix == ".onnx_adapter":
        return str(read_adapter_file(path))
    return {p.name: read(p).SerializeToString() for p in files}


def is_temporary(name):
    return name.startswith(".ortpartial-")


@pytest.fixture(params=WRITERS)
def writer(request, tmp_path, monkeypatch):
    """A path, two functions that write to it, and what each of them writes."""
    monkeypatch.chdir(tmp_path)
    if request.param == "external data":
        monkeypatch.setattr(external_data, "MESSAGE", 0)
        monkeypatch.setattr(external_data, "BIG", 64)
    (tmp_path / "folder").mkdir()
    names = {"save_onnx_graph": "graphs", "save_checkpoint": "last.safetensors",
             "save_states": "last.safetensors", "save_figure": "losses.png", "save_adapter": "my.onnx_adapter"}
    path = tmp_path / "folder" / names.get(request.param, "model.onnx")
    functions, contents = [], []
    for seed in (1, 2):
        functions.append(WRITERS[request.param](seed))
        functions[-1](path)
        contents.append(content(path))
    assert contents[0] != contents[1]
    return path, functions, contents


def start(function):
    """Run a function in a child process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, which writers do not use.
        pid = os.fork()
    if not pid:
        try:
            function()
        finally:
            os._exit(1)
    return pid


def write_on(path, functions, is_new=False):
    while True:
        for function in functions:
            function(path)
            if is_new:
                os.rename(path, path.parent.parent / f"{os.getpid()}-{time.monotonic_ns()}")


@pytest.mark.sampled(2)
@ON_BOTH
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_writer(writer, kills):
    """What is there is the former content or the new one, and what a killed process has left, the next one removes."""
    path, functions, contents = writer
    draw = random.Random(0)
    for _ in range(kills):
        pid = start(lambda: write_on(path, functions))
        time.sleep(draw.uniform(0.002, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert content(path) in contents
    functions[0](path)
    assert content(path) == contents[0]
    assert not [n for _, folders, files in os.walk(path.parent) for n in (*folders, *files) if is_temporary(n)]


def test_a_killed_writer_of_a_new_folder(tmp_path, monkeypatch):
    """A folder is complete or not there."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "folder" / "graphs"
    o, draw = optimizer(1), random.Random(0)
    whole = content(o.save_onnx_graph(path)["predict"].parent)
    for _ in range(6):
        pid = start(lambda: write_on(path, [o.save_onnx_graph], is_new=True))
        time.sleep(draw.uniform(0.02, 0.2))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert content(path) in (None, whole)


@pytest.mark.sampled(2)
@ON_BOTH
def test_no_room_on_the_disk(writer, tmp_path):
    """The former content remains, and the error says where there was no room."""
    path, functions, contents = writer

    def write_without_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
        try:
            functions[0](path)
        except OSError as e:
            os._exit(0 if e.errno == errno.EFBIG and (e.filename is None or e.filename.startswith(str(path))) else 2)

    _, status = os.waitpid(start(write_without_room), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert content(path) == contents[1]
    assert not [n for n in os.listdir(path.parent) if is_temporary(n)]


#: What writes files in another way than `replace_file`.
WRITING = re.compile(r"""\.write_(bytes|text)\(|\.savez?\w*\(["']|onnx\.save|open\([^()]*["'][wax]b?["']""")

#: Files that grow line by line, which nothing replaces.
GROWING = {"csv_logger.py"}

#: Files in a temporary folder, which a compiler reads.
TEMPORARY = {"compiler.py"}

#: Programs in C as texts, whose files are their users'.
PROGRAMS = {"c_model.py"}


def test_every_writer_replaces_files():
    """Nothing else in the package writes a file; examples in docstrings may."""
    found = [f"{path.relative_to(ROOT)}: {line}" for path in (ROOT / "ortpartial").rglob("*.py")
             if path.name not in {"atomic.py", *GROWING, *PROGRAMS, *TEMPORARY}
             for line in path.read_text(encoding="utf-8").splitlines()
             if WRITING.search(line) and not line.lstrip().startswith((">>>", "..."))]
    assert [line for line in found if "archive.open" not in line] == []

"""A file holds its former model or the whole new one, whatever happens during the writing."""

import os
import subprocess
import sys
from importlib import import_module

import numpy as np
import onnx
import pytest
from models import mlp, weights_of
from onnxruntime import InferenceSession
from paths import environment

from ortpartial.model import atomic, external_data
from ortpartial.model.load import read
from ortpartial.model.write import write, write_folder

write_module = import_module("ortpartial.model.write")  # Its function of the same name hides it.


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


@pytest.fixture
def small_messages(monkeypatch):
    """As if no model fit into one protobuf message."""
    monkeypatch.setattr(external_data, "MESSAGE", 0)
    monkeypatch.setattr(external_data, "BIG", 64)


def interrupt(*_):
    raise KeyboardInterrupt


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_file_is_replaced(path):
    write(mlp(seed=1), path)
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    path.chmod(0o640)
    write(mlp(seed=2), str(path))
    assert onnx.load(path) == mlp(seed=2)
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["model.onnx"]


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_link_stays_a_link(path, tmp_path):
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    write(mlp(), link)
    assert link.is_symlink()
    assert onnx.load(path) == mlp()


def test_a_device_is_written_to():
    write(mlp(), "/dev/null")
    assert os.path.exists("/dev/null")
    assert not os.path.isfile("/dev/null")


@pytest.mark.parametrize(("failure", "error"), [(interrupt, KeyboardInterrupt), (full, OSError)])
@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupted_write_leaves_the_former_model(path, monkeypatch, failure, error, moment):
    write(mlp(seed=1), path)
    monkeypatch.setattr(os, moment, failure)
    with pytest.raises(error):
        write(mlp(seed=2), path)
    assert onnx.load(path) == mlp(seed=1)
    assert os.listdir(path.parent) == ["model.onnx"]


def test_a_killed_process_leaves_the_former_model(path):
    write(mlp(seed=1), path)
    code = ("import os, sys, onnx; from ortpartial.model import write\n"
            "os.fsync = lambda _: os.kill(os.getpid(), 9)\n"
            "model = onnx.load(sys.argv[1]); model.doc_string = 'new'; write(model, sys.argv[1])")
    done = subprocess.run([sys.executable, "-c", code, path], env=environment(), capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert onnx.load(path) == mlp(seed=1)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as e:
        write(mlp(), tmp_path / "nowhere" / "model.onnx")
    assert e.value.filename == str(tmp_path / "nowhere" / "model.onnx")
    assert str(e.value) == (f"[Errno 2] No such file or directory; create its folder first: "
                            f"'{tmp_path}/nowhere/model.onnx'")
    with pytest.raises(IsADirectoryError):
        write(mlp(), tmp_path)


def test_what_exceeds_a_message_goes_to_a_second_file(path, small_messages):
    """For each model the data have a new name, so that the former model keeps its own until it is replaced."""
    for seed, name in ((1, "model.onnx.data"), (2, "model.onnx.1.data"), (3, "model.onnx.data")):
        write(mlp(hidden=100, seed=seed), path)
        assert sorted(os.listdir(path.parent)) == sorted(["model.onnx", name])
        assert path.stat().st_size < 2000
        expected = mlp(hidden=100, seed=seed)
        assert all((weights_of(read(path))[n] == a).all() for n, a in weights_of(expected).items())
        X = np.ones((3, 4), np.float32)
        y, z = (InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
                for source in (path, expected.SerializeToString()))
        assert (y == z).all()


@pytest.mark.parametrize("kept", [0, 1], ids=["data", "model"])
def test_an_interrupted_write_leaves_the_former_data(path, small_messages, monkeypatch, kept):
    """Whether it ends while the data are written, or afterwards."""
    write(mlp(hidden=100, seed=1), path)
    replaced, replace = [], os.replace

    def replace_some(*names):
        replaced.append(names)
        (replace if len(replaced) <= kept else interrupt)(*names)

    monkeypatch.setattr(os, "replace", replace_some)
    with pytest.raises(KeyboardInterrupt):
        write(mlp(hidden=100, seed=2), path)
    assert (weights_of(read(path))["W1"] == weights_of(mlp(hidden=100, seed=1))["W1"]).all()
    assert sorted(os.listdir(path.parent)) == ["model.onnx", "model.onnx.data"]


def test_an_interrupt_after_the_write_leaves_the_new_model(path, small_messages, monkeypatch):
    write(mlp(hidden=100, seed=1), path)
    former = path.stat().st_ino
    monkeypatch.setattr(write_module, "flush_folder", lambda _: interrupt() if path.stat().st_ino != former else None)
    with pytest.raises(KeyboardInterrupt):
        write(mlp(hidden=100, seed=2), path)
    assert (weights_of(read(path))["W1"] == weights_of(mlp(hidden=100, seed=2))["W1"]).all()
    assert sorted(os.listdir(path.parent)) == ["model.onnx", "model.onnx.1.data"]


def test_two_that_write_the_same_model_do_not_share_a_file(path, small_messages, monkeypatch):
    """One writes its data, another the whole model; then the data of the first get their name, and it is killed."""
    move, replace = write_module._move, os.replace

    def write_another(*arguments):
        monkeypatch.setattr(write_module, "_move", move)
        write(mlp(hidden=100, seed=2), path)
        monkeypatch.setattr(os, "replace", lambda a, b: interrupt() if b == path else replace(a, b))
        move(*arguments)

    monkeypatch.setattr(write_module, "_move", write_another)
    with pytest.raises(KeyboardInterrupt):
        write(mlp(hidden=100, seed=1), path)
    assert (weights_of(read(path))["W1"] == weights_of(mlp(hidden=100, seed=2))["W1"]).all()


def test_files_of_others_stay(path, small_messages):
    (path.parent / "model.onnx.data").write_bytes(b"mine")
    path.write_bytes(b"no model")
    write(mlp(hidden=100), path)
    assert sorted(os.listdir(path.parent)) == ["model.onnx", "model.onnx.1.data", "model.onnx.data"]


def test_no_room_on_the_disk_is_said_in_a_sentence(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device; nothing was written; free some space, "
                                      r"or choose another place: '.*/model.onnx'$"):
        write(mlp(), path)


def test_what_is_being_written_is_not_removed(path):
    """What a process writes is told from what a killed one has left by a lock, which other threads respect, too."""
    with atomic.replace_file(path) as file:
        file.write(b"whole")
        (path.parent / ".ortpartial-0.tmp").mkdir()
        (path.parent / ".ortpartial-0.tmp" / "model.onnx").touch()
        (path.parent / ".ortpartial-1.tmp").touch()
        write(mlp(), path.parent / "other.onnx")
        assert len(os.listdir(path.parent)) == 2
    assert path.read_bytes() == b"whole"


def test_a_folder_is_complete_or_not_there(tmp_path, monkeypatch):
    models = {"a": mlp(seed=1), "b": mlp(seed=2)}
    message = r"other place: '.*/new/graphs'$"
    for moment, failure, error, expected in (("rename", interrupt, KeyboardInterrupt, None),
                                             ("fsync", full, OSError, message)):
        with monkeypatch.context() as m:
            m.setattr(os, moment, failure)
            with pytest.raises(error, match=expected):
                write_folder(models, tmp_path / "new" / "graphs")
        assert not list((tmp_path / "new").iterdir())
    assert write_folder(models, tmp_path / "new" / "graphs")["b"] == tmp_path / "new" / "graphs" / "b.onnx"
    (tmp_path / "new" / "graphs" / "notes.txt").touch()
    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_folder({"a": mlp(seed=3), "b": mlp(seed=4)}, tmp_path / "new" / "graphs")
    assert sorted(os.listdir(tmp_path / "new" / "graphs")) == ["a.onnx", "b.onnx", "notes.txt"]
    assert onnx.load(tmp_path / "new" / "graphs" / "a.onnx") == mlp(seed=1)

"""Readers given no regular files: an error of one sentence, without waiting and without taking all memory."""

import contextlib
import io
import os
import shutil
import socket
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from file_mutants import USES, X, Y, make, model, write_files
from sandbox import in_children, outcome

from ortpartial import TrainingSession, load, load_adapter
from ortpartial.callbacks import CSVLogger
from ortpartial.cli import main
from ortpartial.cli.token_rows import TextReader, read_texts
from ortpartial.model import write_tensors
from ortpartial.training_info import read_rows

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has neither pipes in folders nor /dev")


def rows(name):
    return read_rows(name, TrainingSession("training.onnx"))


def tokens(name):
    read_texts(Path(name), TextReader("texts"), 8)


def command(*words):
    """A command, whose errors are one line and status 2."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    if status == 2:
        raise OSError(err.getvalue())


#: What reads a file, by the file; beside those of the other kinds of damage.
READERS = {
    **USES,
    "external.data": lambda: load("external.onnx"),
    "rows.csv": partial(rows, "rows.csv"),
    "rows.parquet": partial(rows, "rows.parquet"),
    "data.npz": partial(rows, "data.npz"),
    "tokens.npy": partial(tokens, "tokens.npy"),
    "tokens.jsonl": partial(tokens, "tokens.jsonl"),
    "tokens.txt": partial(tokens, "tokens.txt"),
    "texts/tokenizer.json": partial(tokens, "tokens.txt"),
    "log.csv": lambda: make().set_params(callbacks=[CSVLogger("log.csv", append=True)]).fit(X, Y),
    "peft/adapter_config.json": lambda: load_adapter(model(), "peft"),
    "command.onnx": partial(command, "info", "command.onnx"),
    "command.csv": partial(command, "predict", "model.onnx", "command.csv"),
}

#: Nobody is asked for these: where the file is missing or damaged, it is as if it were not there.
SILENT = {"texts/genai_config.json": partial(tokens, "tokens.jsonl"), "log.csv": READERS["log.csv"]}


def write_more_files():
    """Files of the other kinds."""
    tensor = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 4])], [onnx.helper.make_tensor_value_info("y", 1, ["N", 3])],
        [tensor])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(proto, "external.onnx", save_as_external_data=True, location="external.data", size_threshold=0)
    shutil.copy("model.onnx", "command.onnx")
    text = "a,b,c,d,y_target\n" + "1,2,3,4,5\n" * 4
    Path("rows.csv").write_text(text)
    Path("command.csv").write_text("a,b,c,d\n1,2,3,4\n")
    Path("rows.parquet").touch()
    np.save("tokens.npy", np.arange(8).reshape(2, 4))
    Path("tokens.jsonl").write_text('{"input_ids": [1, 2, 3]}\n')
    Path("tokens.txt").write_text("one two\n")
    Path("texts").mkdir()
    Path("texts/tokenizer.json").write_text("{}")
    Path("texts/genai_config.json").write_text("{}")
    Path("log.csv").write_text("epoch\n")
    Path("peft").mkdir()
    write_tensors({"x": np.ones((2, 4), np.float32)}, "peft/adapter_model.safetensors")
    Path("peft/adapter_config.json").write_text("{}")


def fifo(path):
    os.mkfifo(path)


def sock(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))


def locked(path):
    path.touch()
    path.chmod(0)


#: What stands in the place of the file.
PLACED = {
    "fifo": fifo,
    "socket": sock,
    "folder": Path.mkdir,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/null": lambda path: path.symlink_to("/dev/null"),
    "missing": lambda path: None,
    "no permission": locked,
    "broken link": lambda path: path.symlink_to("nothing"),
}


def is_short(ending):
    """Whether it is an error of the library or of the system, in one line under a thousand characters."""
    kind, text = ending
    text = text.partition(" (")[0] if kind == "unclear error" else text
    is_clear = kind == "clear error" or text.startswith(("OSError", "FileNotFoundError", "IsADirectoryError",
                                                         "PermissionError"))
    return is_clear and len(text) < 1000 and "\n" not in text.strip()


def enter(names, kinds, folder):
    """Each case in a folder of its own, which is a copy, as writers replace what is there."""
    os.chdir(folder)
    os.mkdir("true")
    os.chdir("true")
    write_files()
    write_more_files()
    cases = [(name, kind) for name in names for kind in kinds]

    def run(case):
        name, kind = case
        home = Path(folder) / f"{names.index(name)}-{kind.strip('/').replace('/', '-')}"
        shutil.copytree(Path(folder) / "true", home)
        os.chdir(home)
        Path(name).unlink()
        PLACED[kind](Path(name))
        if kind == "no permission" and not os.geteuid():  # The root may read everything.
            os.seteuid(65534)
        ending = outcome(run={**READERS, **SILENT}[name])
        os.seteuid(os.getuid())
        return ending

    return dict(zip(cases, in_children(lambda: run, cases), strict=True))


@pytest.mark.parametrize("kinds", [["fifo", "/dev/zero"], pytest.param(list(PLACED), marks=pytest.mark.slow)],
                         ids=["sample", "all"])
def test_every_reader(kinds, tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)
    readers = list(READERS) if len(kinds) > 2 else [n for n in READERS if not n.startswith("artifacts")]
    endings = enter([*readers, *(n for n in SILENT if n not in readers)], kinds, tmp_path)
    wrong = {case: ending for case, ending in endings.items()
             if not is_short(ending) and not (case[0] in SILENT and ending[0] == "result")}
    optional = {c for c, (kind, _) in wrong.items() if kind == "result" and c[1] in ("missing", "broken link")}
    assert [(case, ending) for case, ending in wrong.items() if case not in optional] == []
    assert {name for name, _ in optional} <= {"artifacts/eval_model.onnx", "artifacts/optimizer_model.onnx"}
    record_property("count", f"{len(endings)} cases of {len(readers)} readers")

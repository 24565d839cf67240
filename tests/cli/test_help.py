"""Help that teaches: every example that it shows runs, and its lines fit a terminal."""

import re
import shlex

import numpy as np
import onnx
import pytest
from models import data, mlp
from once import ON_BOTH
from tiny_decoders import make_decoder

from ortpartial.cli import main
from ortpartial.runtime import has_adapter_files

COMMANDS = ("train", "predict", "evaluate", "info", "gradient", "jvp", "jacobian", "hessian", "hvp", "export",
            "run", "lora", "bench", "check")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that examples name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    X, y, _ = data(60)
    onnx.save(mlp(), "model.onnx")
    onnx.save(mlp(outputs=3), "classifier.onnx")
    (tmp_path / "base").mkdir()
    onnx.save(make_decoder(), "base/model.onnx")
    (tmp_path / "data.jsonl").write_text("[3, 4, 5, 6, 7, 8, 9, 3]\n" * 4)
    np.savez("data.npz", x=X, y=y, y_target=y)
    numbers = [",".join(map(str, row)) for row in X]
    for name, target, values in (("data", "y", y[:, 0]), ("animals", "kind", ["cat", "dog", "bird"] * 20)):
        lines = [f"a,b,c,d,{target}", *(f"{row},{value}" for row, value in zip(numbers, values, strict=True))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")


def read_help(capsys, *words):
    with pytest.raises(SystemExit) as e:
        main([*words, "--help"])
    assert e.value.code == 0
    return capsys.readouterr().out


def list_examples(text):
    """The lines of a shell under "examples:", up to an empty one."""
    block = text.partition("examples:\n")[2].partition("\n\n")[0]
    lines = block.replace("\\\n", " ").splitlines()
    assert lines
    assert all(line.startswith("  ortpartial ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


@ON_BOTH
@pytest.mark.parametrize("command", COMMANDS)
def test_examples_run(files, capsys, command):
    if command == "lora" and not has_adapter_files():
        pytest.skip("onnxruntime has an AdapterFormat from 1.20 on.")
    text = read_help(capsys, command)
    if command in ("predict", "evaluate"):
        assert main(["train", "model.onnx", "data.csv", "-o", "trained.onnx", "-q"]) == 0
    for words in list_examples(text):
        assert main([*words, *(["--seconds", "0.01"] if command == "bench" else [])]) == 0, words
        assert "ortpartial:" not in capsys.readouterr().err


def test_the_first_help(files, capsys):
    """Its examples are a first training; all commands are in it, with help and examples of their own."""
    text = read_help(capsys)
    for words in list_examples(text):
        assert main(words) == 0, words
    assert re.findall(r"^    (\w+)\b", text.partition("  COMMAND\n")[2], re.MULTILINE) == [*COMMANDS, "completion"]


@pytest.mark.parametrize("words", [(), *((c,) for c in COMMANDS), ("completion",)], ids=" ".join)
def test_lines_fit_a_terminal(files, capsys, words):
    assert max(map(len, read_help(capsys, *words).splitlines())) <= 80

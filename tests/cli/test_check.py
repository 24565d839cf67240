"""The check of engines: agreement, differences, and unchecked engines."""

import json

import numpy as np
import pytest
from models import data
from once import ON_BOTH

from ortpartial.cli import main
from ortpartial.rewrites import peephole
from ortpartial.runtime import has_training


@ON_BOTH
def test_lines(at, capsys):
    assert main(["check", "mlp.onnx", "--engine", "epoch", "step", "agent"]) == 0
    lines = capsys.readouterr().out.splitlines()
    epoch, step, agent = (line for line in lines if not line.startswith("  "))
    assert (epoch, step) == ("epoch: agrees", "step: agrees")
    assert lines[1].startswith("  apply_peepholes: ")
    assert "1 x mean_of_squares (case 13)" in lines[1]
    assert agent == "agent: agrees" if has_training() else agent.startswith("agent: not checked: The agent needs")


def test_rows_of_a_file(at, capsys):
    X, _, _ = data(20)
    np.savez("rows.npz", x=X)
    words = ["check", "mlp.onnx", "rows.npz", "--batch-size", "7", "--engine", "step", "--json"]
    assert main([*words, "--loss", "absolute"]) == 0
    line = json.loads(capsys.readouterr().out)
    (rewrites,) = line.pop("rewrites")
    assert line == {"engine": "step", "result": "agrees", "message": ""}
    assert rewrites.startswith("apply_peepholes: ")


def test_a_difference(at, capsys, monkeypatch):
    def wrong(node, inputs, region):
        y = right(node, inputs, region)
        return None if y is None else 2 * y

    (right, *others) = peephole._PATTERNS["ReduceMean"]
    wrong.__name__ = right.__name__
    monkeypatch.setitem(peephole._PATTERNS, "ReduceMean", [wrong, *others])
    assert main(["check", "mlp.onnx", "--engine", "epoch"]) == 1
    line = capsys.readouterr().out
    assert line.startswith("epoch: differs: A step by engine 'epoch' is not that of the model as it is written: ")
    assert "Without 'mean_of_squares' they agree." in line


def test_nothing_to_check(at, capsys):
    assert main(["check", "mlp.onnx", "--engine", "step", "--weights", "V"]) == 2
    assert capsys.readouterr().out.startswith("step: not checked: The weight 'V' is no initializer")


@pytest.mark.parametrize(("words", "message"), [
    ("missing.onnx", "There is no file 'missing.onnx'"),
    ("mlp.onnx --batch-size 0", "--batch-size is a whole number of at least 1, not 0."),
    ("mlp.onnx rows.csv", "rows.csv"),
])
def test_errors(at, capsys, words, message):
    assert main(["check", *words.split()]) == 2
    assert message in capsys.readouterr().err

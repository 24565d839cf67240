"""Times of steps: every engine, every size of a batch, random rows that fit the model."""

import json

import numpy as np
import onnx
import pytest
from models import mlp
from once import ON_BOTH

from ortpartial import build, constant, op, variable
from ortpartial.cli import main
from ortpartial.runtime import has_training


def bench(words):
    return main(["bench", *words.split(), "--seconds", "0.01"])


@ON_BOTH
def test_table(at, capsys):
    assert bench("mlp.onnx --batch-size 1 8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["engine", "batch", "step", "steps/s", "rows/s", "ratio"]
    rows = [line.split() for line in lines[1:9]]
    assert [row[:2] for row in rows] == [[n, size] for size in "18" for n in ("forward", "epoch", "step", "agent")]
    assert "1.00" in {row[-1] for row in rows[1:4]}
    assert len(lines) == (9 if has_training() else 10)
    if not has_training():
        assert lines[9].startswith("agent: The agent needs onnxruntime-training")


def test_json(at, capsys):
    onnx.save(mlp(outputs=3), "classifier.onnx")
    assert bench("classifier.onnx --loss cross_entropy --rate sgd:0.1 --engine step --json --weights W?") == 0
    forward, step = map(json.loads, capsys.readouterr().out.splitlines())
    assert (forward["what"], step["what"], step["ratio"]) == ("forward", "step", 1.0)
    assert step["steps_per_second"] == pytest.approx(1 / step["seconds"])


def save_words():
    """A mean of embeddings of words, of texts of any length, masked."""
    ids, mask = variable("ids", "int64", ["N", "T"]), variable("mask", "float32", ["N", "T"])
    table = constant(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32), hint="table")
    h = op.ReduceSum(op.Gather(table, ids) * op.Unsqueeze(mask, [2]), [1], keepdims=0)
    onnx.save(build([ids, mask], {"y": h}), "words.onnx")


def test_indices_and_open_sizes(at, capsys):
    save_words()
    assert bench("words.onnx") == 2
    assert capsys.readouterr().err == "ortpartial: The size 'T' of the input 'ids' is open; give it, as --size T=16.\n"
    assert bench("words.onnx --size T=7 --engine epoch") == 0


def test_a_fixed_batch(at, capsys):
    x = variable("x", "float32", [4, 2])
    onnx.save(build([x], {"y": x @ constant(np.ones((2, 1), np.float32), hint="w")}), "fixed.onnx")
    assert bench("fixed.onnx --engine step --json") == 0
    assert [json.loads(line)["batch_size"] for line in capsys.readouterr().out.splitlines()] == [4, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bare.onnx", "No float initializer of rank one or more leads to the outputs 'y'"),
        ("mlp.onnx --batch-size 0", "--batch-size is a whole number of at least 1, not 0."),
        ("mlp.onnx --size T", "--size is NAME=NUMBER, as T=128, not 'T'."),
        ("mlp.onnx --rate adm", "--rate: 'adm' is not known."),
    ],
)
def test_errors(at, capsys, words, message):
    assert bench(words) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)

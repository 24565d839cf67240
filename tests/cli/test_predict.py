"""Predictions and metrics of a model for the rows of a file."""

import json
import os

import numpy as np
import onnx
import pytest
from models import data, linear, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer, build, op, variable
from ortpartial.cli import main
from ortpartial.training_info import read_table

X, Y, W = data(50)
EXPECTED = OrtGradientForwardBackwardOptimizer(mlp()).predict(X)


@pytest.fixture
def rows(at):
    np.savez("data.npz", x=X, y=Y, w=W)
    return at


@pytest.mark.parametrize("end", ["npz", "csv", "parquet", "arrow"])
def test_predict(rows, capsys, end):
    assert main(f"predict mlp.onnx data.npz -o out.{end} --batch-size 7".split()) == 0
    assert capsys.readouterr().out == f"out.{end}: 50 rows of y\n"
    outputs = np.load("out.npz") if end == "npz" else read_table(rows / f"out.{end}")
    np.testing.assert_allclose(outputs["y"].ravel(), EXPECTED.ravel(), rtol=1e-5)
    assert main(f"predict mlp.onnx data.npz -o out.{end}".split()) == 2
    assert f"'out.{end}' exists; choose another name for the predictions, or say --force." in capsys.readouterr().err
    assert main(f"predict mlp.onnx data.npz -o out.{end} --force --json".split()) == 0
    assert json.loads(capsys.readouterr().out) == {"file": f"out.{end}", "rows": 50, "columns": ["y"]}


def test_predictions_on_the_terminal(rows, capsys):
    onnx.save(linear(outputs=2), "two.onnx")
    assert main(["predict", "two.onnx", "data.npz"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "y_0,y_1"
    assert len(lines) == 50


def test_models_that_cannot_be_trained(rows, capsys):
    """Without weights, of a fixed size of batches, with outputs of whole numbers."""
    x = variable("x", "float32", [8, 4])
    names = op.Gather(np.array(["u", "v", "w", "ä"], object), op.ArgMax(x, axis=1, keepdims=0))
    onnx.save(build([x], {"best": op.ArgMax(x, axis=1, keepdims=0), "sum": op.ReduceSum(x, [1], keepdims=0),
                          "total": op.ReduceSum(x, keepdims=0), "name": names}), "m.onnx")
    assert main(["predict", "m.onnx", "data.npz", "-o", "out.npz"]) == 0
    outputs = np.load("out.npz")
    assert sorted(outputs) == ["best", "name", "sum"]
    assert (outputs["name"] == np.array(["u", "v", "w", "ä"])[X.argmax(axis=1)]).all()
    assert (outputs["best"] == X.argmax(axis=1)).all()
    assert outputs["sum"].shape == (50,)


def test_predict_errors(rows, capsys):
    x = variable("x", "float32", ["N", 4])
    onnx.save(build([x], {"y": op.ReduceSum(x, keepdims=0)}), "sum.onnx")
    for words, message in [
        ("sum.onnx data.npz -o a.npz", "No output of the model, of 'y', has a row for each row of the data."),
        ("mlp.onnx data.npz --json", "With --json, predict says what it wrote; name a file with -o."),
        ("mlp.onnx data.npz --batch-size 0", "--batch-size is a whole number of at least 1, not 0."),
        ("mlp.onnx data.npz -o nowhere/a.npz", "There is no folder 'nowhere' for the predictions."),
        ("mlp.onnx data.npz -o a.txt", "'a.txt' is to end in .csv, .parquet, .arrow, .feather or .npz."),
    ]:
        assert main(["predict", *words.split()]) == 2
        assert capsys.readouterr().err == f"ortpartial: {message}\n"
    assert not any(name.startswith("a.") for name in os.listdir(rows))


def test_evaluate(rows, capsys):
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), learning_loss="absolute_error")
    assert main(["evaluate", "mlp.onnx", "data.npz", "--loss", "absolute", "--sample-weight", "w", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rows"] == 50
    assert record["loss"] == pytest.approx(np.average(optimizer.losses(X, Y), weights=W), rel=1e-5)
    assert record["outputs"] == {"y": {"R2": pytest.approx(optimizer.score(X, Y, W), rel=1e-5)}}
    assert main(["evaluate", "mlp.onnx", "data.npz", "--batch-size", "7"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["rows", "loss", "R2"]

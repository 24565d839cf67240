"""Random rows that fit a model, and the times of its steps."""

import pytest
from models import mlp

from ortpartial.cli.timing import RandomRows, parse_sizes, time_forward, time_steps
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import build, constant, op, variable
from ortpartial.learning import SoftmaxCrossEntropyLearningLoss, SquareLearningLoss
from ortpartial.model import load


def rows(model, sizes=(), loss=None, batch_size=3):
    return RandomRows(load(model), {"y": loss or SquareLearningLoss()}, batch_size, parse_sizes(sizes))


def test_inputs_and_targets():
    r = rows(mlp(outputs=2))
    X = r.draw_inputs(4)
    assert X["x"].shape == (12, 4)
    assert r.draw_targets(X)["y"].shape == (12, 2)
    labels = rows(mlp(outputs=2), loss=SoftmaxCrossEntropyLearningLoss()).draw_targets(X)["y"]
    assert labels.shape == (12,)
    assert set(labels) <= {0, 1}


def test_indices_are_within_their_table():
    ids = variable("ids", "int64", ["N", "T"])
    table = constant([[0.0], [1.0], [2.0]])
    drawn = rows(build([ids], {"y": op.Gather(table, ids)}), ["T=50"]).draw_inputs()["ids"]
    assert drawn.shape == (3, 50)
    assert (drawn.min(), drawn.max()) == (0, 2)


def test_sizes():
    assert parse_sizes(["T=128", "S=2"]) == {"T": 128, "S": 2}
    for word in ("T", "T=x", "T=0"):
        with pytest.raises(SettingError, match=f"--size is NAME=NUMBER, as T=128, not {word!r}"):
            parse_sizes([word])
    x = variable("x", "float32", ["N", "T"])
    with pytest.raises(SettingError, match="The size 'T' of the input 'x' is open; give it, as --size T=16"):
        rows(build([x], {"y": op.Relu(x)})).draw_inputs()


def test_an_input_without_rows():
    x = variable("x", "float32", [])
    with pytest.raises(DataError, match="The input 'x' has no rows, so that none can be drawn"):
        rows(build([x], {"y": op.Relu(x)})).draw_inputs()


def test_times():
    r = rows(mlp())
    assert 1 < r.count_batches() <= 1000
    assert 0 < time_forward(r, 0.01) < 10
    seconds, engine = time_steps(r, {"engine": "step"}, 0.01)
    assert 0 < seconds < 10
    assert engine == "step"

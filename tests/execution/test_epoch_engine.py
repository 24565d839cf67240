"""The epoch engine: the same bits as single steps, in one run of many."""

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable

X, Y, _ = data(47)


def train(engine, **settings):
    settings = {"learning_rate": "Adam", "random_state": 0, "max_iter": 3, "batch_size": 8, **settings}
    return OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, **settings).fit(X, Y)


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"accumulate": 2}, {"batch_size": 47}])
def test_the_bits_of_single_steps(settings):
    a, b = train("epoch", **settings), train("step", **settings)
    assert a.train_losses_ == pytest.approx(b.train_losses_, rel=1e-12)
    for u, v in zip(a.get_state(), b.get_state(), strict=True):
        np.testing.assert_array_equal(u, v)


def test_its_graphs():
    optimizer = train("epoch")
    assert list(optimizer._engine.graphs()) == ["epoch", "step"]
    assert "Scan" in {n.op_type for n in optimizer._engine.graphs()["epoch"].graph.node}


def test_steps_are_counted():
    assert train("epoch")._engine.iteration == 18


@pytest.mark.parametrize(("rows", "far", "axes", "scanned"), [
    (8, False, 2, True), (8, True, 2, False), (13, False, 2, False), (8, False, 4, False)])
def test_steps_that_are_faster_alone(monkeypatch, limit, rows, far, axes, scanned):
    """Many rows, fewer where the data are far, and images: calls of single steps, with the same bits."""
    limit(scanned_rows=12)
    monkeypatch.setattr("ortpartial.execution.epoch_engine._NEAR", 0 if far else 2**20)
    x, w = variable("x", "float32", ["N", 4, *[1] * (axes - 2)]), constant(np.ones((4, 1), np.float32), hint="w")
    model, X_ = build([x], {"y": op.Flatten(x) @ w}), X.reshape(-1, 4, *[1] * (axes - 2))
    a, b = (OrtGradientForwardBackwardOptimizer(model, engine=e, max_iter=2, batch_size=rows, random_state=0).fit(X_, Y)
            for e in ("epoch", "step"))
    assert any(key.kind == "epoch" for key in a._engine._programs) == scanned
    np.testing.assert_array_equal(a.get_state(), b.get_state())

"""Glorot-uniform initialization: its bounds, biases, seeds."""

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.initializers import draw_weights
from ortpartial.model.load import load

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]


def weight(name, *shape, dtype="float32"):
    return constant(np.full(shape, 9, dtype), hint=name)


X = variable("x", "float32", ["N", 3, 8, 8])
ROWS, TOKENS = variable("rows", "float32", ["N", 6]), variable("tokens", "int64", ["N", 5])
# An expression of a weight, and the fans whose sum its bound depends on; None: it is left alone.
CASES = {
    "Gemm": (op.Gemm(ROWS, weight("w", 4, 6), transB=1), 4 + 6),
    "MatMul": (ROWS @ weight("w", 6, 40), 6 + 40),
    "Transpose": (ROWS @ op.Transpose(weight("w", 40, 6), perm=[1, 0]), 46),
    "a vector": (ROWS @ weight("w", 6), 6 + 1),
    "Conv": (op.Conv(X, weight("w", 10, 3, 3, 5)), (10 + 3) * 15),
    "ConvTranspose": (op.ConvTranspose(X, weight("w", 3, 10, 3, 3)), (3 + 10) * 9),
    "a table": (op.Gather(weight("w", 50, 4), TOKENS), 50 + 4),
    "a bias": (ROWS + weight("w", 6), None),
    "a bias of two axes": (ROWS + weight("w", 1, 6), None),
    "a scale": (op.LayerNormalization(ROWS, weight("w", 6)), None),
    "the bias of a Conv": (op.Conv(X, constant(np.ones((4, 3, 1, 1), np.float32)), weight("w", 4)), None),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds(name):
    y, fans = CASES[name]
    model = load(build([X, ROWS, TOKENS], {"y": y}))
    before = model.arrays["w"]
    actual = np.concatenate([draw_weights(model, ["w"], np.random.default_rng(i))["w"].ravel() for i in range(40)])
    assert actual.dtype == before.dtype
    if fans is None:
        assert (actual == 9).all()
    else:
        bound = np.sqrt(6 / fans)
        assert (np.abs(actual) <= bound).all()
        assert np.abs(actual).max() > 0.97 * bound
        assert abs(actual.mean()) < 0.25 * bound
        assert abs(actual.std() / (bound / np.sqrt(3)) - 1) < 0.2


@pytest.mark.parametrize("engine", ENGINES)
def test_fit_from_random_weights(engine):
    x, y, _ = data()
    model = mlp()
    settings = {"init": "random", "engine": engine, "max_iter": 3, "learning_rate": 0.05}
    a, b = (Optimizer(model, random_state=1, **settings) for _ in range(2))
    first = a.trained_coef_
    assert all((first[n] == b.trained_coef_[n]).all() for n in first)
    stored = Optimizer(model).trained_coef_
    assert {n for n in first if (first[n] == stored[n]).all()} == {"b1", "b2"}
    losses = a.fit(x, y).train_losses_
    assert losses[-1] < losses[0]
    assert a.fit(x, y).train_losses_ == losses
    assert b.fit(x, y).train_losses_ == losses
    assert Optimizer(model, random_state=2, **settings).fit(x, y).train_losses_ != losses
    unseeded = Optimizer(model, random_state=None, **settings)
    assert unseeded.fit(x, y).train_losses_ != unseeded.fit(x, y).train_losses_
    warm = Optimizer(model, random_state=1, warm_start=True, **settings)
    assert warm.fit(x, y).train_losses_ == losses
    assert warm.fit(x, y).train_losses_[:3] == losses


def test_weights_that_are_not_trained_are_not_drawn():
    o = Optimizer(mlp(), ["W2"], init="random", random_state=0)
    actual = {t.name: t for t in o.get_trained_onnx().graph.initializer}
    same = {t.name for t in mlp().graph.initializer if t == actual[t.name]}
    assert same == {"W1", "b1", "b2"}

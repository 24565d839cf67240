"""The update: clipped, accumulated and averaged gradients, as a graph."""

import numpy as np
import pytest
from models import data, linear

from ortpartial import OrtGradientForwardBackwardOptimizer

X, Y, _ = data(12)


def train(**settings):
    settings = {"learning_rate": 0.1, "batch_size": 4, "shuffle": False, "max_iter": 1, "engine": "step", **settings}
    return OrtGradientForwardBackwardOptimizer(linear(), **settings)


def gradient(w, b, rows):
    e = X[rows] @ w + b - Y[rows]
    return 2 * X[rows].T @ e / len(e), 2 * e.mean(0)


def follow(update):
    """The weights after three batches, by numpy."""
    w, b = (np.asarray(a, float) for a in train().get_state())
    for k in range(3):
        w, b = update(k + 1, w, b, gradient(w, b, slice(4 * k, 4 * k + 4)))
    return w, b


def assert_like(optimizer, update):
    for a, e in zip(optimizer.fit(X, Y).get_state(), follow(update), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-6)


def test_plain():
    assert_like(train(), lambda k, w, b, g: (w - 0.1 * g[0], b - 0.1 * g[1]))


@pytest.mark.parametrize("norm", [0.3, 100.0])
def test_clipped(norm):
    def update(k, w, b, g):
        f = min(1, norm / np.sqrt((g[0] ** 2).sum() + (g[1] ** 2).sum()))
        return w - 0.1 * f * g[0], b - 0.1 * f * g[1]

    assert_like(train(gradient_clipping=norm), update)


def test_accumulated():
    """Of three batches, two make an update by the mean of their gradients, and the third waits."""
    w, b = (np.asarray(a, float) for a in train().get_state())
    gw, gb = gradient(w, b, slice(0, 8))
    optimizer = train(accumulate=2).fit(X, Y)
    np.testing.assert_allclose(optimizer.get_state()[0], w - 0.1 * gw, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(optimizer.get_state()[1], b - 0.1 * gb, rtol=1e-4, atol=1e-6)


def test_rates_by_weight():
    assert_like(train(rate_factors={"coef": 0.1}), lambda k, w, b, g: (w - 0.01 * g[0], b - 0.1 * g[1]))

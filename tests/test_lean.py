"""Does a training that overwrites its weights come to the same ones, and does it leave none behind half changed?"""

import pickle

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import weights
from ortpartial.exceptions import ConvergenceError
from ortpartial.lean import _is_finite
from ortpartial.learning_rate import BaseLearningRate, LearningRateAdamW, LearningRateSGDNesterov

SETTINGS = {"max_iter": 4, "random_state": 0, "batch_size": 16}


class Late(BaseLearningRate):
    """A step that reads the state from before the step."""

    state = ("v",)

    def update(self, w, g, v, *, k):
        return g + v, (0.5 * v + g,)


@pytest.mark.parametrize("rate", [0.01, LearningRateSGDNesterov(0.01), LearningRateAdamW(), Late(0.01)])
def test_as_with_two_copies(rate):
    X, y, w = data(40)
    plain = Optimizer(mlp(), engine="step", learning_rate=rate, **SETTINGS).fit(X, y, w)
    lean = Optimizer(mlp(), checkpointing="auto", learning_rate=rate, **SETTINGS).fit(X, y, w)
    assert lean._engine.overwrites != isinstance(rate, Late)
    assert lean._engine.sides[0] is lean._engine.sides[1]
    for kind in ("weight", "optimizer"):
        for a, b in zip(lean.get_state(kind), plain.get_state(kind), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    again = pickle.loads(pickle.dumps(lean))
    for a, b in zip(again.partial_fit(X, y).get_state(), lean.partial_fit(X, y).get_state(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_big_weights_are_trained_in_one_copy():
    X, y, _ = data(8)
    o = Optimizer(mlp(hidden=2**20), max_iter=1)
    assert (o.engine_, o._engine.copies) == ("step", 1)
    assert Optimizer(mlp(hidden=2**20), engine="epoch")._engine.copies == 2
    assert np.isfinite(o.fit(X, y).train_losses_).all()


def test_the_last_finite_step_stays():
    X, y, _ = data(40)
    o = Optimizer(mlp(), checkpointing="auto", learning_rate=1e-3, shuffle=False, **SETTINGS)
    y = y.copy()
    y[20] = 3e38
    with pytest.raises(ConvergenceError, match=r"at iteration 2 .* those of iteration 1"):
        o.fit(X, y)
    expected = Optimizer(mlp(), engine="step", learning_rate=1e-3, shuffle=False, **{**SETTINGS, "max_iter": 1})
    for a, b in zip(o.get_state(), expected.fit(X[:16], y[:16]).get_state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("numbers", "finite"), [
    ([1, 2], True), ([3e38, 3e38], True), ([3e38, 3e38, -3e38], True), ([], True), ([1, np.nan], False),
    ([np.inf, -np.inf], False), ([-np.inf], False)])  # fmt: skip
def test_is_finite(numbers, finite):
    """Of all numbers, also of those whose sum is too large."""
    assert _is_finite(np.array(numbers, np.float32)) is finite


def test_first_weights_wait_in_a_file(monkeypatch):
    X, y, _ = data(8)
    monkeypatch.setattr(weights, "_MANY", 0)
    proto = mlp(hidden=2**18)
    o = Optimizer(proto, max_iter=1, random_state=0, learning_rate=1e-6)
    assert o._model.file is not None
    first = o.fit(X, y).get_state()
    for a, b in zip(o.fit(X, y).get_state(), first, strict=True):
        np.testing.assert_array_equal(a, b)
    o.set_state([t * 0 for t in first])
    o.set_params(warm_start=False)._reset()
    assert o.get_trained_onnx() == proto
    assert pickle.loads(pickle.dumps(o)).get_trained_onnx() == proto

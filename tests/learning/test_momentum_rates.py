"""SGD, with and without momentum, and Lion by their formulas in numpy."""

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.learning.momentum_rates import LearningRateLion, LearningRateSGD, LearningRateSGDNesterov
from ortpartial.runtime import Session

GRADIENTS = np.random.default_rng(0).normal(size=(6, 3))
W = np.array([1.0, -2, 0.5])


def run(rate):
    session = Session(rate.build_onnx_function(dtype="float64", shape=(3,)))
    w, state = W, {n: np.zeros(3) for n in rate.state}
    for k, g in enumerate(GRADIENTS, 1):
        arrays = {"w": w, "g": g, "k": np.array(k), **state}
        outputs = session.run({n: arrays[n] for n in session.inputs})
        w, state = outputs["w_out"], {n: outputs[f"{n}_out"] for n in rate.state}
    return w


@pytest.mark.parametrize("decay", [0, 0.1])
def test_sgd(decay):
    w = W
    for g in GRADIENTS:
        w = w - 0.1 * (g + decay * w)
    np.testing.assert_allclose(run(LearningRateSGD(0.1, weight_decay=decay)), w, rtol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum(nesterov):
    w, v = W, 0
    for g in GRADIENTS:
        v = 0.8 * v + g
        w = w - 0.1 * (g + 0.8 * v if nesterov else v)
    np.testing.assert_allclose(run(LearningRateSGDNesterov(0.1, momentum=0.8, nesterov=nesterov)), w, rtol=1e-12)


def test_lion():
    w, m = W, 0
    for g in GRADIENTS:
        step, m = np.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g
        w = w - 0.1 * step
    np.testing.assert_allclose(run(LearningRateLion(0.1)), w, rtol=1e-12)


def test_momentum_out_of_range():
    with pytest.raises(SettingError, match="momentum"):
        LearningRateSGDNesterov(momentum=1.0)

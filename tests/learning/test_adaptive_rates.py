"""Adam and its kin by their formulas in numpy, step after step."""

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.learning.adaptive_rates import (
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
)
from ortpartial.runtime import Session

GRADIENTS = np.random.default_rng(0).normal(size=(6, 3))
W = np.array([1.0, -2, 0.5])


def run(rate, gradients=GRADIENTS):
    """The weights after steps with these gradients."""
    shapes = rate.state_shapes((3,))
    session = Session(rate.build_onnx_function(dtype="float64", shape=(3,)))
    w, state = W, {n: np.zeros(s) for n, s in shapes.items()}
    for k, g in enumerate(gradients, 1):
        arrays = {"w": w, "g": g, "k": np.array(k), **state}
        outputs = session.run({n: arrays[n] for n in session.inputs})
        w, state = outputs["w_out"], {n: outputs[f"{n}_out"] for n in shapes}
    return w


def test_adagrad():
    w, v = W, 0
    for g in GRADIENTS:
        v = v + g * g
        w = w - 0.1 * g / (np.sqrt(v) + 1e-10)
    np.testing.assert_allclose(run(LearningRateAdagrad(0.1)), w, rtol=1e-12)


@pytest.mark.parametrize(("centered", "momentum"), [(False, 0.0), (True, 0.0), (True, 0.9)])
def test_rmsprop(centered, momentum):
    w, v, a, b = W, 0, 0, 0
    for g in GRADIENTS:
        v, a = 0.9 * v + 0.1 * g * g, 0.9 * a + 0.1 * g
        step = g / (np.sqrt(v - a * a * centered) + 1e-6)
        b = momentum * b + step
        w = w - 0.1 * b
    rate = LearningRateRMSProp(0.1, alpha=0.9, epsilon=1e-6, momentum=momentum, centered=centered)
    assert len(rate.state) == 1 + centered + bool(momentum)
    np.testing.assert_allclose(run(rate), w, rtol=1e-9)


@pytest.mark.parametrize(("rate", "decay"), [
    (LearningRateAdam(0.1), 0), (LearningRateAdamW(0.1, weight_decay=0.2), 0.2)])
def test_adam(rate, decay):
    w, m, v = W, 0, 0
    for k, g in enumerate(GRADIENTS, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 0.1 * (m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8) + decay * w)
    np.testing.assert_allclose(run(rate), w, rtol=1e-10)


def test_nadam():
    w, m, v, product = W, 0, 0, 1
    for k, g in enumerate(GRADIENTS, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        mu, ahead = (0.9 * (1 - 0.5 * 0.96 ** (0.004 * j)) for j in (k, k + 1))
        product *= mu
        step = (1 - mu) / (1 - product) * g + ahead / (1 - product * ahead) * m
        w = w - 0.1 * step / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    np.testing.assert_allclose(run(LearningRateNAdam(0.1)), w, rtol=1e-7)


def test_radam_begins_without_the_variance():
    """As long as ρ is at most 5 the step is m̂."""
    w, m = W, 0
    for k, g in enumerate(GRADIENTS[:5], 1):
        m = 0.9 * m + 0.1 * g
        w = w - 0.1 * m / (1 - 0.9**k)
    np.testing.assert_allclose(run(LearningRateRAdam(0.1), GRADIENTS[:5]), w, rtol=1e-10)
    assert abs(run(LearningRateRAdam(0.1)) - w).max() < 0.1


@pytest.mark.parametrize(("rate", "setting"), [(LearningRateAdam, "beta1"), (LearningRateRMSProp, "alpha")])
def test_settings_out_of_range(rate, setting):
    with pytest.raises(SettingError, match=setting):
        rate(**{setting: 1.0})

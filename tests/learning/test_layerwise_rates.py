"""LAMB and Adafactor: steps in proportion to the size of a weight."""

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.learning.layerwise_rates import LearningRateAdafactor, LearningRateLAMB
from ortpartial.runtime import Session

W = np.random.default_rng(0).normal(size=(4, 3))
G = np.random.default_rng(1).normal(size=(4, 3))


def step(rate, w, g=G):
    """What the first step takes off."""
    state = {n: np.zeros(s) for n, s in rate.state_shapes(w.shape).items()}
    session = Session(rate.build_onnx_function(dtype="float64", shape=w.shape))
    arrays = {"w": w, "g": g, "k": np.array(1), **state}
    return w - session.run({n: arrays[n] for n in session.inputs})["w_out"]


def test_lamb_steps_by_the_norm_of_the_weight():
    taken = step(LearningRateLAMB(0.1), W)
    assert np.linalg.norm(taken) == pytest.approx(0.1 * np.linalg.norm(W))
    np.testing.assert_allclose(step(LearningRateLAMB(0.1), 3 * W).ravel() @ taken.ravel(),
                               3 * (taken * taken).sum(), rtol=0.1)
    without = step(LearningRateLAMB(0.1, weight_decay=0.0), W)
    np.testing.assert_allclose(without, 0.1 * np.sign(G), rtol=1e-4)


def test_a_weight_of_zeros_is_not_stuck():
    taken = step(LearningRateLAMB(0.1), np.zeros((4, 3)))
    np.testing.assert_allclose(taken, 0.1 * np.sign(G), rtol=1e-4)


def test_adafactor_keeps_a_row_and_a_column():
    rate = LearningRateAdafactor()
    assert rate.state_shapes((5, 4, 3)) == {"r": (5, 4, 1), "c": (5, 1, 3)}
    assert rate.state_shapes((3,)) == {"v": (3,)}


def test_adafactor_by_its_formula():
    """At the first batch v is g², of which rows and columns have the means."""
    squares = G * G
    v = squares.mean(1, keepdims=True) * squares.mean(0, keepdims=True) / squares.mean()
    u = G / np.sqrt(v)
    u = np.sqrt((W * W).mean()) * u / max(1, np.sqrt((u * u).mean()))
    np.testing.assert_allclose(step(LearningRateAdafactor(0.01), W), 0.01 * u, rtol=1e-6)


def test_settings_out_of_range():
    with pytest.raises(SettingError, match="threshold"):
        LearningRateAdafactor(threshold=0)

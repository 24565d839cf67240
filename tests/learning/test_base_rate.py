"""Optimizers of users: an update with a state, weight decay, and weights that it leaves out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.graph import constant
from ortpartial.learning.base_rate import BaseLearningRate, WeightDecay
from ortpartial.runtime import Session


@dataclass(frozen=True)
class Sum(WeightDecay):
    """The sum of all gradients."""

    state: ClassVar = ("s",)

    def update(self, w, g, s, *, k):
        return s + g, (s + g,)


def run(rate, w, g, s, k=1):
    session = Session(rate.build_onnx_function(dtype="float64", shape=np.shape(w)))
    arrays = {"w": np.array(w), "g": np.array(g), "s": np.array(s), "k": np.array(k)}
    return [a.tolist() for a in session.run({n: arrays[n] for n in session.inputs}).values()]


def test_a_step_and_its_state():
    assert run(Sum(0.5), [1.0], [2.0], [3.0]) == [[-1.5], [5.0]]


def test_a_schedule_and_a_factor():
    """η₀ / √k, times what a weight has."""
    assert run(Sum(0.5, schedule="invscaling"), [1.0], [2.0], [0.0], k=4) == [[0.5], [2.0]]
    k = constant(np.int64(1))
    assert Sum(0.5).step_size(k, np.float32).array == np.float32(0.5)
    assert Sum(0.5).step_size(k, np.float32, 0.5).array == np.float32(0.25)


def test_decay_is_decoupled():
    """w - η (step + λ w)."""
    assert run(Sum(0.5, weight_decay=0.1), [10.0], [2.0], [0.0]) == [[8.5], [2.0]]


@pytest.mark.parametrize(("no_decay", "patterns", "shape", "expected"), [
    ((), (), (3,), 0.1), ("vectors", (), (3,), 0.0), ("vectors", (), (3, 2), 0.1), (["a.*"], ["a.*"], (3, 2), 0.0)])
def test_weights_without_decay(no_decay, patterns, shape, expected):
    rate = Sum(weight_decay=0.1, no_decay=no_decay)
    assert rate.for_weight(patterns, shape).weight_decay == expected
    assert "vectors" not in rate.patterns


def test_a_class_that_says_nothing_is_not_elementwise():
    """Whatever its base says: its update may read other elements."""

    class Derived(Sum):
        elementwise = True

    class Further(Derived):
        pass

    assert (Derived.elementwise, Further.elementwise) == (True, False)


@pytest.mark.parametrize(("settings", "message"), [({"eta0": 0}, "eta0"), ({"weight_decay": -1}, "weight_decay"),
                                                   ({"no_decay": 3}, "Sum: no_decay is a name or a list of names")])
def test_errors(settings, message):
    with pytest.raises(SettingError, match=message):
        Sum(**settings)
    with pytest.raises(TypeError, match="abstract"):
        BaseLearningRate()

"""Former methods of onnxcustom's optimizers, and former attributes that are answered."""

import numpy as np
import pytest
from models import data, linear

from ortpartial import OrtGradientForwardBackwardOptimizer

X, Y, _ = data(10)


@pytest.fixture
def optimizer():
    return OrtGradientForwardBackwardOptimizer(linear(), learning_rate="Adam", max_iter=1).fit(X, Y)


def test_the_full_state(optimizer):
    for a, b in zip(optimizer.get_full_state(), optimizer.get_state(), strict=True):
        np.testing.assert_array_equal(a, b)
    weights, states = optimizer.get_full_state(["weight", "optimizer"])
    assert (len(weights), len(states)) == (2, len(optimizer.get_state("optimizer")))


def test_former_attributes(optimizer):
    with pytest.raises(AttributeError, match=r"has no attribute 'needs_grad'; learning_rate\.state names"):
        _ = optimizer.needs_grad

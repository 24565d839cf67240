"""Flatten, Unflatten and Identity: other shapes of the same elements."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import GraphError

X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


def run(layer, x=X, shape=None):
    return layer.compile(nn.placeholder(shape or x.shape))(x)


@pytest.mark.parametrize(("layer", "shape"), [
    (nn.Flatten(), (2, 60)), (nn.Flatten(0), (120,)), (nn.Flatten(1, 2), (2, 12, 5)), (nn.Flatten(-2), (2, 3, 20)),
    (nn.Unflatten(2, (2, 2)), (2, 3, 2, 2, 5)), (nn.Unflatten(-1, (-1, 1)), (2, 3, 4, 5, 1)),
    (nn.Identity(), (2, 3, 4, 5))])
def test_shapes(layer, shape):
    np.testing.assert_array_equal(run(layer), X.reshape(shape))
    np.testing.assert_array_equal(run(layer, shape=["N", 3, 4, 5]), X.reshape(shape))


def test_what_does_not_fit():
    with pytest.raises(GraphError):
        run(nn.Unflatten(1, (2, 2)))

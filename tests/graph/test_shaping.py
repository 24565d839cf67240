"""Shaping: fitting a value to another is the same for known and unknown sizes."""

import numpy as np
import pytest

from ortpartial.graph import build, variable
from ortpartial.graph.shaping import cast, ones_like, reshape_like, shape_of, unbroadcast, zeros_like
from ortpartial.runtime import Session

D = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


def run(inputs, y, **arrays):
    return Session(build(inputs, {"y": y})).run(arrays)["y"]


@pytest.mark.parametrize(("shape", "axes"), [((4, 2, 3), ()), ((3,), (0, 1)), ((2, 1), (0, 2)), ((1, 1, 3), (0, 1)),
                                             ((), (0, 1, 2))])
@pytest.mark.parametrize("is_known", [True, False])
def test_unbroadcast(shape, axes, is_known):
    d = variable("d", "float32", D.shape if is_known else ["a", "b", "c"])
    x = variable("x", "float32", shape if is_known else [f"m{i}" for i in range(len(shape))])
    total = run([d, x], unbroadcast(d, x), d=D, x=np.zeros(shape, np.float32))
    np.testing.assert_array_equal(total, D.sum(axes, keepdims=True).reshape(shape))


@pytest.mark.parametrize("sizes", [[4, 6], ["N", 6], ["N", "M"]])
def test_reshape_like(sizes):
    d, x = variable("d", "float32", [4, 2, 3]), variable("x", "float32", sizes)
    assert run([d, x], reshape_like(d, x), d=D, x=np.zeros((4, 6), np.float32)).tolist() == D.reshape(4, 6).tolist()
    assert reshape_like(d, d) is d


@pytest.mark.parametrize("sizes", [[2], ["N"], []])
def test_filled(sizes):
    x = variable("x", "float64", sizes)
    a = np.ones([2][:len(sizes)])
    for y, number in ((ones_like(x), 1), (zeros_like(x), 0)):
        filled = run([x], y + 0 * x, x=a)
        assert (filled.dtype, filled.shape, set(filled.ravel())) == (np.float64, a.shape, {number})


def test_a_shape_that_is_known_is_a_constant():
    assert shape_of(variable("x", "float32", [2, 3])).array.tolist() == [2, 3]
    assert shape_of(variable("x", "float32", ["N", 3])).array is None


def test_a_cast_to_the_same_dtype_is_none():
    x = variable("x", "float32", [2])
    assert cast(x, variable("y", "float32", [])) is x
    assert cast(x, variable("y", "float64", [])).dtype == "float64"

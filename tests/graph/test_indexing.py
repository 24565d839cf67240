"""Indexing: x[...] of a value computes the same as in numpy, and so does its gradient."""

import numpy as np
import pytest

from ortpartial.autodiff import grad
from ortpartial.graph import build, variable
from ortpartial.testing import evaluate

A = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)

KEYS = {
    "a number": np.s_[0],
    "a number from the end": np.s_[-1],
    "numbers": np.s_[1, 2, 3],
    "numpy's numbers": np.s_[np.int64(1), ..., np.array(2)],
    "a slice": np.s_[1:3],
    "a step": np.s_[::2],
    "backward": np.s_[::-1],
    "backward from a number": np.s_[3:0:-1, ::-2],
    "a new axis": np.s_[-3:-1, None],
    "new axes around": np.s_[None, ..., None],
    "the last axis": np.s_[..., 0],
    "mixed": np.s_[0, :, -1],
    "nothing": np.s_[2:2],
    "beyond the end": np.s_[2:100],
    "a list": np.s_[[0, 2]],
    "an empty list": np.s_[[]],
    "a list of an inner axis": np.s_[:, [4, -1]],
    "a matrix": np.s_[:, np.array([[0, 1], [2, 3]])],
    "lists": np.s_[[0, 1], [2, 3]],
    "inner lists": np.s_[:, [0, 1], [2, 3]],
    "lists apart": np.s_[[0, 1], :, [2, 3]],
    "a number and a list apart": np.s_[0, :, [2, 3]],
    "lists that are broadcast": np.s_[:, [[0], [1]], [2, 3]],
    "lists around a new axis": np.s_[[0, 1], None, [2, 3]],
    "a mask of rows": np.s_[A[:, 0, 0] > 0],
    "a mask of all": np.s_[A > 0],
    "an inner mask": np.s_[:, A[0] > 0],
    "a mask and a slice": np.s_[A[:, :, 0] > 0, 1:],
    "a mask after dots": np.s_[..., A[0, 0] > 0],
}


@pytest.mark.parametrize("shape", [(4, 5, 6), ("N", "M", "K")], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", KEYS)
def test_as_numpy(name, shape):
    key, x = KEYS[name], variable("x", "float32", shape)
    y = x[key]
    (dx,) = grad((y * y).sum(), [x])
    computed = evaluate(build([x], {"y": y, "dx": dx}), {"x": A})
    np.testing.assert_array_equal(computed["y"], A[key])
    assert y.rank == A[key].ndim
    expected = np.zeros_like(A)
    np.add.at(expected, key, 2 * A[key])
    np.testing.assert_allclose(computed["dx"], expected, rtol=1e-6)


def test_values_as_indices():
    inputs = {"x": variable("x", "float32", ["N", 5, 6]), "i": variable("i", "int32", []),
              "j": variable("j", "int64", [2]), "mask": variable("mask", "bool", ["N", 5])}
    arrays = {"x": A, "i": np.array(2, np.int32), "j": np.array([1, -1]), "mask": A[..., 0] > 0}

    def indexed(x, i, j, mask):
        return [x[i], x[:, j], x[i, :, j], x[j, [[0], [1]]], x[1:i], x[mask], x[x > 0]]

    ys = indexed(**inputs)
    computed = evaluate(build(inputs, dict(zip("abcdefg", ys, strict=True))), arrays)
    for y, expected in zip(computed.values(), indexed(**arrays), strict=True):
        np.testing.assert_array_equal(y, expected)


def test_errors():
    x = variable("x", "float32", ["N", 3])
    with pytest.raises(IndexError, match=r"<Value x float32\[Nx3\]> has 2 axes, and there are more indices"):
        x[0, 0, 0]
    with pytest.raises(IndexError, match=r"The index 3 is out of range for axis 1 of <Value x"):
        x[:, [0, 3]]
    with pytest.raises(IndexError, match=r"The index -4 is out of range for axis 1 of <Value x"):
        x[:, -4]
    for key in ("a", 1.5, True):
        with pytest.raises(IndexError, match=rf"<Value x .*> cannot be indexed by {key!r}; whole numbers"):
            x[key]
    with pytest.raises(IndexError, match=r"A mask of shape \(2, 2\) does not fit the axes of <Value x .*> from 0 on"):
        x[np.ones((2, 2), bool)]
    with pytest.raises(IndexError, match=r"is indexed by the truth values <Value Greater .*; index by them alone"):
        x[x[:, 0] > 0, 1]
    with pytest.raises(ValueError, match=r"The rank of <Value x .* is not known"):
        variable("x", "float32", None)[0]


def test_nothing_is_left_of_the_first_element():
    """onnxruntime begins there with a backward slice that begins before it."""
    x = variable("x", "float32", [4, 5, 6])
    for key in (np.s_[-6:-8:-1], np.s_[:, -6::-2], np.s_[-4::-1]):
        np.testing.assert_array_equal(evaluate(build([x], {"y": x[key]}), {"x": A})["y"], A[key])
    x = variable("x", "float32", ["M", "N", 6])
    for key in (np.s_[-6:-8:-1], np.s_[:, -6::-2], np.s_[-4::-1, -2:-4:-1], np.s_[::-1, -1::-1], np.s_[-3::-1, :-3:-1]):
        np.testing.assert_array_equal(evaluate(build([x], {"y": x[key]}), {"x": A})["y"], A[key])


def test_an_index_that_no_slice_and_no_axis_has():
    x = variable("x", "float32", ["N", 3])
    with pytest.raises(ValueError, match=r"The step of a slice is not 0\."):
        x[::0]
    with pytest.raises(IndexError, match=rf"The index {2**70} is out of range for <Value x"):
        x[2**70]

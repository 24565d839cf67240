"""Placeholders: made of arrays, named, and arrays that fit them or do not."""

import re

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.graph import variable
from ortpartial.nn.placeholders import check_sizes, convert, name_all, to_placeholder

INPUTS = {"x": variable("x", "float32", ["N", 2]), "i": variable("i", "int64", ["N"])}


def test_of_arrays():
    v = to_placeholder(np.ones((5, 3)), "x", np.dtype(np.float32))
    assert (v.dtype, v.shape) == (np.float32, ("N", 3))
    assert to_placeholder(np.ones(4, int), "i", np.dtype(np.float32)).dtype == np.int64
    assert to_placeholder(2.0, "s", None).shape == ()
    with pytest.raises(DataError, match="'x' is a object, where a placeholder or an array was expected"):
        to_placeholder(object(), "x", None)


def test_converted():
    arrays = convert([[[1, 2], [3, 4]], [0, 1]], INPUTS)
    assert [a.dtype for a in arrays.values()] == [np.float32, np.int64]


@pytest.mark.parametrize(("arrays", "message"), [
    ([np.ones((2, 3)), [0, 1]], "The input 'x' has the shape (2, 3), and the module was compiled for float32[Nx2]."),
    ([np.ones(2), [0, 1]], "The input 'x' has the shape (2,)"),
    ([np.ones((2, 2)), [0]], "The size 'N' is 2 in 'x' and 1 in 'i'")])
def test_what_does_not_fit(arrays, message):
    with pytest.raises(DataError, match=re.escape(message)):
        convert(arrays, INPUTS)


def test_sizes():
    assert check_sizes(INPUTS, [np.ones((3, 2)), np.ones(3)]) == {"N": 3}


def test_names():
    v = variable("mine", "float32", [])
    assert name_all([v, 1], ["a", "b"], "input", []) == ["mine", "b"]
    assert name_all([1], [], "input", ["input"]) == ["input_"]
    assert name_all([1, 2], [], "target", []) == ["target_0", "target_1"]

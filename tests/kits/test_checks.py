"""Refusals of training kits: numbers out of range, data that are no dict, and arrays that are none."""

import re

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.kits.checks import check_inputs, check_mapping, to_array
from ortpartial.kits.manifest import Tensor


def test_data():
    assert check_mapping({"x": 1}) == {"x": 1}
    with pytest.raises(DataError, match=r"The data are of type list; expected a dict with an array for each input"):
        check_mapping([1])


@pytest.mark.parametrize(("data", "message"), [
    ([[1], [1, 2]], "Input 'x' has rows of 1 to 2 elements, where all were expected to have as many; pad them, "
     "as pad_rows does with tokens."),
    (np.ma.masked_array([1, 2], [False, True]), "Input 'x' has masked values, which a step would take for numbers")])
def test_arrays(data, message):
    with pytest.raises(DataError, match=re.escape(message)):
        to_array("x", data)
    assert to_array("x", [1, 2]).tolist() == [1, 2]


def test_inputs_of_a_graph():
    """In its order and dtypes; what it does not read may be there if it is expected."""
    tensors = [Tensor("x", "float32", ("N", 1)), Tensor("t", "int64", ("N",))]
    arrays = check_inputs(tensors, {"t": [1, 2], "x": [[1], [2]], "more": 3}, ("x", "more"))
    assert [(n, a.dtype.name, a.shape) for n, a in arrays.items()] == [("x", "float32", (2, 1)), ("t", "int64", (2,))]
    with pytest.raises(DataError, match="Unknown input: 'more'"):
        check_inputs(tensors, {"t": [1, 2], "x": [[1], [2]], "more": 3})
    with pytest.raises(DataError, match="The inputs have different numbers of rows: 'x' has 2, 't' has 1"):
        check_inputs(tensors, {"t": [1], "x": [[1], [2]]})

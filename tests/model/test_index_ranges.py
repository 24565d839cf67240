"""Ranges of indices and labels, and the error that names the input, the range and the node."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.graph import op, variable
from ortpartial.model.index_ranges import check_empty, check_indices, find_indices, index_ranges

X, I = variable("x", "float32", ["N", 5]), variable("i", "int64", [2])
TABLE = variable("table", "float32", [7, 3])
T = variable("t", "int64", ["N"])


def test_indices():
    y = op.Gather(TABLE, op.Reshape(op.Cast(I, to=7), [1, 2]))
    ((name, found),) = index_ranges({"i": I, "x": X}, [y]).items()
    assert (name, found.what, found.low, found.high) == ("i", "indices", -7, 6)
    assert find_indices({"i": I, "x": X, "t": T}, [y, X + 1]) == {"i"}


def test_the_narrowest_of_two_tables():
    outputs = [op.Gather(TABLE, I), op.Gather(TABLE, I, axis=1)]
    assert index_ranges({"i": I}, outputs)["i"].high == 2
    assert index_ranges({"i": I}, outputs[::-1])["i"].high == 2


def test_labels():
    ranges = index_ranges({"t": T}, [op.SoftmaxCrossEntropyLoss(X, T, ignore_index=-100, n_outputs=1)[0]])
    assert (ranges["t"].what, ranges["t"].low, ranges["t"].high, ranges["t"].ignored) == ("labels", 0, 4, -100)
    check_indices(ranges, {"t": np.array([0, 4, -100])})
    check_indices(ranges, {"t": np.array([], np.int64)})
    with pytest.raises(DataError, match=r"^Input 't' of a SoftmaxCrossEntropyLoss has a label that is not in 0 to 4 "
                                        r"or -100: 5\.$"):
        check_indices(ranges, {"t": np.array([0, 5, -100])})


def test_a_size_that_is_not_known_has_no_range():
    assert index_ranges({"i": I}, [op.Gather(X, I)]) == {}
    assert find_indices({"i": I}, [op.Gather(X, I)]) == {"i"}


def test_inputs_without_elements():
    y = op.Einsum(X, X, equation="nd,md->nm")
    check_empty([X + 1], {"x": np.zeros((0, 5))})
    with pytest.raises(DataError, match=r"Input 'x' has no elements, which crashes .*Einsum.*; leave the batch out\."):
        check_empty([y], {"x": np.zeros((0, 5))})

"""Rows: arrays of equally many rows, their batches, and outputs of several batches."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.nn.rows import concatenate, cut, to_arrays


def test_batches_in_an_order():
    x, y = np.arange(5), np.arange(10).reshape(5, 2)
    batches = [[a.tolist() for a in batch] for batch in cut([x, y], np.array([4, 0, 2]), 2)]
    assert batches == [[[4, 0], [[8, 9], [0, 1]]], [[2], [[4, 5]]]]


def test_outputs_of_several_batches():
    parts = [(2, {"a": np.ones((2, 3))}), (1, {"a": np.zeros((1, 3))})]
    assert concatenate(parts)["a"].shape == (3, 3)
    with pytest.raises(DataError, match=r"'output' has the shape \(\) for a batch of 2 rows, so that those of several "
                                        r"batches are not one; predict without batch_size\."):
        concatenate([(2, np.ones(()))])


def test_arrays_by_name():
    arrays = to_arrays({"z": [1, 2], "x": [[3], [4]]}, ["x", "z"], "X")
    assert [a.shape for a in arrays] == [(2, 1), (2,)]
    with pytest.raises(DataError, match=r"X: the arrays differ in their number of rows: x 1, z 2\."):
        to_arrays(([1], [1, 2]), ["x", "z"], "X")

"""Which data are batches, and how many an epoch has."""

import array

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.execution.batches import count_batches, is_batches

A = np.ones((2, 3))


@pytest.mark.parametrize(("data", "expected"), [
    (A, False), ({"x": A}, False), ("abc", False), (array.array("d", [1, 2]), False), ([[1, 2], [3, 4]], False),
    ([], False),
    ([(A, A), (A, A)], True), ([{"x": A}], True), (iter([(A, A)]), True), (range(3), False), (3, False)])
def test_batches(data, expected):
    assert is_batches(data) == expected


@pytest.mark.parametrize(("X", "y", "X_val", "expected"), [
    (np.ones((21, 2)), np.ones(21), None, 3), (np.ones((21, 2)), np.ones(21), 0.3, 2),
    ({"x": np.ones((5, 2))}, 1, None, 1), ([1, 2, 3], None, None, 3)])
def test_counts(X, y, X_val, expected):
    assert count_batches(X, y, 10, X_val) == expected


def test_an_iterable_of_unknown_length():
    with pytest.raises(SettingError, match=r"X has no len\(\) and does not say how many batches it gives"):
        count_batches(iter([1]), None, 10)

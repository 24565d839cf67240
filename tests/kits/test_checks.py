"""What training kits refuse: numbers out of range, data that are no dict, and arrays that are none."""

import re

import numpy as np
import pytest

from ortpartial.exceptions import DataError, SettingError
from ortpartial.kits.checks import check_mapping, check_whole, to_array


def test_whole_numbers():
    number = check_whole("steps", np.int64(3), 0)
    assert (number, type(number)) == (3, int)
    assert check_whole("seed", 7, 0, 7) == 7


@pytest.mark.parametrize(("number", "high", "message"), [
    (-1, None, "steps is a whole number of at least 0, not -1."), (8, 7, "steps is a whole number from 0 to 7, not 8."),
    (1.0, None, "steps is a whole number of at least 0, not 1.0."),
    (True, None, "steps is a whole number of at least 0, not True.")])
def test_numbers_out_of_range(number, high, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        check_whole("steps", number, 0, high)


def test_data():
    assert check_mapping({"x": 1}) == {"x": 1}
    with pytest.raises(DataError, match=r"The data are of type list; expected a dict with an array for each input"):
        check_mapping([1])


@pytest.mark.parametrize(("data", "message"), [
    ([[1], [1, 2]], "Input 'x' is no array: are its rows of several lengths?"),
    (np.ma.masked_array([1, 2], [False, True]), "Input 'x' has masked values, which a step would take for numbers")])
def test_arrays(data, message):
    with pytest.raises(DataError, match=re.escape(message)):
        to_array("x", data)
    assert to_array("x", [1, 2]).tolist() == [1, 2]

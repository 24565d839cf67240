"""What training kits refuse: numbers out of range, data that are no dict, and arrays that are none."""

import re

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.kits.checks import check_mapping, to_array


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

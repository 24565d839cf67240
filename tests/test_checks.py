"""Checks of settings."""

import math
from fractions import Fraction

import numpy as np
import pytest

from ortpartial.checks import check_count, check_flag, describe_range, is_whole, to_number
from ortpartial.exceptions import SettingError


@pytest.mark.parametrize("value", [1, 2**70, np.int8(1), np.uint64(2**63)])
def test_whole(value):
    assert is_whole(value, low=1)
    assert check_count("n", value) == value
    assert type(check_count("n", value)) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, "1", None, 1j, np.float32(1), [1], np.array([1])])
def test_not_whole(value):
    assert not is_whole(value)


def test_range_of_whole_numbers():
    assert [is_whole(n, low=0, high=2) for n in (-1, 0, 2, 3)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("number", "limits", "message"),
    [
        (0, (), "n is a whole number of at least 1, not 0."),
        (2.0, (), "n is a whole number of at least 1, not 2.0; did you mean 2?"),
        (0.0, (), "n is a whole number of at least 1, not 0.0."),
        (math.nan, (), "n is a whole number of at least 1, not nan."),
        (math.inf, (), "n is a whole number of at least 1, not inf."),
        (True, (), "n is a whole number of at least 1, not True."),
        (5, (0, 4), "n is a whole number from 0 to 4, not 5."),
        ("3", (0,), "n is a whole number of at least 0, not '3'."),
    ],
)
def test_wrong_count(number, limits, message):
    with pytest.raises(SettingError) as e:
        check_count("n", number, *limits)
    assert str(e.value) == message


@pytest.mark.parametrize("value", [0.5, Fraction(1, 2), np.float16(0.5)])
def test_number(value):
    number = to_number(value, above=0, below=1)
    assert number == 0.5
    assert type(number) is float


@pytest.mark.parametrize("value", [True, "0.5", None, 1j, math.nan, math.inf, -math.inf, 10**400, np.array([0.5])])
def test_not_a_finite_number(value):
    assert to_number(value) is None


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [({"above": 0}, 1, 0), ({"low": 0}, 0, -1), ({"below": 1}, 0, 1), ({"high": 1}, 1, 2)],
)
def test_range_of_numbers(bounds, inside, outside):
    assert to_number(inside, **bounds) == inside
    assert to_number(outside, **bounds) is None


def test_words_of_ranges():
    assert describe_range() == ""
    assert describe_range(above=0, high=0.5) == "more than 0 and at most 0.5"


@pytest.mark.parametrize(("value", "flag"), [(True, True), (np.False_, False), (1, True), (0, False)])
def test_flag(value, flag):
    assert check_flag("on", value) is flag


@pytest.mark.parametrize("value", ["no", 2, None, 1.0])
def test_not_a_flag(value):
    with pytest.raises(SettingError, match=f"^on is True or False, not {value!r}\\.$"):
        check_flag("on", value)

"""Checks of settings."""

import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ortpartial.checks import (
    check_callable,
    check_choice,
    check_count,
    check_element_type,
    check_flag,
    check_names,
    check_path,
    check_real,
    check_whole,
    describe_range,
    is_whole,
    to_generator,
    to_number,
    to_tuple,
)
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


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(("check", "value", "message"), [
    (partial(check_choice, choices=("a", "b", "c")), "d", "n is 'a', 'b' or 'c', not 'd'."),
    (partial(check_choice, choices=("a", None)), np.zeros(0), "n is 'a' or None, not array([], dtype=float64)."),
    (partial(check_choice, choices=("a",)), [], "n is 'a', not []."),
    (check_names, 3, "n is a name or a list of names, not 3."),
    (check_names, b"ab", "n is a name or a list of names, not b'ab'."),
    (check_names, np.array(0), "n is a name or a list of names, not array(0)."),
    (check_names, ["a", None], "n has None, where a name, a string, was expected."),
    (check_element_type, "S3", "n is a dtype of numbers, such as 'float32', not 'S3'."),
    (check_element_type, None, "n is a dtype of numbers, such as 'float32', not None."),
    (check_element_type, LOOP, "n is a dtype of numbers, such as 'float32', not [[...]]."),
    (to_generator, LOOP, "n is None, a seed from 0 on or a Generator, not [[...]]."),
    (to_generator, -1, "n is None, a seed from 0 on or a Generator, not -1."),
    (to_generator, [0, "1"], "n is None, a seed from 0 on or a Generator, not [0, '1']."),
    (check_path, b"x", "n is a path, a string or a Path, not b'x'."),
    (check_path, "", "n is a path, a string or a Path, not ''."),
    (check_path, "a\0b", "n is a path, a string or a Path, not 'a\\x00b'."),
    (check_whole, 2.0, "n is a whole number, not 2.0; did you mean 2?"),
    (check_whole, 10**400, "n is beyond 64 bits; a whole number of at most 2**62 in size was expected."),
    (partial(check_whole, low=0), -1, "n is a whole number of at least 0, not -1."),
    (partial(check_real, above=0), math.nan, "n is nan, a finite number more than 0 was expected."),
    (check_real, "1", "n is '1', a finite number was expected."),
    (partial(check_callable, n=2), len, "n is a function of 2 arguments, and <built-in function len> is none."),
    (partial(check_callable, n=1), int, "n is a function of 1 arguments, and <class 'int'> is none."),
    (partial(check_callable, n=1), 3, "n is a function of 1 arguments, and 3 is none."),
])
def test_what_is_refused(check, value, message):
    with pytest.raises(SettingError) as e:
        check("n", value)
    assert str(e.value) == message


@pytest.mark.parametrize(("check", "value", "checked"), [
    (partial(check_choice, choices=("a", None)), None, None), (check_names, np.array(["a"]), ("a",)),
    (check_names, "a", ("a",)), (check_element_type, "bfloat16", np.dtype(ml_dtypes.bfloat16)),
    (check_path, Path("a") / "b", str(Path("a") / "b")),
    (check_whole, np.int8(-3), -3), (check_real, np.float32(0.5), 0.5),
    (partial(check_callable, n=2), max, None), (lambda _, value: to_tuple(value), {1: 2}, (1,))])
def test_what_is_taken(check, value, checked):
    assert check("n", value) == checked


def test_tuples_are_kept():
    names = ("a", "b")
    assert check_names("n", names) is to_tuple(names) is names


@pytest.mark.parametrize("seed", [0, np.int8(3), 2**70, [1, 2], np.array([1, 2]), np.random.SeedSequence(5)])
def test_seeds(seed):
    assert to_generator("n", seed).integers(2**60) == np.random.default_rng(seed).integers(2**60)


def test_a_generator_goes_on():
    rng = np.random.default_rng(0)
    assert to_generator("n", rng) is rng

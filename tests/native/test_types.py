"""Types and numbers in C: a literal has the bits of the number that it stands for."""

import numpy as np
import pytest

from ortpartial.native.types import C_TYPES, literal, suffix

NUMBERS = [0.1, -1 / 3, 1e-45, 3.4e38, 1e7, 1e-3, 123456.789, 0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_literal_has_the_bits_of_its_number(number, dtype):
    text = literal(number, np.dtype(dtype)).strip("()")
    assert text.endswith("f") == (dtype is np.float32)
    assert dtype(text.removesuffix("f")) == dtype(number)
    assert "." in text or "e" in text


def test_numbers_that_have_no_digits():
    f = np.dtype(np.float32)
    assert [literal(x, f) for x in (np.nan, np.inf, -np.inf)] == ["NAN", "INFINITY", "(-INFINITY)"]
    assert literal(-0.0, f) == "(-0.0f)"


def test_whole_numbers():
    """The least of a type has no literal of its own in C."""
    assert literal(-(2**63), np.dtype(np.int64)) == "INT64_MIN"
    assert literal(-(2**31), np.dtype(np.int32)) == "INT32_MIN"
    assert literal(7, np.dtype(np.uint8)) == "UINT8_C(7)"
    assert literal(True, np.dtype(bool)) == "1"


def test_types_and_suffixes():
    assert [suffix(d) for d in map(np.dtype, ("float32", "float64", "int64", "bool"))] == ["f", "d", "i64", "u8"]
    assert C_TYPES[np.dtype("int64")] == "int64_t"

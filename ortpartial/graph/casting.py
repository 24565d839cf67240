"""Casts that keep numbers: numbers that a dtype cannot hold are refused, not wrapped or cut off as by numpy."""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache
from numbers import Number

import numpy as np

from ortpartial.annotations import Data, DTypeLike
from ortpartial.exceptions import DataError

__all__ = ["describe_misfit", "to_dtype"]


@cache
def _limits(dtype: np.dtype) -> tuple[int, int] | None:
    """The least and the largest whole number of a dtype, also of int4 and its kin; None for any other dtype."""
    if dtype.kind == "b":
        return 0, 1
    if not (match := re.fullmatch(r"(u?)int(\d+)", dtype.name)):
        return None
    values = 2 ** int(match[2])
    return (0, values - 1) if match[1] else (-values // 2, values // 2 - 1)


def describe_misfit(array: np.ndarray, dtype: np.dtype) -> str:
    """Describe the elements of an array that a dtype cannot hold, as the predicate of an error.

    Real numbers of any dtype are rounded to the precision of a real dtype, which is no misfit.

    Parameters
    ----------
    array : numpy.ndarray
        Numbers.
    dtype : numpy.dtype
        The dtype that they are to be cast to.

    Returns
    -------
    str
        Empty if the cast keeps all numbers.

    Examples
    --------
    >>> describe_misfit(np.array([3.0, 300.0]), np.dtype("uint8"))
    'holds 300.0, where uint8 holds 0 to 255'
    >>> describe_misfit(np.array(0.5), np.dtype("int64"))
    'is 0.5, a fraction, where int64 was expected'
    """
    verb, limits = "holds" if array.ndim else "is", _limits(dtype)
    if limits is None or not array.size or array.dtype == dtype or np.can_cast(array.dtype, dtype):
        return ""
    if array.dtype.kind == "V":  # bfloat16, int4 and their kin
        array = array.astype(np.float64)
    if array.dtype.kind == "f" and (fractions := array[array != np.trunc(array)]).size:
        least = fractions[0]
        return f"{verb} {least}, {'a fraction, ' if least == least else ''}where {dtype} was expected"
    # As numbers of Python, which compares 2.0**63 with 2**63 - 1 exactly.
    least, most = array.min().item(), array.max().item()
    if limits[0] <= least and most <= limits[1]:
        return ""
    return f"{verb} {least if least < limits[0] else most}, where {dtype} holds {limits[0]} to {limits[1]}"


def read_array(values: Data, what: str, error: type[Exception] = DataError) -> np.ndarray:
    """Read data as numpy does: lists, and tensors of torch, which may have a gradient or a device.

    Parameters
    ----------
    values : array_like
        The data.
    what : str
        What they are, for errors.
    error : type
        The error to raise.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    DataError, or the given error
        Their rows have several lengths, or they are a set, which has no order.

    Examples
    --------
    >>> read_array({1.0, 2.0}, "Input 'x'")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: Input 'x' is a set, which has no order; give a list or an array.
    """
    if type(values) is np.ndarray:
        return values
    if isinstance(values, Set):
        raise error(f"{what} is a {type(values).__name__}, which has no order; give a list or an array.")
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as e:
        lengths = {len(row) for row in values if hasattr(row, "__len__")} if isinstance(values, (list, tuple)) else ()
        if len(lengths) > 1:
            raise error(f"{what} has rows of {min(lengths)} to {max(lengths)} elements, where all were expected to "
                        f"have as many; pad them, as pad_rows does with tokens.") from None
        why = "its rows have several shapes" if "inhomogeneous" in str(e) else str(e).rstrip(".")
        raise error(f"{what} is no rectangular array: {why}.") from None


def to_dtype(values: Data, dtype: DTypeLike, what: str, error: type[Exception] = DataError, *, counts: bool = False
             ) -> np.ndarray:
    """Convert numbers to an array of a dtype that can hold them.

    Parameters
    ----------
    values : array_like
        Numbers; an array of the dtype is returned as it is.
    dtype : numpy dtype or its name
        The dtype.
    what : str
        The name of the numbers in errors.
    error : type
        The error to raise.
    counts : bool
        Whether the numbers are indices, sizes or counts, for which not even 3.0 is taken.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    DataError, or the given error
        The numbers are none, or the dtype cannot hold them.

    Examples
    --------
    >>> to_dtype([1.0, 255], "uint8", "Input 'x'")
    array([  1, 255], dtype=uint8)
    >>> to_dtype(-1, "uint8", "Input 'x'")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: Input 'x' is -1, where uint8 holds 0 to 255.
    """
    array, dtype = read_array(values, what, error), np.dtype(dtype)
    if array.dtype == dtype or dtype.kind in "OSU":
        return array.astype(dtype, copy=False)
    if array.dtype.kind not in ("biufcVO" if dtype.kind == "c" else "biufVO"):
        raise error(f"{what} is {array.dtype}, where {dtype} was expected.")
    if counts and array.size and array.dtype.kind == "f":
        raise error(f"{what} {'holds' if array.ndim else 'is'} {array.flat[0]}, of {array.dtype}, where whole numbers "
                    f"were expected; convert them, such as by astype({str(dtype)!r}).")
    if array.dtype == object:
        return _cast_objects(array, dtype, what, error)
    if misfit := describe_misfit(array, dtype):
        raise error(f"{what} {misfit}.")
    return array.astype(dtype)


def _cast_objects(array: np.ndarray, dtype: np.dtype, what: str, error: type[Exception]) -> np.ndarray:
    """Objects of Python, such as numbers beyond 64 bits, as the equal numbers of a dtype."""
    try:
        cast = array.astype(dtype)
    except (OverflowError, TypeError, ValueError) as e:
        raise error(f"{what} does not fit {dtype}: {str(e).rstrip('.')}.") from None
    changed = array[array != cast] if _limits(dtype) else []
    if wrong := [v for v in changed if isinstance(v, Number)]:  # The text of a number equals none.
        raise error(f"{what} holds {wrong[0]!r}, where {dtype} was expected.")
    return cast

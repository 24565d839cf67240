"""Checks of settings: flags, counts, and numbers in a range."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np

from ortpartial.exceptions import SettingError

__all__ = ["check_count", "check_flag", "describe_range", "is_whole", "to_number"]


def is_whole(value: object, low: int | None = None, high: int | None = None) -> bool:
    """Whether a value is a whole number in a range; True is none, although Python counts it among them.

    Parameters
    ----------
    value : object
        The value, of Python or numpy.
    low, high : int, optional
        The range, with its ends.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_whole(np.int8(3), low=1), is_whole(0, low=1), is_whole(3.0), is_whole(True)
    (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return (low is None or int(value) >= low) and (high is None or int(value) <= high)


def to_number(value: object, *, above: float | None = None, low: float | None = None, below: float | None = None,
              high: float | None = None) -> float | None:
    """A finite number in a range as a float of Python.

    Parameters
    ----------
    value : object
        The value, of Python or numpy.
    above, low, below, high : float, optional
        The range: more than `above`, at least `low`, less than `below`, at most `high`.

    Returns
    -------
    float or None
        None where the value is no finite number, out of range, or True or False.

    Examples
    --------
    >>> to_number(1, above=0), to_number(0, above=0), to_number(True), to_number("1"), to_number(10**400)
    (1.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    is_inside = (math.isfinite(number) and (above is None or number > above) and (low is None or number >= low)
                 and (below is None or number < below) and (high is None or number <= high))
    return number if is_inside else None


def describe_range(*, above: float | None = None, low: float | None = None, below: float | None = None,
                   high: float | None = None) -> str:
    """A range in words, as `to_number` takes it.

    Returns
    -------
    str
        Empty for all numbers.

    Examples
    --------
    >>> describe_range(low=0, below=1)
    'at least 0 and less than 1'
    """
    bounds = (("more than", above), ("at least", low), ("less than", below), ("at most", high))
    return " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)


def check_count(name: str, number: object, low: int = 1, high: int | None = None) -> int:
    """Check a setting that is a whole number in a range.

    Parameters
    ----------
    name : str
        The name of the setting.
    number : object
        An integer of Python or numpy.
    low, high : int
        The range, which ends nowhere where `high` is None.

    Returns
    -------
    int

    Raises
    ------
    SettingError
        It is none, or out of range.

    Examples
    --------
    >>> check_count("batch_size", 10.0)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: batch_size is a whole number of at least 1, not 10.0; did you mean 10?
    """
    if isinstance(number, Integral) and is_whole(number, low, high):
        return int(number)
    limit = f"of at least {low}" if high is None else f"from {low} to {high}"
    meant = int(number) if isinstance(number, float) and number.is_integer() else None
    hint = f"; did you mean {meant}?" if is_whole(meant, low, high) else "."
    raise SettingError(f"{name} is a whole number {limit}, not {number!r}{hint}")


def check_flag(name: str, value: object) -> bool:
    """Check a setting that is True or False.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        True or False, of Python or numpy, or 1 or 0.

    Returns
    -------
    bool

    Raises
    ------
    SettingError
        It is neither, such as the string "no", which is true in Python.

    Examples
    --------
    >>> check_flag("shuffle", np.True_)
    True
    """
    if isinstance(value, (bool, np.bool_, int)) and value in (0, 1):
        return bool(value)
    raise SettingError(f"{name} is True or False, not {value!r}.")

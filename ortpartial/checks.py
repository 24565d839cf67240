"""Checks of settings: flags, counts, numbers in a range, choices, names, dtypes, seeds and paths."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral, Real
from typing import TypeVar, cast

import numpy as np

from ortpartial.exceptions import SettingError

__all__ = ["check_callable", "check_choice", "check_count", "check_element_type", "check_flag", "check_names",
           "check_path", "check_real", "check_whole", "describe_range", "is_whole", "to_generator", "to_number",
           "to_tuple"]

Choice = TypeVar("Choice", bound="str | None")

#: The largest size, count and index: numbers of graphs have 64 bits.
_LARGEST = 2**62


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
    limit = f"from {low} to {high}" if high is not None else "" if low == -_LARGEST else f"of at least {low}"
    meant = int(number) if isinstance(number, float) and number.is_integer() else None
    hint = f"; did you mean {meant}?" if is_whole(meant, low, high) else "."
    raise SettingError(f"{name} is a whole number{limit and f' {limit}'}, not {number!r}{hint}")


def check_whole(name: str, number: object, low: int | None = None) -> int:
    """Check a setting that is a size or an axis: a whole number of 64 bits.

    Parameters
    ----------
    name : str
        The name of the setting.
    number : object
        An integer of Python or numpy.
    low : int, optional
        The least that is allowed.

    Returns
    -------
    int

    Raises
    ------
    SettingError
        It is none, or out of range.

    Examples
    --------
    >>> check_whole("dim", -1)
    -1
    """
    if is_whole(number, _LARGEST) or is_whole(number, high=-_LARGEST):
        raise SettingError(f"{name} is beyond 64 bits; a whole number of at most 2**62 in size was expected.")
    return check_count(name, number, -_LARGEST if low is None else low)


def check_real(name: str, number: object, *, above: float | None = None, low: float | None = None,
                below: float | None = None, high: float | None = None) -> float:
    """Check a setting that is a finite number in a range.

    Parameters
    ----------
    name : str
        The name of the setting.
    number : object
        A number of Python or numpy.
    above, low, below, high : float, optional
        The range: more than `above`, at least `low`, less than `below`, at most `high`.

    Returns
    -------
    float

    Raises
    ------
    SettingError
        It is none, or out of range.

    Examples
    --------
    >>> check_real("p", 2, low=0, high=1)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: p is 2, a finite number at least 0 and at most 1 was expected.
    """
    value = to_number(number, above=above, low=low, below=below, high=high)
    if value is None:
        expected = describe_range(above=above, low=low, below=below, high=high)
        raise SettingError(f"{name} is {number!r}, a finite number{' ' + expected if expected else ''} was expected.")
    return value


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


def check_choice(name: str, value: object, choices: Collection[Choice]) -> Choice:
    """Check a setting that is a string among some.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        Its value.
    choices : collection of str or None
        The strings, with None where it may be left out.

    Returns
    -------
    str or None

    Raises
    ------
    SettingError
        It is another string, or none.

    Examples
    --------
    >>> check_choice("mode", "mim", ("auto", "min", "max"))
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: mode is 'auto', 'min' or 'max', not 'mim'.
    """
    if (value is None or isinstance(value, str)) and value in choices:
        return cast("Choice", value)
    *others, last = map(repr, choices)
    raise SettingError(f"{name} is {', '.join(others)}{' or ' if others else ''}{last}, not {value!r}.")


def check_callable(name: str, value: object, n: int) -> None:
    """Check a setting that is a function of some arguments.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        The function; a class is none.
    n : int
        The number of arguments, each without a name.

    Raises
    ------
    SettingError
        It cannot be called, or not so.

    Examples
    --------
    >>> check_callable("function", abs, 2)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: function is a function of 2 arguments, and <built-in function abs> is none.
    """
    try:
        if not callable(value) or isinstance(value, type):
            raise TypeError(value)
        inspect.signature(value).bind(*range(n))
    except TypeError:
        raise SettingError(f"{name} is a function of {n} arguments, and {value!r} is none.") from None
    except ValueError:  # A function in C may have no signature.
        return


def to_tuple(value: object) -> tuple[object, ...] | None:
    """The elements of an iterable; a tuple is the same object.

    Parameters
    ----------
    value : object
        The value of a setting.

    Returns
    -------
    tuple or None
        None for a string or bytes, and where it cannot be iterated, as an array without axes.

    Examples
    --------
    >>> to_tuple([1, 2]), to_tuple(None), to_tuple(np.array(0))
    ((1, 2), None, None)
    """
    try:
        return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray)) else None
    except TypeError:
        return None


def check_names(name: str, value: object, error: type[Exception] = SettingError) -> tuple[str, ...]:
    """Check a setting that is a name, or several.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        A string, or an iterable of them.
    error : type
        The class of the error.

    Returns
    -------
    tuple of str

    Raises
    ------
    SettingError
        It is something else; or the error that was asked for.

    Examples
    --------
    >>> check_names("freeze", "w"), check_names("freeze", ("a", "b"))
    (('w',), ('a', 'b'))
    """
    if isinstance(value, str):
        return (value,)
    names = to_tuple(value)
    if names is None:
        raise error(f"{name} is a name or a list of names, not {value!r}.")
    if wrong := [n for n in names if not isinstance(n, str)]:
        raise error(f"{name} has {wrong[0]!r}, where a name, a string, was expected.")
    return cast("tuple[str, ...]", names)


def check_element_type(name: str, value: object) -> np.dtype:
    """Check a setting that is the element type of arrays of numbers.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        A dtype of numpy or ml_dtypes, or its name.

    Returns
    -------
    numpy.dtype

    Raises
    ------
    SettingError
        It is no element type, or not numeric.

    Examples
    --------
    >>> check_element_type("dtype", "float")
    dtype('float64')
    """
    try:
        dtype = None if value is None else np.dtype(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError, RecursionError):
        dtype = None
    if dtype is None or dtype.kind not in "biufcV" or dtype.fields or dtype.subdtype or not dtype.itemsize:
        raise SettingError(f"{name} is a dtype of numbers, such as 'float32', not {value!r}.")
    return dtype


def to_generator(name: str, value: object) -> np.random.Generator:
    """The generator of random numbers for a setting, as ``numpy.random.default_rng`` makes it.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        None, a whole number of at least 0, several of them, or a generator of numpy.

    Returns
    -------
    numpy.random.Generator

    Raises
    ------
    SettingError
        It is something else.

    Examples
    --------
    >>> to_generator("random_state", -1)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: random_state is None, a seed from 0 on or a Generator, not -1.
    """
    # numpy 2.2 ends the process at a list that holds itself.
    is_nested = isinstance(value, Sequence) and not all(is_whole(n, 0) for n in value)
    try:
        if isinstance(value, (str, bytes, bool)) or is_nested:
            raise TypeError(value)
        return np.random.default_rng(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise SettingError(f"{name} is None, a seed from 0 on or a Generator, not {value!r}.") from None


def check_path(name: str, value: object) -> str:
    """Check a setting that is the path of a file or a folder.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        A string or an ``os.PathLike``.

    Returns
    -------
    str

    Raises
    ------
    SettingError
        It is neither, empty, or has a NUL, which no system takes.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_path("folder", Path("runs"))
    'runs'
    """
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise SettingError(f"{name} is a path, a string or a Path, not {value!r}.")
    return path

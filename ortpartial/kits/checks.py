"""Checks of what training kits are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpartial.exceptions import DataError, SettingError

__all__ = ["check_mapping", "check_whole", "to_array"]


def check_whole(name: str, number: object, low: int, high: int | None = None) -> int:
    """Check that a setting is a whole number within a range.

    Parameters
    ----------
    name : str
        The setting.
    number : object
        Its value.
    low, high : int
        The range, which ends nowhere where `high` is None.

    Returns
    -------
    int

    Raises
    ------
    SettingError
        It is none.
    """
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < low or (
            high is not None and number > high):
        limit = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise SettingError(f"{name} is a whole number {limit}, not {number!r}.")
    return int(number)


def check_mapping(data: object) -> Mapping[str, Any]:
    """Check that data are arrays by name.

    Parameters
    ----------
    data : object

    Returns
    -------
    dict of str to object

    Raises
    ------
    DataError
        They are not.
    """
    if not isinstance(data, Mapping):
        raise DataError(f"The data are of type {type(data).__name__}; expected a dict with an array for each input, by "
                        f"its name.")
    return data


def to_array(name: str, data: object) -> np.ndarray:
    """The array of an input.

    Parameters
    ----------
    name : str
        The input.
    data : array_like
        Its values.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    DataError
        numpy has no array of them, or some of them are masked.
    """
    try:
        array = np.asarray(data)
    except (TypeError, ValueError):
        raise DataError(f"Input {name!r} is no array: are its rows of several lengths?") from None
    if np.ma.is_masked(data):
        raise DataError(f"Input {name!r} has masked values, which a step would take for numbers; fill them first.")
    return array

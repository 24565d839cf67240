"""Checks of what training kits are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpartial.exceptions import DataError

__all__ = ["check_mapping", "to_array"]


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

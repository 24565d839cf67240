"""Checks of the arguments of training kits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.execution import Arrays
from ortpartial.graph import read_array, to_dtype
from ortpartial.model import match_names

from .manifest import Tensor

__all__ = ["check_inputs", "check_mapping", "to_array"]


def check_inputs(tensors: Sequence[Tensor], data: Mapping[str, object], unread: Collection[str] = ()) -> Arrays:
    """Check that data are the inputs of a graph, with as many rows each.

    Parameters
    ----------
    tensors : sequence of Tensor
        The inputs, in the order of bindings.
    data : dict of str to array_like
        By the names of the inputs.
    unread : collection of str
        Further names that there may be.

    Returns
    -------
    dict of str to numpy.ndarray
        In the order of `tensors`.

    Raises
    ------
    DataError
        An input is missing or unknown, or does not fit.
    """
    arrays = {}
    for tensor in tensors:
        if tensor.name not in check_mapping(data):
            raise DataError(f"The data lack the input {tensor.name!r}.")
        array = to_array(tensor.name, data[tensor.name])
        arrays[tensor.name] = to_dtype(array, tensor.dtype, f"Input {tensor.name!r}")
        tensor.check(arrays[tensor.name])
    match_names(list(arrays), [n for n in data if n in arrays or n not in unread])
    rows = {n: len(a) for n, a in arrays.items() if a.ndim}
    if len(set(rows.values())) > 1:
        raise DataError(f"The inputs have different numbers of rows: "
                        f"{', '.join(f'{n!r} has {size}' for n, size in rows.items())}.")
    return arrays


def check_mapping(data: object, name: str = "") -> Mapping[str, Any]:
    """Check that data are arrays by name.

    Parameters
    ----------
    data : object
        The data.
    name : str
        The argument that they are, where a call takes several.

    Returns
    -------
    dict of str to object

    Raises
    ------
    DataError
        They are not.
    """
    if not isinstance(data, Mapping):
        subject = f"{name} is" if name else "The data are"
        raise DataError(f"{subject} of type {type(data).__name__}; expected a dict with an array for each input, by "
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
    array = read_array(data, f"Input {name!r}")
    if np.ma.is_masked(data):
        raise DataError(f"Input {name!r} has masked values, which a step would take for numbers; fill them first.")
    return array

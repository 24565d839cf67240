"""Rows: arrays with a row for each example, their batches, and the joined outputs of several batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError
from ortpartial.execution import SparseRows, wrap_sparse
from ortpartial.graph import read_array

from .nested import Nested, flatten, rebuild

__all__ = ["Rows", "concatenate", "cut", "to_array", "to_arrays"]

#: What a step reads: inputs, then targets.
Rows = list[np.ndarray]


def cut(arrays: Sequence[np.ndarray], order: np.ndarray, size: int) -> Iterator[list[np.ndarray]]:
    """The rows of each batch."""
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield [a[rows] for a in arrays]


def concatenate(parts: Sequence[tuple[int, Nested]]) -> Nested:
    """The outputs for all rows, from the number of rows and the outputs of each batch.

    Raises
    ------
    DataError
        An output has no row for each row.
    """
    leaves = [flatten(outputs, "output") for _, outputs in parts]
    for (rows, _), part in zip(parts, leaves, strict=True):
        if unlike := [n for n, a in part.items() if a.shape[:1] != (rows,)]:
            raise DataError(f"{unlike[0]!r} has the shape {part[unlike[0]].shape} for a batch of {rows} rows, so that "
                            f"those of several batches are not one; predict without batch_size.")
    return rebuild(parts[0][1], "output", {n: np.concatenate([part[n] for part in leaves]) for n in leaves[0]})


def to_arrays(data: Data, names: Sequence[str], what: str) -> Rows:
    """An array for each name, of equally many rows.

    Parameters
    ----------
    data : array_like, or sequence or dict of them
        The array, or an array for each name.
    names : sequence of str
        The names.
    what : str
        The name of the data in errors.

    Returns
    -------
    list of numpy.ndarray

    Raises
    ------
    DataError
        There is another number of arrays, or of rows.
    """
    arrays = _list_arrays(data, names, what)
    for name, a in zip(names, arrays, strict=True):
        if not a.ndim or a.dtype == object:
            raise DataError(f"{what}: {name!r} is no array with a row for each example.")
    if len({len(a) for a in arrays}) > 1:
        sizes = ", ".join(f"{n} {len(a)}" for n, a in zip(names, arrays, strict=True))
        raise DataError(f"{what}: the arrays differ in their number of rows: {sizes}.")
    return arrays


def _list_arrays(data: Data, names: Sequence[str], what: str) -> Rows:
    """The array for each name."""
    if isinstance(data, Mapping):
        if missing := [n for n in names if n not in data]:
            raise DataError(f"{what} has no {missing[0]!r}; it has {', '.join(map(repr, data))}.")
        return [to_array(data[n], f"{what}: {n!r}") for n in names]
    if len(names) == 1:
        return [to_array(data, what)]
    if not isinstance(data, (tuple, list)) or len(data) != len(names):
        raise DataError(f"{what} takes {len(names)} arrays, {', '.join(names)}, as a tuple or by name.")
    return [to_array(a, f"{what}: {n!r}") for n, a in zip(names, data, strict=True)]


def to_array(data: Data, what: str) -> np.ndarray:
    """An array of numbers, or the wrapped rows of a sparse matrix.

    Parameters
    ----------
    data : array_like
        The numbers.
    what : str
        What they are called in errors.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    DataError
        It is text, a set, or has rows of several lengths.
    """
    wrapped = wrap_sparse(data)
    if isinstance(wrapped, SparseRows):
        return wrapped  # type: ignore[return-value]
    array = read_array(wrapped, what)
    if array.dtype.kind in "US":
        raise DataError(f"Text was given, such as {str(array.flat[0])!r}, where numbers were expected; number the "
                        f"classes, as np.unique(y, return_inverse=True)[1] does." if array.size else
                        "An array of text was given, where numbers were expected.")
    return array

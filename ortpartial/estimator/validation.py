"""Do X and y fit the model? Arrays in the shape and dtype that the graph declares, or one clear error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.graph import Value
from ortpartial.model import match_names

__all__ = ["check_inputs", "check_sample_weight", "check_target", "columns"]


#: Elements, or rows of what is strided, that are looked at at once.
_PIECE = 2**20


def _array(data: Any, dtype: np.dtype, what: str, finite: bool = True) -> np.ndarray:
    """An array of this dtype, contiguous, without NaN or infinity."""
    if data is None:
        raise DataError(f"{what} is None, where an array of {dtype} was expected.")
    if table := columns(data):
        return _stacked(table, dtype, what, finite)
    try:
        array = np.asarray(data)
    except ValueError as e:
        raise DataError(f"{what} is no rectangular array: {str(e).rstrip('.')}.") from None
    if array.dtype == object:
        try:
            array = array.astype(dtype)
        except (TypeError, ValueError):
            wrong = next((v for v in array.flat if not isinstance(v, Number)), array.flat[0])
            raise DataError(f"{what} holds {type(wrong).__name__}, where {dtype} was expected.") from None
    if array.dtype.kind not in "biuf" and array.dtype != dtype:
        raise DataError(f"{what} has dtype {array.dtype}, where {dtype} was expected; encode it as numbers first.")
    if array.dtype.kind == "f" and finite and not _is_finite(array):
        raise DataError(f"{what} contains NaN or infinity; impute or drop those rows.")
    if dtype.kind in "iu" and array.dtype.kind == "f" and (array != np.floor(array)).any():
        raise DataError(f"{what} holds fractions, where {dtype} was expected.")
    with np.errstate(over="ignore"):
        cast = np.asarray(array, dtype=dtype, order="C")
    if cast is not array and dtype.kind == "f" and array.dtype.kind == "f" and not _is_finite(cast):
        raise DataError(f"{what} holds numbers too large for {dtype}.")
    return cast


def columns(data: Any) -> dict[Any, Any] | None:
    """The columns of a table by their names, or None for what is no table.

    Parameters
    ----------
    data : object
        A table of pandas, polars or pyarrow, or any object with ``__array__``, the names of its columns, and a column
        for each name. None of these libraries is imported.

    Returns
    -------
    dict or None

    Raises
    ------
    DataError
        Two columns have one name.
    """
    if not hasattr(data, "__array__"):
        return None
    names = getattr(data, "column_names", None)  # pyarrow's `columns` are the columns
    names = getattr(data, "columns", None) if names is None else names
    if names is None:
        return None
    if twice := [n for n, times in Counter(names).items() if times > 1]:
        raise DataError(f"The table has two columns of the name {twice[0]!r}; rename one.")
    return {n: data[n] for n in names}


def _stacked(table: Mapping[Any, Any], dtype: np.dtype, what: str, finite: bool) -> np.ndarray:
    """The columns of a table beside one another: each is looked at by itself, and an error names it."""
    whose = what[0].lower() + what[1:]
    return np.stack([_array(c, dtype, f"Column {n!r} of {whose}", finite) for n, c in table.items()], axis=1)


def _as_declared(column: Any, declared: Sequence[int | str | None] | None) -> np.ndarray:
    """A column as a matrix of one column where that is what an input declares."""
    array = np.asarray(column)
    return array[:, None] if declared is not None and len(declared) == 2 and array.ndim == 1 else array


def _is_finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor infinity, looked up in pieces: the whole may be larger than the memory."""
    flat = array.reshape(-1) if array.flags.c_contiguous else np.atleast_1d(array)
    return all(np.isfinite(flat[i : i + _PIECE]).all() for i in range(0, len(flat), _PIECE))


def check_inputs(inputs: Mapping[str, Value], X: Any) -> tuple[dict[str, np.ndarray], int]:
    """Arrays for the inputs of a graph.

    Parameters
    ----------
    inputs : dict of str to Value
        What the graph reads.
    X : array_like, table, or dict of str to array_like
        A dict where there are several inputs, or a table with a column for each, whose others are not read. Shape
        (rows, ...), the sizes that the inputs declare.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
    rows : int

    Raises
    ------
    DataError
        An input is missing or unknown, has another shape or length than declared, or holds what is no finite number.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> check_inputs({"x": variable("x", "float32", ["N", 2])}, [[1, 2, 3]])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: Input 'x' has shape (1, 3), where (N, 2) was expected.
    """
    if not isinstance(X, Mapping) and len(inputs) == 1:
        X = {next(iter(inputs)): X}
    elif not isinstance(X, Mapping):
        if (table := columns(X)) is None:
            raise DataError(f"The model has the inputs {', '.join(map(repr, inputs))}; give a dict of arrays by name.")
        X = {n: _as_declared(c, inputs[n].shape) for n, c in table.items() if n in inputs}
    match_names(inputs, X)
    arrays = {n: _array(X[n], v.dtype, f"Input {n!r}") for n, v in inputs.items()}
    for n, v in inputs.items():
        _check_shape(arrays[n].shape, v.shape, f"Input {n!r}")
    lengths = {n: len(a) for n, a in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"The inputs have different numbers of rows: {lengths}.")
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise DataError("There are no rows in X.")
    return arrays, rows


def _check_shape(shape: tuple[int, ...], declared: Sequence[int | str | None] | None, what: str) -> None:
    """The rank is the declared one, and so is every static size but that of the rows."""
    if declared is None:
        return
    if not declared:
        raise DataError(f"{what} is a scalar in the model; rows need an axis of their own.")
    wanted = "(" + ", ".join("?" if d is None else str(d) for d in declared) + ("," if len(declared) == 1 else "") + ")"
    fits = len(shape) == len(declared) and all(
        not isinstance(d, int) or s == d for s, d in zip(shape[1:], declared[1:], strict=False)
    )
    if not fits:
        raise DataError(f"{what} has shape {shape}, where {wanted} was expected.")


def check_target(y: Any, dtype: np.dtype, shape: Sequence[int | str | None] | None, rows: int, what: str = "y",
                 classes: int | None = None) -> np.ndarray:
    """The target of an output, in the shape that its loss expects.

    Parameters
    ----------
    y : array_like
        Numbers or labels.
    dtype : numpy.dtype
        What the loss reads.
    shape : sequence of int, str or None
        What the loss expects; the first size is the number of rows.
    rows : int
        How many rows X has.
    what : str
        What to call it in errors.
    classes : int, optional
        Labels are checked to be in ``0 ... classes - 1``: a label out of range would read foreign memory.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    DataError
        Another length than X, a size that does not fit, labels out of range, or what is no finite number.
    """
    array = _array(y, dtype, what)
    if array.ndim == 0 or len(array) != rows:
        raise DataError(f"{what} has {array.shape[0] if array.ndim else 'no'} rows and X has {rows}.")
    if shape is not None:
        rest = shape[1:]
        if all(isinstance(d, int) for d in rest):
            wanted = (rows, *(d for d in rest if isinstance(d, int)))
            if array.size != np.prod(wanted):
                raise DataError(f"{what} has shape {array.shape}, where {wanted} was expected, as the output has.")
            array = array.reshape(wanted)
        elif array.ndim != len(shape):
            raise DataError(f"{what} has {array.ndim} axes, where {len(shape)} were expected.")
    if classes is not None and array.size and not 0 <= array.min() <= array.max() < classes:
        found = f"{array.min()} to {array.max()}"
        raise DataError(f"{what} has labels from {found}, where 0 to {classes - 1} were expected.")
    return array


def check_sample_weight(w: Any, dtype: np.dtype, rows: int) -> np.ndarray:
    """Weights of the rows: one a row, not negative.

    Parameters
    ----------
    w : array_like
        Weights, of shape (rows,) or (rows, 1).
    dtype : numpy.dtype
        What the graph reads.
    rows : int
        How many rows X has.

    Returns
    -------
    numpy.ndarray
        Shape (rows,).

    Raises
    ------
    DataError
        Another length than X, negative weights, or what is no finite number.
    """
    array = _array(w, dtype, "sample_weight")
    if array.size != rows:
        raise DataError(f"sample_weight has {array.size} elements and X has {rows} rows.")
    if (array < 0).any():
        raise DataError(f"sample_weight has negative weights, the least is {array.min()}.")
    return array.reshape(rows)

"""Rows of data for a stored training: read from a file, counted, selected and split."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortpartial.exceptions import DataError, FileMissingError

from .npz import StoredArray, open_arrays
from .session import TrainingSession
from .tables import TABLES, read_table

__all__ = ["count_rows", "read_rows", "select_rows", "split_rows"]

#: Arrays of shape (rows, ...) by the names of inputs; an array without axes is the same for every row.
Rows = Mapping[str, np.ndarray]


def read_rows(path: str | os.PathLike[str], session: TrainingSession) -> dict[str, np.ndarray]:
    r"""Read arrays for the inputs of a session from a file.

    Parameters
    ----------
    path : path
        An ``.npz`` file with an array for each input; or a ``.csv`` file whose first line names the columns, or a
        ``.parquet`` or ``.arrow`` file. A column named like an input feeds it, and all others, in their order, feed the
        only input that is left.
    session : TrainingSession
        Says which inputs a step reads, and their shapes.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    DataError
        The file is not there, has another format, is damaged, lacks an input, or has different numbers of rows.
    RuntimeMissingError
        pyarrow is not installed, and the file needs it.
    OSError
        It cannot be read.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[0.0], [0.0]], hint="w")
    >>> session = TrainingSession(OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w})).get_training_onnx())
    >>> _ = Path("data.csv").write_text("height,y_target,width\n1,5,2.5\n3,7,4\n")
    >>> {n: a.tolist() for n, a in read_rows("data.csv", session).items()}
    {'x': [[1.0, 2.5], [3.0, 4.0]], 'y_target': [[5], [7]]}
    """
    path = Path(path)
    if not path.exists():
        raise FileMissingError(f"There is no file {str(path)!r}; give an .npz or a .csv file of rows.")
    if path.suffix.lower() not in TABLES:
        return _read_arrays(path, session)
    arrays = _arrange(read_table(path), session)
    _check(arrays, session, path)
    return {n: arrays[n] for n in session.inputs}


def _read_arrays(path: Path, session: TrainingSession) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name."""
    with open_arrays(path, session.shapes) as arrays:
        _check(arrays, session, path)
        return {n: a.read() for n, a in arrays.items()}


def _check(arrays: Mapping[str, np.ndarray | StoredArray], session: TrainingSession, path: Path) -> None:
    """Raise an error where an input has no array, or the arrays have different numbers of rows."""
    names = session.inputs
    if missing := [n for n in names if n not in arrays]:
        raise DataError(f"{str(path)!r} lacks {missing[0]!r}; a step reads {', '.join(map(repr, names))}.")
    try:
        count_rows({n: arrays[n] for n in names})
    except DataError as e:
        raise DataError(f"{str(path)!r}: {e}") from None


def _arrange(columns: Rows, session: TrainingSession) -> dict[str, np.ndarray]:
    """Columns as arrays of the inputs: by name, and all others for the only input that is left."""
    arrays = {}
    for name, column in columns.items():
        if name in session.shapes:
            shape = session.shapes[name]
            arrays[name] = column[:, None] if shape is not None and len(shape) == 2 else column
    left = [n for n in session.inputs if n not in arrays]
    others = [column for name, column in columns.items() if name not in arrays]
    if len(left) == 1 and others:
        arrays[left[0]] = np.stack(others, axis=1)
    return arrays


def count_rows(data: Mapping[str, np.ndarray | StoredArray]) -> int:
    """Count the rows of arrays.

    Parameters
    ----------
    data : dict of str to numpy.ndarray
        By name; arrays without axes do not count.

    Returns
    -------
    int

    Raises
    ------
    DataError
        There are none, or the arrays have different numbers of rows.

    Examples
    --------
    >>> count_rows({"x": np.zeros((3, 2)), "y_target": np.zeros(3), "scale": np.array(0.5)})
    3
    """
    sizes = {n: a.shape[0] for n, a in data.items() if a.shape}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{n!r} {size}" for n, size in sizes.items())
        raise DataError(f"The arrays have different numbers of rows: {listed}.")
    rows = next(iter(sizes.values()), 1)
    if not rows:
        raise DataError("There are no rows.")
    return rows


def select_rows(data: Rows, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Select rows of arrays.

    Parameters
    ----------
    data : dict of str to numpy.ndarray
        By name; an array without axes stays as it is.
    rows : numpy.ndarray of int
        The numbers of the rows.

    Returns
    -------
    dict of str to numpy.ndarray
    """
    return {n: a[rows] if a.ndim else a for n, a in data.items()}


def split_rows(data: Rows, share: float, rng: np.random.Generator | None = None
               ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Set a share of the rows apart.

    Parameters
    ----------
    data : dict of str to numpy.ndarray
        By name.
    share : float
        The share, between 0 and 1; at least a row, and not all.
    rng : numpy.random.Generator, optional
        Draws the rows; by default they are the last.

    Returns
    -------
    rest, apart : dict of str to numpy.ndarray

    Raises
    ------
    DataError
        There is only a single row.

    Examples
    --------
    >>> split_rows({"x": np.arange(5)}, 0.4)
    ({'x': array([0, 1, 2])}, {'x': array([3, 4])})
    """
    rows = count_rows(data)
    if rows < 2:
        raise DataError("There is only one row, of which no share can be set apart.")
    order = np.arange(rows) if rng is None else rng.permutation(rows)
    end = rows - min(max(round(share * rows), 1), rows - 1)
    return select_rows(data, np.sort(order[:end])), select_rows(data, np.sort(order[end:]))

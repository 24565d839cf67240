"""Hints: what to do about data that do not fit, as the end of an error message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortpartial.annotations import Data

__all__ = ["hint_encoding", "hint_labels", "hint_shape"]


def hint_shape(shape: Sequence[int], declared: Sequence[int | str | None]) -> str:
    """How an array may be brought into the declared shape; empty where nothing suggests itself.

    Parameters
    ----------
    shape : sequence of int
        The shape of the array.
    declared : sequence of int, str or None
        The shape that was expected, rows first.

    Returns
    -------
    str

    Examples
    --------
    >>> hint_shape((3, 20), ("N", 3)), hint_shape((3,), ("N", 3)), hint_shape((7, 8, 8, 3), ("N", 3, 8, 8))
    ('; transpose it', '; a single row is X[None]', '; move its channels to the front, as X.transpose(0, 3, 1, 2) does')
    """
    def fits(other: Sequence[int]) -> bool:
        return len(other) == len(declared) and all(
            not isinstance(d, int) or n == d for n, d in zip(other[1:], declared[1:], strict=True))

    if fits((1, *shape)):
        return "; a single row is X[None]"
    if fits((*shape, 1)):
        return "; a single column is X[:, None]"
    if len(shape) == 2 and shape[1] > 1 and fits(shape[::-1]):
        return "; transpose it"
    n = len(shape)
    if n > 2 and fits((shape[0], shape[-1], *shape[1:-1])):
        axes = ", ".join(map(str, (0, n - 1, *range(1, n - 1))))
        return f"; move its channels to the front, as X.transpose({axes}) does"
    if n > 2 and fits((shape[0], *shape[2:], shape[1])):
        axes = ", ".join(map(str, (0, *range(2, n), 1)))
        return f"; move its channels to the end, as X.transpose({axes}) does"
    if n > len(declared) == 2 and fits((shape[0], int(np.prod(shape[1:])))):
        return "; flatten its rows, as X.reshape(len(X), -1) does"
    return ""


def hint_encoding(data: Data, what: str) -> str:
    """Advice about content that is no numbers.

    Parameters
    ----------
    data : object
        The data, or one element of them.
    what : str
        What errors call it.

    Returns
    -------
    str

    Examples
    --------
    >>> hint_encoding("data.csv", "Input 'x'")
    '; read the file first, as with numpy.load or pandas.read_csv'
    """
    if isinstance(data, str) and ("." in data or "/" in data):
        return "; read the file first, as with numpy.load or pandas.read_csv"
    if hasattr(data, "__next__"):
        return "; make an array of it, or leave y out and give batches (X, y)"
    if what.startswith("sample_weight"):
        return "; for weights by class give the loss class_weight='balanced', where it has this setting"
    if what.startswith("y"):
        return "; number the classes, as np.unique(y, return_inverse=True)[1] does"
    return "; encode it as numbers first"


def hint_labels(low: float, high: float, classes: int) -> str:
    """Advice about labels that are not 0 to `classes` - 1.

    Parameters
    ----------
    low, high : float
        The least and the largest label.
    classes : int
        The number of classes.

    Returns
    -------
    str

    Examples
    --------
    >>> hint_labels(1, 3, 3), hint_labels(-1, 1, 2)
    ('; subtract 1', '; labels of -1 and 1 become these by y > 0')
    """
    if (low, high) == (1, classes):
        return "; subtract 1"
    if (low, high, classes) == (-1, 1, 2):
        return "; labels of -1 and 1 become these by y > 0"
    return ""

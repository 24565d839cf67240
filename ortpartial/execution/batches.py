"""Batches: which data are an iterable of them, and how many an epoch has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import SettingError

__all__ = ["count_batches", "is_batches"]


def is_batches(X: Data) -> bool:
    """Whether data are an iterable of batches, and not an array, a table or a dict of them.

    A list or tuple holds batches if its first element is a dict, or a tuple or list that holds an array or a dict.

    Parameters
    ----------
    X : object
        The argument of a method of the optimizer.

    Returns
    -------
    bool

    Examples
    --------
    >>> is_batches([[1.0, 2.0], [3.0, 4.0]]), is_batches([(np.ones((2, 3)), np.ones(2))]), is_batches(iter([]))
    (False, True, True)
    """
    if isinstance(X, (str, bytes, Mapping)) or not isinstance(X, Iterable) or _is_array(X):
        return False
    if isinstance(X, (list, tuple, range)):
        first = X[0] if len(X) else None
        return isinstance(first, Mapping) or (
            isinstance(first, (list, tuple))
            and any(isinstance(a, Mapping) or (_is_array(a) and np.ndim(a) > 0) for a in first))
    return True


def _is_array(X: Data) -> bool:
    """Whether numpy reads an object as an array: also tensors of torch, and tables; or it is a sparse matrix."""
    if any(hasattr(X, name) for name in ("__array__", "__array_interface__", "tocsr")):
        return True
    try:
        memoryview(X)
    except TypeError:
        return False
    return True


def count_batches(X: Data, y: Data, batch_size: int, X_val: Data = None) -> int:
    """The number of batches of an epoch; the data are checked later.

    Parameters
    ----------
    X, y : object
        As for `fit`; without `y`, X gives the batches.
    batch_size : int
        Rows of a batch, where `y` is given.
    X_val : object
        As for `fit`: a number is the share of the rows that is not trained.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    SettingError
        X gives batches, and does not say how many.
    """
    whole = next(iter(X.values()), ()) if isinstance(X, Mapping) and y is not None else X
    try:
        count = len(whole)
    except TypeError:
        if y is None and isinstance(X, Iterable):
            raise SettingError("The schedule lasts as long as the training, and X has no len() and does not say how "
                               "many batches it gives; give the schedule their number, as CosineSchedule(n=...)."
                               ) from None
        return 1
    if y is None:
        return max(1, count)
    has_share = X_val is not None and isinstance(X_val, Real)
    held_out = max(1, round(float(X_val) * count)) if has_share else 0
    return max(1, -(-(count - held_out) // batch_size))

"""Foreign data: arguments given by habit in place of arrays or batches, and advice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError

from .batches import is_batches

__all__ = ["refuse_batches", "refuse_foreign"]


def refuse_foreign(data: Data, what: str = "X") -> None:
    """Refuse a path, a set, a class, a function of batches, and a Dataset of single rows.

    Parameters
    ----------
    data : object
        The argument in place of arrays or batches.
    what : str
        Its name in errors.

    Raises
    ------
    DataError
        The data are foreign; the message says which data to give.

    Examples
    --------
    >>> refuse_foreign(lambda: iter([]))
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: X is a function; give the batches themselves, as a list or an iterable ...
    """
    if isinstance(data, (np.ndarray, list, tuple, Mapping)) or data is None:
        return
    if isinstance(data, (str, bytes, os.PathLike)):
        raise DataError(f"{what} is {data!r}, where an array was expected; read the file first, as with numpy.load or "
                        f"pandas.read_csv.")
    if isinstance(data, Set):
        raise DataError(f"{what} is a {type(data).__name__}, which has no order; give a list or an array.")
    if isinstance(data, type):
        raise DataError(f"{what} is the class {data.__name__}; give an object of it.")
    if callable(data) and not isinstance(data, Iterable) and not hasattr(data, "__array__"):
        raise DataError(f"{what} is a function; give the batches themselves, as a list or an iterable that begins anew "
                        f"with every epoch.")
    if _holds_rows(data):
        raise DataError(f"{what} is a {type(data).__name__} of single rows; give a DataLoader of it, as "
                        f"DataLoader(dataset, batch_size=32), or arrays.")


def refuse_batches(data: Data, who: str) -> None:
    """Refuse batches, and what gives them, where arrays are expected.

    Parameters
    ----------
    data : object
        What was given as X, without y.
    who : str
        The estimator, for errors.

    Raises
    ------
    DataError
        It is a list of batches, a DataLoader, a Dataset, or a function.

    Examples
    --------
    >>> refuse_batches(iter([]), "OnnxClassifier")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: OnnxClassifier fits arrays X and y, not a list_iterator; ...
    """
    is_array = isinstance(data, (list, tuple, Mapping, str, os.PathLike)) or hasattr(data, "shape") or data is None
    if is_batches(data) or not (is_array or hasattr(data, "__array__")):
        raise DataError(f"{who} fits arrays X and y, not a {type(data).__name__}; OrtGradientForwardBackwardOptimizer "
                        f"and nn.Module fit batches, such as a DataLoader.")


def _holds_rows(data: Data) -> bool:
    """Whether an object has rows of several parts by number, and no batches, as a Dataset of torch."""
    if hasattr(data, "shape") or hasattr(data, "__array__") or hasattr(data, "__iter__"):
        return False
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data) > 0 and isinstance(
        data[0], (tuple, list, Mapping))

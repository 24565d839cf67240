"""Class weights: by how much the labels of each class count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortpartial.checks import is_whole, to_number, to_tuple
from ortpartial.exceptions import SettingError

__all__ = ["ClassWeights", "balance_classes", "check_class_weight", "check_factors", "list_class_weights"]


class ClassWeights(dict[int, float]):
    """Weights of some classes by their number, which can be hashed, as settings are."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


def check_class_weight(setting: Any) -> tuple[float, ...] | ClassWeights | str | None:
    """Check class weights, and turn them into an object that is compared by value.

    Parameters
    ----------
    setting : array_like, dict of int to float, "balanced" or None
        Numbers that are not negative.

    Returns
    -------
    tuple of float, ClassWeights, str or None

    Raises
    ------
    SettingError
        The setting is none of these, or a number is negative or not finite.

    Examples
    --------
    >>> check_class_weight(np.array([1, 2])), check_class_weight({1: 0.5})
    ((1.0, 2.0), {1: 0.5})
    """
    if setting is None or (isinstance(setting, str) and setting == "balanced"):
        return setting
    expected = "an array with a number for each class, a dict of them by class, 'balanced' or None was expected"
    values = to_tuple(setting.values() if isinstance(setting, Mapping) else setting)
    if values is None or not hasattr(setting, "__len__"):
        raise SettingError(f"class_weight is {setting!r}; {expected}.")
    if wrong := [v for v in values if to_number(v, low=0) is None]:
        raise SettingError(f"class_weight has {wrong[0]!r}, a finite number at least 0 was expected.")
    if not isinstance(setting, Mapping):
        return tuple(float(v) for v in values)  # type: ignore[arg-type]
    if wrong := [k for k in setting if not is_whole(k, low=0)]:
        raise SettingError(f"class_weight is for the class {wrong[0]!r}, a whole number at least 0 was expected.")
    return ClassWeights({int(k): float(v) for k, v in setting.items()})


def list_class_weights(checked: tuple[float, ...] | ClassWeights | str | None, n: int | None) -> np.ndarray | None:
    """List the weight of every class.

    Parameters
    ----------
    checked : tuple of float, ClassWeights, str or None
        As `check_class_weight` returns it; ``"balanced"`` stands for weights that are not known yet.
    n : int or None
        The number of classes, where it is known.

    Returns
    -------
    numpy.ndarray of float64 or None
        A number for each of `n` classes, or for more if there are weights of more; None where all are 1.

    Examples
    --------
    >>> list_class_weights(ClassWeights({1: 0.5}), 3)
    array([1. , 0.5, 1. ])
    """
    if checked is None or isinstance(checked, str):
        return None
    if not isinstance(checked, Mapping):
        return np.array(checked)
    weights = np.ones(max([n or 0, *(k + 1 for k in checked)]))
    for k, v in checked.items():
        weights[k] = v
    return weights


def balance_classes(labels: np.ndarray) -> dict[int, float]:
    """Weigh classes so that each counts the same in all: n / (m nₖ), as scikit-learn does.

    Parameters
    ----------
    labels : numpy.ndarray
        n labels of m classes, nₖ of them of class k.

    Returns
    -------
    dict of int to float

    Examples
    --------
    >>> balance_classes(np.array([0, 0, 2, 0]))
    {0: 0.6666666666666666, 2: 2.0}
    """
    classes, counts = np.unique(labels, return_counts=True)
    weights = labels.size / (len(classes) * counts)
    return dict(zip(classes.tolist(), weights.tolist(), strict=True))


def check_factors(piece: object, name: str) -> float | tuple[float, ...] | None:
    """A setting that is a number, or an array of them, at least 0: in a form that can be hashed.

    Parameters
    ----------
    piece : object
        The object of the setting.
    name : str
        The name of the setting.

    Returns
    -------
    float, tuple of float or None

    Raises
    ------
    SettingError
        An element is no finite number at least 0.
    """
    setting = getattr(piece, name)
    if setting is None:
        return None
    numbers = np.ravel(np.asarray(setting, dtype=object)).tolist()
    if not numbers or any(to_number(v, low=0) is None for v in numbers):
        raise SettingError(f"{type(piece).__name__}: {name} is {setting!r}, a finite number at least 0, or an array of "
                           f"them, was expected.")
    return tuple(map(float, numbers)) if np.ndim(setting) else float(numbers[0])

"""The history of a training, whoever holds it: an optimizer, an estimator, or a list."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from ortpartial.checks import to_tuple
from ortpartial.exceptions import DataError

__all__ = ["read_history"]


def read_history(source: object) -> list[Mapping[str, Any]]:
    """The epochs of a training.

    Parameters
    ----------
    source : object
        An optimizer, an estimator or a `TrainingView`, with a `history_` or `train_losses_`; or their contents: dicts
        or numbers.

    Returns
    -------
    list of dict of str to object
        A record for each epoch, with its number as "epoch", and "loss", "validation_loss" and "learning_rate" where
        known.

    Raises
    ------
    DataError
        There is no history in the object, or no epoch in the history.

    Examples
    --------
    >>> read_history([0.5, 0.25])
    [{'epoch': 1, 'loss': 0.5}, {'epoch': 2, 'loss': 0.25}]
    """
    optimizer = getattr(source, "optimizer_", getattr(source, "optimizer", source))
    epochs = (getattr(source, "history_", None) or getattr(optimizer, "history_", None)
              or getattr(optimizer, "train_losses_", source))
    numbers = None if isinstance(epochs, Mapping) else to_tuple(epochs)
    if numbers is None or not all(isinstance(e, (Mapping, Real)) or (isinstance(e, np.ndarray) and not e.ndim)
                                  for e in numbers):
        raise DataError(f"A history is that of an optimizer or an estimator, or a list of dicts or of losses, not "
                        f"{type(source).__name__}.")
    history: list[Mapping[str, Any]] = [
        {"epoch": i, **e} if isinstance(e, Mapping) else {"epoch": i, "loss": float(e)}  # type: ignore[arg-type]
        for i, e in enumerate(numbers, 1)]
    if not history:
        raise DataError("There is no epoch to draw; call fit first.")
    return history

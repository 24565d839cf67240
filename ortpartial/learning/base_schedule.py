"""The base class of learning rate schedules."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from ortpartial.graph import Value

from .piece import Piece

__all__ = ["PlateauSchedule", "Schedule"]


class Schedule(Piece):
    """η(k): the step size at batch k = 1, 2, ..., counted over all epochs.

    A subclass defines ``__call__(self, eta0, k)``: from the first step size, a
    scalar `Value`, and the number of the batch, an int64 scalar `Value`, to the step size, a scalar `Value` of the
    dtype of `eta0`.

    Examples
    --------
    >>> from ortpartial.learning import resolve_schedule
    >>> class Halving(Schedule):
    ...     def __call__(self, eta0, k):
    ...         return eta0 * cast(2.0 ** -k, eta0)
    >>> resolve_schedule(Halving()) == Halving()
    True
    """

    setting: ClassVar[str] = "schedule"

    @abstractmethod
    def __call__(self, eta0: Value, k: Value) -> Value:
        """The step size at batch k."""

    @property
    def plateau(self) -> PlateauSchedule | None:
        """The schedule in it that reduces the step size where the loss no longer falls, if any."""
        return None

    def over(self, batches: int) -> Schedule:
        """The schedule of a training of so many batches: itself, unless it is to last as long as the training.

        Parameters
        ----------
        batches : int
            Number of batches of the whole training, at least 1.

        Returns
        -------
        Schedule
        """
        return self


class PlateauSchedule(Schedule):
    """A schedule that also follows the losses: after each of them, it may multiply the step sizes that are to come."""

    @property
    @abstractmethod
    def first_memory(self) -> np.ndarray:
        """The memory of `watch` before the first loss."""

    @abstractmethod
    def watch(self, loss: float, scale: float, memory: np.ndarray, eta0: float) -> tuple[float, np.ndarray]:
        """The factor of the step sizes after another loss, and the memory, from both before it."""

"""The base class of learning rate schedules."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ortpartial.graph import Value

from .piece import Piece

if TYPE_CHECKING:
    from .schedules import ReduceOnPlateauSchedule

__all__ = ["Schedule"]


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
    >>> resolve_schedule(Halving) == Halving()
    True
    """

    setting: ClassVar[str] = "schedule"

    @abstractmethod
    def __call__(self, eta0: Value, k: Value) -> Value:
        """The step size at batch k."""

    @property
    def plateau(self) -> ReduceOnPlateauSchedule | None:
        """The schedule in it that reduces the step size where the loss no longer falls, if there is one."""
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

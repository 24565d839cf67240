"""Idle runner: in place of a runner, where a door takes the steps itself."""

from __future__ import annotations

from collections.abc import Callable

from ortpartial.annotations import Data, Same
from ortpartial.runtime import Buffer, FairLock

from .mean import WeightedMean
from .program import RunLocal

__all__ = ["IdleRunner"]


class IdleRunner:
    """A runner without a step, for a loop whose `Overrides.train_step` takes them all.

    Parameters
    ----------
    name, reason : str
        The engine of the steps, and why it was chosen.
    count : callable
        Returns the number of batches seen.
    turn : FairLock
        The turn of the threads that share the weights.
    local : RunLocal
        The options of every run of a thread.
    """

    is_first, is_distributed, changes = True, False, 0

    def __init__(self, name: str, reason: str, count: Callable[[], int], turn: FairLock, local: RunLocal):
        self.name, self.reason, self._count = name, reason, count
        self.turn, self.local, self.mean = turn, local, WeightedMean()
        self.controls: dict[str, Buffer] = {}

    @property
    def iteration(self) -> int:
        """The number of batches seen."""
        return self._count()

    def broadcast(self, value: Same) -> Same:
        """The value of this process."""
        return value

    def synchronize(self) -> None:
        """Nothing to take over."""

    def start(self, data: Data) -> None:
        """Nothing is read."""

    def is_finite(self) -> bool:
        """Whether weights are finite, which the door has checked."""
        return True

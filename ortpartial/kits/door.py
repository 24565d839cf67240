"""The door of a training kit: rows in the order of its format, as the loop of all trainings asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ortpartial.annotations import Data
from ortpartial.execution import Arrays, FitSettings, StepDoor

from .order import draw_order

__all__ = ["KitBatches", "KitDoor"]


@dataclass(frozen=True)
class KitBatches:
    """The batches of the epoch that a kit is in, from where it stands.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        All rows.
    size : int
        The rows of a batch.
    seed : int
        Of their order.
    count_steps : callable
        Returns the number of steps taken since the kit was exported.
    start, end : int
        That number before the first step, and after the last.
    """

    arrays: Arrays
    size: int
    seed: int
    count_steps: Callable[[], int]
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.arrays.values())))

    @property
    def epochs(self) -> int:
        """The number of epochs, of which the first and the last may be parts."""
        each = self.rows // self.size
        return -(-self.end // each) - self.start // each

    def __iter__(self) -> Iterator[tuple[Arrays, None, None]]:
        steps, each = self.count_steps(), self.rows // self.size
        epoch, first = divmod(steps, each)
        order = draw_order(self.seed, epoch, self.rows)
        for start in range(first, min(each, first + self.end - steps)):
            batch = order[start * self.size : (start + 1) * self.size]
            yield {n: a[batch] for n, a in self.arrays.items()}, None, None


class KitDoor(StepDoor):
    """The `Door` of a training kit.

    Parameters
    ----------
    batch_size, is_fixed : object
        As for `StepDoor`.
    check : callable
        From data to the arrays of the inputs of the kit.
    run : callable
        From a batch to the results of a step that is not taken.
    restart : callable, optional
        Returns to the state that the kit was opened with, before a training that starts anew.
    """

    def __init__(self, batch_size: int, is_fixed: bool, check: Callable[[Data], Arrays],
                 run: Callable[[Arrays], dict[str, np.ndarray]], restart: Callable[[], None] | None = None):
        super().__init__(batch_size, is_fixed)
        self.check, self.run, self.restart = check, run, restart

    def reset(self, rng: np.random.Generator, settings: FitSettings) -> None:
        """Start anew, once the loop has checked data and settings."""
        if self.restart is not None:
            self.restart()

    def to_arrays(self, X: Data, y: Data, sample_weight: Data, batch_size: int | None
                  ) -> tuple[dict[str, np.ndarray], int]:
        """The arrays of the inputs, and their number of rows."""
        arrays = dict(self.check(X))
        return arrays, len(next(iter(arrays.values())))

    def evaluate(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The results of a step that is not taken."""
        return self.run(arrays)

    def describe_divergence(self, loss: float, iteration: int, epoch: int) -> str:
        """The message about a loss that is not finite."""
        return (f"The loss of step {iteration} is not finite: the kit needs a smaller step size, or the data hold "
                f"numbers that are none.")

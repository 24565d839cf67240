"""The view of a training that callbacks read: where it is, its last losses, and copies of its weights and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Protocol

import numpy as np

from ortpartial.annotations import Data, Entries, Estimator, Record, State
from ortpartial.exceptions import DataError

from .loop import Loop

__all__ = ["Trainer", "TrainingView", "draw_rows", "view_training"]


class Trainer(Protocol):
    """Protocol of a training that callbacks read and change, at every door.

    Attributes
    ----------
    can_sweep : bool
        Whether a copy of it can try step sizes.
    """

    can_sweep: bool

    @property
    def loop(self) -> Loop:
        """The loop."""

    @property
    def rate(self) -> float:
        """The step size of the next batch."""

    @property
    def base_rate(self) -> float:
        """η₀, before the schedule and `rate_scale`."""

    @property
    def rate_scale(self) -> float:
        """The factor of all step sizes."""

    def scale_rate(self, scale: float) -> None:
        """Multiply all step sizes by a number from the next batch on."""

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copies of the weights that predictions use, by name."""

    def compute_gradients(self, X: Data, y: Data, sample_weight: Data, rng: np.random.Generator | None
                          ) -> dict[str, np.ndarray]:
        """The gradient by each weight, on rows, or on some of the trained rows."""

    def copy_used(self) -> Mapping[str, np.ndarray]:
        """Copies of all arrays that predictions depend on."""

    def restore_used(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite the weights in use with former weights."""

    def capture(self) -> AbstractContextManager[State]:
        """A context in which the training stands still, with all that its next steps depend on, and its history."""


@dataclass(frozen=True)
class TrainingView:
    """A training as it was when `training_view` was called.

    Attributes
    ----------
    epoch, max_iter : int
        Number of epochs trained, over all calls, and the setting.
    iteration : int
        Number of batches seen.
    loss : float or None
        The mean loss of the epoch that runs, or of the last.
    losses : dict of str to float
        The last record of `history_`; empty before the first epoch.
    rate : float
        The step size of the next batch.
    seconds : float
        Since the epoch began.
    optimizer : object
        The optimizer or module that trains, which alone can change it.
    trainer : Trainer
        Its training.
    """

    epoch: int
    max_iter: int
    iteration: int
    loss: float | None
    losses: Entries
    rate: float
    seconds: float
    optimizer: Estimator = field(repr=False)
    trainer: Trainer = field(repr=False)

    @property
    def history(self) -> list[Record]:
        """A copy of the records of all epochs so far."""
        return [dict(record) for record in self.trainer.loop.history]

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the weights of now, by name."""
        return self.trainer.read_weights()

    def gradients(self, X: Data = None, y: Data = None, sample_weight: Data = None, *,
                  rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        """The gradient of the objective by each weight, with the weights of now.

        Parameters
        ----------
        X, y, sample_weight : array_like, optional
            Rows, as for `fit`; by default as many of the trained rows as a batch has, or the last batch of an iterable.
        rng : numpy.random.Generator, optional
            Draws the rows of the training; by default they are the first.

        Returns
        -------
        dict of str to numpy.ndarray
            By the name of the weight.

        Raises
        ------
        DataError
            X or y does not fit the model, or nothing has been trained.
        """
        return self.trainer.compute_gradients(X, y, sample_weight, rng)

    def record(self, **columns: object) -> None:
        """Add columns to the record of the last epoch in `history_`.

        Parameters
        ----------
        **columns : object
            By name; the columns of the training itself remain as they are.
        """
        if records := self.trainer.loop.records:
            records[-1].update({n: v for n, v in columns.items() if n not in records[-1]})


def draw_rows(rows: Mapping[str, np.ndarray], size: int, rng: np.random.Generator | None) -> dict[str, np.ndarray]:
    """As many of the trained rows as a batch has: the first, or rows that are drawn.

    Parameters
    ----------
    rows : dict of str to numpy.ndarray
        The trained rows.
    size : int
        The rows of a batch.
    rng : numpy.random.Generator or None
        Draws them.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    DataError
        Nothing has been trained.
    """
    if not (count := len(next(iter(rows.values()), ()))):
        raise DataError("There are no rows yet of which gradients could be computed; give X and y.")
    size = min(size, count)
    drawn = np.arange(size) if rng is None else rng.choice(count, size, replace=False)
    return {n: a[drawn] for n, a in rows.items()}


def view_training(trainer: Trainer, owner: Estimator) -> TrainingView:
    """Take the view of a training.

    Parameters
    ----------
    trainer : Trainer
        The training.
    owner : object
        The optimizer or module that has it.

    Returns
    -------
    TrainingView
    """
    loop = trainer.loop
    iteration, loss = loop.read_progress()
    last = loop.history[-1] if loop.records else {}
    return TrainingView(loop.n_iter, loop.settings.max_iter, iteration, loss, MappingProxyType(last), trainer.rate,
                        perf_counter() - loop.began, owner, trainer)

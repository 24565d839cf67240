"""The view of a training that callbacks read: where it is, its last losses, and copies of its weights and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError

if TYPE_CHECKING:
    from .training import Training

__all__ = ["TrainingView", "view_training"]


class Trained(Protocol):
    """An object that trains, such as an optimizer."""

    training: Training

    @property
    def learning_rate(self) -> Any: ...

    @property
    def learning_rate_scale_(self) -> float: ...

    def scale_learning_rate(self, scale: float) -> Any: ...

    def set_params(self, **params: Any) -> Any: ...

    @property
    def history_(self) -> list[dict[str, Any]]: ...

    @property
    def learning_rate_(self) -> float: ...

    @property
    def trained_coef_(self) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class TrainingView:
    """What a training was like when `training_view` was called.

    Attributes
    ----------
    epoch, max_iter : int
        Number of epochs trained, over all calls, and the setting.
    iteration : int
        Number of batches seen.
    loss : float or None
        The mean loss of the epoch that runs, or of the last one.
    losses : dict of str to float
        The last record of `history_`; empty before the first epoch.
    rate : float
        The step size of the next batch.
    seconds : float
        Since the epoch began.
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer that trains, which alone can change it: `set_params`, `set_state`.
    """

    epoch: int
    max_iter: int
    iteration: int
    loss: float | None
    losses: Mapping[str, Any]
    rate: float
    seconds: float
    optimizer: Trained = field(repr=False)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A copy of the records of all epochs so far."""
        return self.optimizer.history_

    def weights(self) -> dict[str, np.ndarray]:
        """Copies of the weights of now, by name."""
        return self.optimizer.trained_coef_

    def gradients(self, X: Data = None, y: Data = None, sample_weight: Data = None, *,
                  rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        """The gradient of the objective by each weight, with the weights of now.

        Parameters
        ----------
        X, y, sample_weight : array_like, optional
            Rows, as for `fit`; by default as many of those that are trained as a batch has, or the last batch of an
            iterable.
        rng : numpy.random.Generator, optional
            Draws the rows of the training; by default they are the first ones.

        Returns
        -------
        dict of str to numpy.ndarray
            By the name of the weight.

        Raises
        ------
        DataError
            X or y does not fit the model, or nothing has been trained.
        """
        loop, state = self.optimizer.training.loop, self.optimizer.training.state
        if X is not None:
            return state.compute_gradients(loop.to_arrays(X, y, sample_weight)[0])
        rows = len(next(iter(state.engine.data.values()), ()))
        if not rows:
            raise DataError("There are no rows yet of which gradients could be computed; give X and y.")
        count = min(loop.settings.batch_size, rows)
        drawn = np.arange(count) if rng is None else rng.choice(rows, count, replace=False)
        return state.compute_gradients({n: a[drawn] for n, a in state.engine.data.items()})

    def record(self, **columns: Any) -> None:
        """Add columns to the record of the last epoch in `history_`.

        Parameters
        ----------
        **columns : object
            By name; those that a training has itself remain as they are.
        """
        if records := self.optimizer.training.loop.records:
            records[-1].update({n: v for n, v in columns.items() if n not in records[-1]})


def view_training(optimizer: Trained) -> TrainingView:
    """What the training of an optimizer is like now.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.

    Returns
    -------
    TrainingView
    """
    training = optimizer.training
    loop = training.loop
    iteration, loss = loop.read_progress()
    training.state.add_rates(loop.records)  # of all: it ends at the first one, from the last, that has its rate
    last = loop.records[-1:]
    losses = MappingProxyType(dict(last[0]) if last else {})
    return TrainingView(loop.n_iter, loop.settings.max_iter, iteration, loss, losses, optimizer.learning_rate_,
                        perf_counter() - loop.began, optimizer)

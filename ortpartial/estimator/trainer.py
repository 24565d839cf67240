"""The trainer of an optimizer: its training, as callbacks see it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ortpartial.annotations import Data, Record, State
from ortpartial.execution import Loop, draw_rows
from ortpartial.learning import BaseLearningRate

from .resumption import read_settings

if TYPE_CHECKING:
    from .training import Training

__all__ = ["OptimizerTrainer"]


class Trained(Protocol):
    """An optimizer, as its trainer uses it."""

    training: Training

    @property
    def learning_rate(self) -> BaseLearningRate: ...

    @property
    def learning_rate_(self) -> float: ...

    @property
    def learning_rate_scale_(self) -> float: ...

    def scale_learning_rate(self, scale: float) -> object: ...

    @property
    def history_(self) -> list[Record]: ...

    @property
    def trained_coef_(self) -> dict[str, np.ndarray]: ...


class OptimizerTrainer:
    """The `Trainer` of an optimizer.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    """

    can_sweep = True

    def __init__(self, optimizer: Trained):
        self.optimizer, self.training = optimizer, optimizer.training

    @property
    def loop(self) -> Loop:
        """The loop."""
        return self.training.loop

    @property
    def rate(self) -> float:
        """The step size of the next batch."""
        return self.optimizer.learning_rate_

    @property
    def base_rate(self) -> float:
        """η₀, before the schedule and `rate_scale`."""
        return float(self.optimizer.learning_rate.eta0)

    @property
    def rate_scale(self) -> float:
        """The factor of all step sizes."""
        return self.optimizer.learning_rate_scale_

    def scale_rate(self, scale: float) -> None:
        """Multiply all step sizes by a number from the next batch on."""
        self.optimizer.scale_learning_rate(scale)

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copies of the weights that predictions use, by name."""
        return self.optimizer.trained_coef_

    def compute_gradients(self, X: Data, y: Data, sample_weight: Data, rng: np.random.Generator | None
                          ) -> dict[str, np.ndarray]:
        """The gradient of the objective by each weight, on rows, or on some of the trained rows."""
        loop, state = self.loop, self.training.state
        if X is not None:
            return state.compute_gradients(loop.to_arrays(X, y, sample_weight)[0])
        return state.compute_gradients(draw_rows(state.engine.data, loop.settings.batch_size, rng))

    def copy_used(self) -> Mapping[str, np.ndarray]:
        """Copies of weights, their averages and running statistics."""
        return self.training.state.copy_used()

    def restore_used(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite the weights in use with former weights."""
        self.training.state.restore_used(arrays)

    def capture(self) -> AbstractContextManager[State]:
        """A context in which the training stands still, with all that its next steps depend on, and its history."""
        return self.training.capture(read_settings(self.optimizer))

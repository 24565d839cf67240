"""The tasks of a fit of an optimizer, and the settings that its processes share."""

from __future__ import annotations

import copy
from typing import Any, Protocol

from ortpartial.annotations import Data, Settings
from ortpartial.execution import FitTasks

from .changes import WEIGHTS
from .training import Training

__all__ = ["make_tasks"]

#: Settings that the processes of a distributed training share: a callback may change them.
_SHARED = ("learning_rate", "learning_penalty", "gradient_clipping", "averaging", "use_average", "max_iter",
           "batch_size", "shuffle", "validation_every")


class Optimizer(Protocol):
    """The part of an optimizer that its processes share."""

    training: Training

    def set_params(self, **params: Any) -> object: ...


class _SharedSettings:
    """The settings and the scale of step sizes that processes share."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer

    def read(self) -> tuple[Settings, float]:
        """The settings of this process."""
        training = self.optimizer.training
        weights = {**{n: training.arguments[n] for n in WEIGHTS}, "weights_to_train": training.name_weights()}
        return {**{n: getattr(self.optimizer, n) for n in _SHARED}, **weights}, training.state.rate_scale

    def follow(self, values: tuple[Settings, float]) -> None:
        """Take over the settings of the first process."""
        settings, scale = values
        present, present_scale = self.read()
        if scale != present_scale:
            self.optimizer.training.scale_rate(scale)
        self.optimizer.set_params(**{n: v for n, v in settings.items() if present[n] != v})


def make_tasks(optimizer: Optimizer, X: Data, y: Data, sample_weight: Data = None, **others: Any) -> FitTasks:
    """Make the tasks of a fit.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer that trains.
    X, y, sample_weight : object
        The data, as `fit` was given them.
    **others : object
        Of an estimator that composes the optimizer: see `FitTasks`.

    Returns
    -------
    FitTasks
    """
    return FitTasks(optimizer, optimizer.training.loop, X, y, sample_weight,
                    freeze=lambda: copy.copy(optimizer).set_params(callbacks=()), shared=_SharedSettings(optimizer),
                    **others)

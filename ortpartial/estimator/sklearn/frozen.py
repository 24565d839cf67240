"""Frozen optimizers: the optimizers of copies of an estimator that callbacks get during a fit."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ortpartial.annotations import Data, Estimator
from ortpartial.runtime import FairLock

if TYPE_CHECKING:
    import numpy as np


__all__ = ["FrozenOptimizer"]


class FrozenOptimizer:
    """An optimizer that predicts with the weights of now, by the sessions of another optimizer that goes on to train.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The other optimizer.
    """

    def __init__(self, optimizer: Estimator):
        self.learning_loss, self.trained_coef_ = optimizer.learning_loss, optimizer.trained_coef_
        engine = optimizer.training.engine
        weights = {n: engine.get_used(n) for n in optimizer.training.spec.moving}
        self._predictor = copy.copy(optimizer.training.predictor)
        self._predictor.engine = SimpleNamespace(get_used=weights.__getitem__, turn=FairLock(), local=engine.local,
                                                 identity=None)

    def predict(self, X: Data) -> np.ndarray | dict[str, np.ndarray]:
        """The outputs for X."""
        return self._predictor.predict(X)

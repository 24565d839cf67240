"""Tasks: what a fit tells the callbacks of scikit-learn 1.9, registered with `set_callbacks`."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from ortpartial.runtime import Turn

__all__ = ["FitTasks", "FrozenOptimizer"]


class FitTasks:
    """The task of a fit, and a subtask for each of its epochs.

    Parameters
    ----------
    estimator : object
        An estimator, whose callbacks are set up.
    X, y : array_like
        What it is trained on, with labels as they were given.
    sample_weight : array_like or None
        The weights of the rows.
    """

    def __init__(self, estimator: Any, X: Any, y: Any, sample_weight: Any):
        self.estimator = estimator
        # Before scikit-learn 1.9 there are none of these attributes.
        self._is_watched = hasattr(estimator, "_skl_callbacks") or hasattr(estimator, "_parent_callback_ctx")
        if not self._is_watched:
            return
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        self._data = {"X": X, "y": y, "metadata": metadata}
        self._fit = estimator._init_callback_context(max_subtasks=estimator.max_iter)
        self._fit.call_on_fit_task_begin(estimator=estimator, **self._data)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch = self._fit.subcontext(task_name="epoch")
        self._epoch.call_on_fit_task_begin(estimator=self.estimator, **self._data)

    def end_epoch(self, is_last: bool) -> bool:
        """End the task of an epoch, and begin the next one; return whether a callback asks to stop."""
        if not self._is_watched:
            return False
        is_over = self._end(self._epoch)
        if not (is_last or is_over):
            self._begin_epoch()
        return is_over

    def end(self) -> None:
        """End the task of the fit."""
        if self._is_watched:
            self._end(self._fit)

    def _end(self, context: Any) -> bool:
        return bool(context.call_on_fit_task_end(estimator=self.estimator, **self._data,
                                                 reconstruction_attributes=self._freeze))

    def _freeze(self) -> dict[str, Any]:
        """What makes a copy of the estimator one whose fit had stopped here."""
        return {"optimizer_": FrozenOptimizer(self.estimator.optimizer_)}


class FrozenOptimizer:
    """An optimizer that predicts with the weights of now, while it goes on to train.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer.
    """

    def __init__(self, optimizer: Any):
        self.learning_loss, self.trained_coef_ = optimizer.learning_loss, optimizer.trained_coef_
        weights = optimizer._state.arrays
        self._predictor = copy.copy(optimizer._predictor)
        self._predictor.engine = SimpleNamespace(get=weights.__getitem__, turn=Turn(), local=optimizer._engine.local,
                                                 identity=None)

    def predict(self, X: Any) -> Any:
        """The outputs for X."""
        return self._predictor.predict(X)

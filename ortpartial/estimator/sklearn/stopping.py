"""When a training ends before its last epoch: the rule of scikit-learn's stochastic estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ortpartial.annotations import State

if TYPE_CHECKING:
    from ..optimizer import OrtGradientForwardBackwardOptimizer

__all__ = ["StoppingRule"]


class StoppingRule:
    """Ends a training after more than n epochs in a row that did not improve by `tol`.

    The loss of an epoch has to improve, or a score, of which the best epoch's weights are kept. A
    `ReduceOnPlateauSchedule` reduces the step size in place of the end, and the epochs are counted anew, as with
    scikit-learn's ``"adaptive"``, until it is as small as it gets.

    Parameters
    ----------
    tol : float
        The least improvement of an epoch over the best.
    n_iter_no_change : float
        n, which may be infinite.
    score : callable, optional
        From the optimizer to a score, of which more is better.

    Attributes
    ----------
    scores : list of float
        The score of every epoch.
    best_loss, best_score : float or None
        The best numbers.
    """

    def __init__(self, tol: float, n_iter_no_change: float,
                 score: Callable[[OrtGradientForwardBackwardOptimizer], float] | None = None):
        self.tol, self.n_iter_no_change, self.score = tol, n_iter_no_change, score
        self.scores: list[float] = []
        self.best_loss: float | None = np.inf if score is None else None
        self.best_score: float | None = None if score is None else -np.inf
        self._count = 0
        self._scale = 1.0  # of the step size, when the count began
        self._best: dict[str, np.ndarray] | None = None

    def __call__(self, optimizer: OrtGradientForwardBackwardOptimizer) -> bool:
        """Look at the epoch that has ended; return whether it was the last."""
        if self.score is None:
            self._compare_loss(optimizer.train_losses_[-1])
        else:
            self._compare_score(self.score(optimizer), optimizer)
        if self._count == 1:
            self._scale = optimizer.learning_rate_scale_
        if self._count <= self.n_iter_no_change:
            return False
        if optimizer.learning_rate_scale_ >= self._scale:
            optimizer.training.door.watch(0.0, is_last=True)
        is_reduced = optimizer.learning_rate_scale_ < self._scale
        self._count = 0 if is_reduced else self._count
        return not is_reduced

    def _compare_loss(self, loss: float) -> None:
        assert self.best_loss is not None
        self._count = self._count + 1 if loss > self.best_loss - self.tol else 0
        self.best_loss = min(self.best_loss, loss)

    def _compare_score(self, score: float, optimizer: OrtGradientForwardBackwardOptimizer) -> None:
        assert self.best_score is not None
        self.scores.append(score)
        self._count = 0 if score >= self.best_score + self.tol else self._count + 1  # NaN is no better.
        if score > self.best_score:
            self.best_score = score
            self._best = optimizer.training.state.copy_used()

    def get_state(self) -> State:
        """Return its memory of the fit that runs, for checkpoints.

        Returns
        -------
        dict of str to object
        """
        return {n: v for n, v in vars(self).items() if n not in ("tol", "n_iter_no_change", "score")}

    def set_state(self, state: State) -> None:
        """Go on with a former memory.

        Parameters
        ----------
        state : dict of str to object
            The result of `get_state`.
        """
        vars(self).update(state)

    def restore(self, optimizer: OrtGradientForwardBackwardOptimizer) -> None:
        """Go back to the weights of the epoch with the best score, if any."""
        if self._best is not None:
            optimizer.training.state.restore_used(self._best)

"""Early stopping: a fit ends where a loss or a score no longer improves, and the best weights are restored."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortpartial.annotations import Data, Estimator, Record, Scoring, State
from ortpartial.checks import check_choice, check_flag
from ortpartial.learning import check_integer, check_number

from .base import FitRun, MonitorCallback

__all__ = ["EarlyStopping"]


class EarlyStopping(MonitorCallback):
    """End a fit when a monitored value has stopped improving, and restore the weights with which it was best.

    Parameters
    ----------
    monitor : str
        A column of `history_`, such as "loss", or "val_accuracy" of the metric "accuracy". Epochs without it, such as
        epochs without a validation, do not count. An estimator of scikit-learn has no history: its "score" is
        monitored, and so is that of ours with `scoring`.
    patience : int
        Number of epochs without an improvement after which the fit ends; where not every epoch has a value, with the
        first value that is so many epochs behind the best.
    min_delta : float
        The least difference from the best value that is an improvement.
    mode : str
        ``"min"`` or ``"max"``: the better direction. ``"auto"`` is "max" for scores and for metrics that are, as
        accuracy and R², otherwise "min".
    baseline : float, optional
        A value that has to be surpassed; until then, no improvement ends the waiting.
    restore_best : bool
        Whether the fit ends with the weights, their averages and running statistics of the best epoch. The states of
        the optimizer are the last epoch's.
    scoring : str or callable, optional
        A score that is monitored, as scikit-learn names it; for an optimizer, a metric of ours by name.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.

    Attributes
    ----------
    best_, best_epoch_ : float or None, int or None
        The best value of the last fit, and its epoch in the record.
    stopped_epoch_ : int or None
        The epoch after which it ended the fit.

    Notes
    -----
    `LogisticRegression` of scikit-learn 1.9 does not end its fit where a callback asks for it; it goes on, and the best
    coefficients are restored at its end.

    References
    ----------
    .. [1] Keras, `EarlyStopping`, and Lightning, `EarlyStopping`.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> stopping = EarlyStopping(patience=3, min_delta=1e-3)
    >>> optimizer = Optimizer(build([x], {"y": x @ w}), learning_rate=0.1, callbacks=[stopping])
    >>> X = np.linspace(-1, 1, 50, dtype=np.float32)[:, None]
    >>> optimizer.fit(X, 3 * X, X_val=0.2).n_iter_ == stopping.stopped_epoch_ < 100
    True
    """

    needs_score = True

    def __init__(self, monitor: str = "validation_loss", *, patience: int = 5, min_delta: float = 0.0,
                 mode: str = "auto", baseline: float | None = None, restore_best: bool = True,
                 scoring: Scoring = None, X_val: Data = None, y_val: Data = None):
        self.monitor, self.patience, self.min_delta = monitor, patience, min_delta
        self.mode = check_choice("mode", mode, ("auto", "min", "max"))
        self.baseline, self.restore_best = baseline, check_flag("restore_best", restore_best)
        check_integer(self, "patience", low=1)
        check_number(self, "min_delta", low=0)
        if baseline is not None:
            check_number(self, "baseline")
        super().__init__(monitor, scoring, X_val, y_val)
        self.best_: float | None = None
        self.best_epoch_: int | None = None
        self.stopped_epoch_: int | None = None

    def set_state(self, state: State) -> None:
        super().set_state(state)
        self.best_, self.best_epoch_, self.stopped_epoch_ = state["best"], state["best_epoch"], state["stopped"]

    def _begin_fit(self, run: FitRun) -> None:
        self.best_ = self.best_epoch_ = self.stopped_epoch_ = None
        run.values.update(best=None, best_epoch=None, kept=None, wait=0, stopped=None, last=None)

    def _end_epoch(self, run: FitRun, record: Record, fitted_estimator: Estimator) -> bool:
        now = run.values
        if now["stopped"] is not None:  # An estimator may go on all the same.
            return True
        now["last"] = record["epoch"]
        if (value := self._read_monitored(run, record)) is None:
            return False
        now["wait"] += self._count_epochs(run, record)
        if self._is_better(value, now["best"], run):
            now.update(best=value, best_epoch=record["epoch"], kept=self._keep(run, fitted_estimator))
            if self.baseline is None or self._is_better(value, self.baseline, run):
                now["wait"] = 0
        now["stopped"] = record["epoch"] if now["wait"] >= self.patience else None
        self.best_, self.best_epoch_, self.stopped_epoch_ = now["best"], now["best_epoch"], now["stopped"]
        return now["stopped"] is not None

    def _is_better(self, value: float, than: float | None, run: FitRun) -> bool:
        """Whether a value is an improvement, as any first value is; NaN is none."""
        if than is None:
            return not np.isnan(value)
        sign = 1 if self.mode == "max" or (self.mode == "auto" and self._is_score(run)) else -1
        return sign * (value - than) > self.min_delta

    def _keep(self, run: FitRun, fitted_estimator: Estimator) -> Any:
        """Copy of the weights to be restored; None where `restore_best` is not set."""
        if not self.restore_best:
            return None
        return fitted_estimator if (view := run.view) is None else view.trainer.copy_used()

    def _end_fit(self, run: FitRun) -> None:
        kept, view = run.values["kept"], run.view
        if kept is None or run.values["best_epoch"] == run.values["last"]:
            return
        if view is not None:
            view.trainer.restore_used(kept)
        else:
            vars(run.estimator).update({n: v for n, v in vars(kept).items() if n.endswith("_") and n[0] != "_"})

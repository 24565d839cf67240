"""A step size that is reduced where a loss or a score no longer improves."""

from __future__ import annotations

from ortpartial.annotations import Data, Estimator, Record, Scoring
from ortpartial.checks import check_choice
from ortpartial.exceptions import SettingError
from ortpartial.learning import check_integer, check_number

from .base import FitRun, MonitorCallback

__all__ = ["ReduceOnPlateau"]


class ReduceOnPlateau(MonitorCallback):
    """Multiply the step size by a factor when a monitored value has stopped improving.

    Nothing is compiled anew for it. `ReduceOnPlateauSchedule` does the same as a part of the optimizer: it monitors
    losses alone, and a pickle or a checkpoint goes on with its memory.

    Parameters
    ----------
    monitor : str
        A column of `history_`, such as "loss" or "val_accuracy"; epochs without it do not count. With `scoring`,
        "score".
    factor : float
        By which the step size is multiplied, more than 0 and less than 1.
    patience : int
        Number of epochs without an improvement that change nothing.
    threshold : float
        The least difference from the best value that is an improvement.
    threshold_mode : str
        ``"rel"``, of the best value, or ``"abs"``.
    cooldown : int
        Number of epochs after a reduction that do not count.
    min_rate : float
        The last step size.
    epsilon : float
        Smaller reductions are left out.
    mode : str
        ``"min"`` or ``"max"``: the better direction; ``"auto"`` as for `EarlyStopping`.
    scoring : str or callable, optional
        A score to be monitored, as scikit-learn names it.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.

    Attributes
    ----------
    reductions_ : list of int
        The epochs of the last fit after which the step size was reduced.

    Raises
    ------
    SettingError
        In a fit of an estimator that has no step size of ours.

    References
    ----------
    ``torch.optim.lr_scheduler.ReduceLROnPlateau``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> reduce, X = ReduceOnPlateau("loss", factor=0.5, patience=0, threshold=0.99), np.ones((50, 1), np.float32)
    >>> model = build([x], {"y": x @ w})
    >>> optimizer = Optimizer(model, learning_rate=0.125, max_iter=3, callbacks=[reduce]).fit(X, 3 * X)
    >>> [record["learning_rate"] for record in optimizer.history_], reduce.reductions_
    ([0.125, 0.125, 0.0625], [2])
    """

    def __init__(self, monitor: str = "validation_loss", *, factor: float = 0.1, patience: int = 10,
                 threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_rate: float = 0.0,
                 epsilon: float = 1e-8, mode: str = "auto",
                 scoring: Scoring = None, X_val: Data = None, y_val: Data = None):
        self.mode = check_choice("mode", mode, ("auto", "min", "max"))
        self.threshold_mode = check_choice("threshold_mode", threshold_mode, ("rel", "abs"))
        self.monitor, self.factor, self.patience = monitor, factor, patience
        self.threshold, self.cooldown, self.min_rate, self.epsilon = threshold, cooldown, min_rate, epsilon
        check_number(self, "factor", above=0, below=1)
        check_integer(self, "patience", "cooldown", low=0)
        check_number(self, "threshold", "min_rate", "epsilon", low=0)
        super().__init__(monitor, scoring, X_val, y_val)
        self.reductions_: list[int] = []

    def _begin_fit(self, run: FitRun) -> None:
        if (view := run.view) is None:
            raise SettingError(f"ReduceOnPlateau changes the step size of an optimizer of ortpartial; "
                               f"{type(run.estimator).__name__} has none.")
        self.reductions_ = []
        run.values.update(best=None, idle=0, waiting=0)
        view.trainer.scale_rate(view.trainer.rate_scale)  # It compiles now, and not later.

    def _end_epoch(self, run: FitRun, record: Record, fitted_estimator: Estimator) -> None:
        now, value = run.values, self._read_monitored(run, record)
        if value is None:
            return
        passed = self._count_epochs(run, record)
        if now["best"] is None or self._is_better(value, now["best"], run):
            now.update(best=value, idle=-passed)
        now["idle"] += passed
        if now["waiting"]:
            now.update(idle=0, waiting=max(now["waiting"] - passed, 0))
        if now["idle"] > self.patience:
            now.update(idle=0, waiting=self.cooldown)
            self._reduce(run, record["epoch"])

    def _is_better(self, value: float, best: float, run: FitRun) -> bool:
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1)
        is_score = self.mode == "max" or (self.mode == "auto" and self._is_score(run))
        return value > best + margin if is_score else value < best - margin

    def _reduce(self, run: FitRun, epoch: int) -> None:
        """Scale the step size, if that changes it."""
        assert run.view is not None
        trainer = run.view.trainer
        former = trainer.base_rate * trainer.rate_scale
        rate = max(former * self.factor, self.min_rate)
        if former - rate > self.epsilon:
            trainer.scale_rate(rate / trainer.base_rate)
            self.reductions_.append(epoch)

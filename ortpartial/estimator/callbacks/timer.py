"""A timer: how long a fit and its epochs take, and the end of a fit after some time."""

from __future__ import annotations

from datetime import timedelta
from time import perf_counter

from ortpartial.annotations import Estimator
from ortpartial.exceptions import SettingError
from ortpartial.execution import TaskContext

from .base import EpochCallback, FitRun

__all__ = ["Timer"]


class Timer(EpochCallback):
    """Measure a fit and its epochs, and end it in order once a time is over.

    The fit ends after the task that runs, with all that its end brings with it; `timeout` of an optimizer ends it with
    an error, in the middle of a step.

    Parameters
    ----------
    duration : float, datetime.timedelta or None
        After how many seconds to end the fit.
    batches_between_calls : int, optional
        After how many batches of an epoch to look at the clock, too.

    Attributes
    ----------
    seconds_ : float
        The duration of the last fit so far.
    epoch_seconds_ : list of float
        The seconds of its epochs.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> timer, X = Timer(0.2), np.ones((50, 1), np.float32)
    >>> optimizer = Optimizer(build([x], {"y": x @ w}), max_iter=10**6, callbacks=[timer]).fit(X, 3 * X)
    >>> 0.2 <= timer.seconds_ < 5, len(timer.epoch_seconds_) == optimizer.n_iter_
    (True, True)
    """

    def __init__(self, duration: float | timedelta | None = None, *, batches_between_calls: int | None = None):
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
            raise SettingError(f"duration is None, a timedelta or a number of seconds above 0, not {duration!r}.")
        self.duration, self.batches_between_calls = seconds, batches_between_calls
        self.seconds_, self.epoch_seconds_ = 0.0, list[float]()

    def _begin_fit(self, run: FitRun) -> None:
        self.seconds_, self.epoch_seconds_ = 0.0, []

    def on_fit_task_end(self, estimator: Estimator, context: TaskContext) -> bool:  # type: ignore[override]
        """Look at the clock.

        Parameters
        ----------
        estimator, context : object
            The estimator, and the task.

        Returns
        -------
        bool
            Whether the time is over.
        """
        if (run := self._runs.get(id(estimator))) is None:
            return False
        now = perf_counter()
        self.seconds_ = now - run.began
        if context.parent is run.context:
            self.epoch_seconds_.append(now - run.epoch_began)
        return self.duration is not None and self.seconds_ >= self.duration

"""A progress bar: of a training, and of the tasks of an estimator of scikit-learn."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from importlib import import_module
from threading import Lock
from typing import Any

from ortpartial.annotations import Estimator
from ortpartial.checks import check_count
from ortpartial.execution import Bar, Progress, TaskContext, is_interactive

from .base import Callback, FitRun

__all__ = ["ProgressBar"]

#: The bars that are shown by this process, by the fit that they are of: a callback may be pickled meanwhile.
_SHOWN: dict[Hashable, _TrainingBar | _TaskBar] = {}


class ProgressBar(Callback):
    """Show a bar while a fit runs: on a terminal or in a notebook, and nothing elsewhere.

    That of a training is the bar of ``verbose=1``: it shows the epoch, the losses, the time that is left and the steps
    of a second, and moves within an epoch. That of an estimator of scikit-learn, or of a search, which hands the
    callback on to its estimators, shows the share of the tasks that are done, also by other processes.

    Parameters
    ----------
    max_propagation_depth : int or None
        To how many levels of estimators inside of others it is handed on; None for all.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> X = np.ones((20, 1), np.float32)
    >>> optimizer = Optimizer(build([x], {"y": x @ w}), callbacks=[ProgressBar()]).fit(X, 3 * X)
    """

    def __init__(self, max_propagation_depth: int | None = 1):
        if max_propagation_depth is not None:
            check_count("max_propagation_depth", max_propagation_depth, 0)
        self.max_propagation_depth = max_propagation_depth
        #: By the fit, where other processes send what they do.
        self._listeners: dict[Any, Any] = {}

    def setup(self, estimator: Estimator, context: TaskContext) -> None:
        view = FitRun(estimator, context).view
        if not is_interactive() or (view is not None and view.optimizer.training.loop.settings.verbose):
            return
        if view is not None:
            _SHOWN[context.root_uuid] = _TrainingBar(view.optimizer)
            return
        bar = _SHOWN[context.root_uuid] = _TaskBar(context.estimator_name)
        with suppress(ImportError):  # before scikit-learn 1.9, which alone tells of tasks in other processes
            self._listeners[context.root_uuid] = _import().open_listener(bar.be_told)

    def on_fit_task_begin(self, estimator: Estimator, context: TaskContext) -> None:
        self._tell(context, is_end=False)

    def on_fit_task_end(self, estimator: Estimator, context: TaskContext) -> None:
        self._tell(context, is_end=True)

    def _tell(self, context: TaskContext, is_end: bool) -> None:
        """Tell the bar of a task, here or in the process that shows it."""
        message = is_end, _find_path(context), context.max_subtasks
        if (bar := _SHOWN.get(context.root_uuid)) is not None:
            bar.be_told(message)
        elif (listener := self._listeners.get(context.root_uuid)) is not None:
            _import().send(listener, message)

    def teardown(self, estimator: Estimator, context: TaskContext) -> None:
        if (bar := _SHOWN.pop(context.root_uuid, None)) is not None:
            bar.close()
        if (listener := self._listeners.pop(context.root_uuid, None)) is not None:
            _import().close_listener(listener)


class _TrainingBar:
    """The bar of the training of an optimizer."""

    def __init__(self, optimizer: Estimator):
        self.optimizer, self.loop = optimizer, optimizer.training.loop
        self.progress = Progress(self.loop.read_progress, is_logged=False)
        self.progress.ending = "ended by an error"

    def be_told(self, message: tuple[bool, tuple[int, ...], int | None]) -> None:
        """Go on after the beginning or the end of an epoch, or of the fit."""
        is_end, path, _ = message
        if len(path) == 1 and is_end:
            is_whole = self.loop.place.epoch >= self.loop.settings.max_iter
            self.progress.ending = "max_iter reached" if is_whole else "stopped by a callback"
        elif len(path) == 2 and is_end:
            self.progress.end_epoch(self.loop.read_losses)
        elif len(path) == 2:
            epoch, last = self.loop.place.epoch + 1, self.loop.settings.max_iter
            self.progress.begin_epoch(epoch, last, self.loop.count_steps, verbose=1)

    def close(self) -> None:
        """Draw the bar a last time."""
        self.progress.__exit__(None, None, None)


class _TaskBar:
    """The bar of the tasks of an estimator: by their tree, which share is done."""

    def __init__(self, name: str):
        self.name = name
        self._lock = Lock()  # Other processes have threads of their own here.
        #: Of each task that runs, how many subtasks it has, and how many are done.
        self._open: dict[tuple[int, ...], list[Any]] = {}
        self._done, self._is_over = 0, False
        self.bar = Bar(self._look, unit="task", units="tasks")

    def be_told(self, message: tuple[bool, tuple[int, ...], int | None]) -> None:
        """Go on after the beginning or the end of a task."""
        is_end, path, count = message
        with self._lock:
            if not is_end:
                self._open[path] = [count, 0]
            elif (task := self._open.pop(path, None)) is not None:
                self._done += not task[0]
                self._is_over = len(path) == 1
                if path[:-1] in self._open:
                    self._open[path[:-1]][1] += 1

    def _find_share(self, path: tuple[int, ...]) -> float:
        """The share of a task that runs which is done."""
        count, done = self._open[path]
        inside = sum(self._find_share(p) for p in self._open if p[:-1] == path)
        return min(1.0, (done + inside) / count) if count else 0.0

    def _look(self, remark: str = "") -> tuple[str, int, int | None, dict[str, float]]:
        """The text beside the bar, the finished tasks without subtasks, and the number of all as far as it is known."""
        with self._lock:
            share = 1.0 if self._is_over else self._find_share((0,)) if (0,) in self._open else 0.0
            done = self._done
        text = f"{self.name}, {remark}" if remark else self.name
        return text, done, round(done / share) if share and done else None, {}

    def close(self) -> None:
        """Draw the bar a last time."""
        self.bar.close("" if self._is_over else "ended by an error")


def _import() -> Any:
    """How callbacks of scikit-learn send messages between processes; it is optional, and slow to import."""
    return import_module("sklearn.callback._transport")


def _find_path(context: TaskContext | None) -> tuple[int, ...]:
    """The numbers of the tasks that lead to a task, from the first on."""
    path: list[int] = []
    while context is not None:
        path.append(context.task_id)
        context = context.parent
    return tuple(path[::-1])

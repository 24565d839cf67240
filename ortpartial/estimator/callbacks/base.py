"""The base of callbacks: hooks that do nothing, the fits that run, and records of their epochs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from ortpartial.annotations import Data, Estimator, Record, Scoring, State
from ortpartial.checks import check_path
from ortpartial.exceptions import SettingError
from ortpartial.execution import FitSettings, TaskContext, TrainingView
from ortpartial.learning import Metric, NamedSettings, resolve_metric, suggest

__all__ = ["Callback", "EpochCallback", "FitRun", "MonitorCallback", "check_place"]


def check_place(name: str, path: str | os.PathLike[str]) -> str:
    """Check the path that a callback will write to, before the training: the folders are made, if they can be."""
    place = Path(check_path(name, path)).absolute()
    folder = next(p for p in place.parents if p.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise SettingError(f"{os.fspath(path)!r} cannot be written, as {str(folder)!r} is "
                           f"{'read-only' if folder.is_dir() else 'no folder'}; choose another place.")
    return os.fspath(path)


#: What other libraries call the columns of `history_`.
_COLUMNS = dict.fromkeys(("valloss", "validloss", "evalloss", "testloss", "validation"), "'validation_loss'") | (
    dict.fromkeys(("trainloss", "trainingloss"), "'loss'") | dict.fromkeys(("lr", "eta0"), "'learning_rate'"))


class Callback(NamedSettings):
    """A callback that does nothing: the hooks of scikit-learn's callbacks, to be overridden.

    The same object works in an estimator of scikit-learn, by `set_callbacks`, and in ours. A hook that has keyword-only
    parameters ``X``, ``y``, ``metadata`` or ``fitted_estimator`` is given them. A training of ours is read by
    ``estimator.training_view()``.

    Attributes
    ----------
    batches_between_calls : int or None
        After how many batches of an epoch the callback is to be told, by tasks "batches"; None for never.

    Examples
    --------
    >>> class Stop(Callback):
    ...     def on_fit_task_end(self, estimator, context):
    ...         return context.task_name == "epoch" and estimator.training_view().losses["loss"] < 0.1
    >>> Stop()
    Stop()
    """

    batches_between_calls: int | None = None

    #: Whether it reads the view of a training, and needs no copy of the estimator where there is one.
    reads_view = True

    def __init__(self) -> None:
        pass

    def setup(self, estimator: Estimator, context: TaskContext) -> None:
        """Prepare for a fit, before its first task.

        Parameters
        ----------
        estimator : object
            The estimator.
        context : TaskContext or sklearn.callback.CallbackContext
            The task "fit".
        """

    def on_fit_task_begin(self, estimator: Estimator, context: TaskContext) -> None:
        """Be told that a task begins.

        Parameters
        ----------
        estimator : object
            The estimator.
        context : TaskContext or sklearn.callback.CallbackContext
            The task.
        """

    def on_fit_task_end(self, estimator: Estimator, context: TaskContext) -> bool | None:
        """Be told that a task has ended.

        Parameters
        ----------
        estimator : object
            The estimator.
        context : TaskContext or sklearn.callback.CallbackContext
            The task.

        Returns
        -------
        bool or None
            True ends the fit.
        """

    def teardown(self, estimator: Estimator, context: TaskContext) -> None:
        """Clean up after a fit, also after an error.

        Parameters
        ----------
        estimator : object
            The estimator.
        context : TaskContext or sklearn.callback.CallbackContext
            The task "fit".
        """

    def __repr__(self) -> str:
        settings = {n: v for n, v in vars(self).items() if not n.startswith("_") and not n.endswith("_")}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in settings.items())})"


@dataclass(eq=False)
class FitRun:
    """A fit that runs, between `setup` and `teardown` of a callback.

    Attributes
    ----------
    estimator, context : object
        The arguments of `setup`.
    began, epoch_began : float
        When the fit and its epoch began, by `time.perf_counter`.
    has_ended : bool
        Whether the fit has come to its end, and was not ended by an error.
    values : dict
        The memory of the callback.
    present : TrainingView or None
        The view of the epoch that has ended, while the callback is told of it.
    """

    estimator: Any
    context: TaskContext
    began: float = field(default_factory=perf_counter)
    epoch_began: float = field(default_factory=perf_counter)
    has_ended: bool = False
    values: State = field(default_factory=dict)
    present: TrainingView | None = None

    @property
    def view(self) -> TrainingView | None:
        """The view of the training, where it is of this library."""
        if self.present is not None:
            return self.present
        trained = self.estimator
        if not hasattr(trained, "training_view"):  # One of ours that is composed of an optimizer.
            trained = getattr(trained, "optimizer_", None)
        return trained.training_view() if trained is not None and hasattr(trained, "training_view") else None


class EpochCallback(Callback):
    """A callback that is told of the epochs of a fit, with their records.

    An epoch is a subtask of a fit: an iteration of an estimator of scikit-learn, or a candidate of a search. Its record
    is that of `history_`; that of others has the number of the epoch, its seconds and, with `scoring`, the "score".

    Parameters
    ----------
    scoring : str or callable, optional
        A score to be computed after each epoch, as scikit-learn names it.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.
    """

    scoring: Scoring = None
    X_val: Data = None
    y_val: Data = None

    #: Whether a fit without a history is scored in any case.
    needs_score = False

    def __init__(self, scoring: Scoring = None, X_val: Data = None, y_val: Data = None):
        self.scoring, self.X_val, self.y_val = scoring, X_val, y_val

    @property
    def _runs(self) -> dict[int, FitRun]:
        """The fits that run, by the identity of their estimators: clones of an estimator share its callbacks."""
        return vars(self).setdefault("_fits", {})

    def __getstate__(self) -> State:
        """The settings and results: a fit that runs stays where it is."""
        return {n: v for n, v in vars(self).items() if n != "_fits"}

    def setup(self, estimator: Estimator, context: TaskContext) -> None:
        run = self._runs[id(estimator)] = FitRun(estimator, context)
        self._begin_fit(run)

    def on_fit_task_begin(self, estimator: Estimator, context: TaskContext) -> None:
        if (run := self._runs.get(id(estimator))) is not None and context.parent is run.context:
            run.epoch_began = perf_counter()

    def on_fit_task_end(self, estimator: Estimator, context: TaskContext, *, X: Data = None, y: Data = None,
                        fitted_estimator: Estimator = None) -> bool | None:
        """Be told that a task has ended.

        Parameters
        ----------
        estimator, context : object
            The estimator, and the task.
        X, y : array_like, optional
            The data of the training.
        fitted_estimator : object, optional
            The estimator as if it had been fitted so far.

        Returns
        -------
        bool or None
            True ends the fit.
        """
        if (run := self._runs.get(id(estimator))) is None:
            return False
        if context is run.context:
            run.has_ended = True
            self._end_fit(run)
        elif context.parent is run.context:
            run.present = run.view
            try:
                if fitted_estimator is None and run.present is None and X is None:
                    return False
                return self._end_epoch(run, self._make_record(run, context, X, y, fitted_estimator), fitted_estimator)
            finally:
                run.present = None
        return False

    def teardown(self, estimator: Estimator, context: TaskContext) -> None:
        if (run := self._runs.pop(id(estimator), None)) is not None:
            self._tear_down(run)

    def _make_record(self, run: FitRun, context: TaskContext, X: Data, y: Data, fitted_estimator: Estimator
                     ) -> Record:
        """The record of the epoch that has ended."""
        view = run.view
        record = {"epoch": context.task_id + 1, "seconds": perf_counter() - run.epoch_began} if view is None else dict(
            view.losses)
        if self.scoring is not None or (view is None and (self.needs_score or self.X_val is not None)):
            data = (X, y) if self.X_val is None else (self.X_val, self.y_val)
            record["score"] = self._score(run, run.estimator if fitted_estimator is None else fitted_estimator, data)
        return record

    def _score(self, run: FitRun, estimator: Estimator, data: tuple[Data, Data]) -> float:
        """The score of an estimator: a metric of ours for an optimizer, whose predictions are scores and no labels."""
        is_ours = isinstance(self.scoring, str) and run.view is not None and run.view.optimizer is run.estimator
        if is_ours and (metric := _find_metric(str(self.scoring))) is not None:
            number = run.estimator.evaluate(*data, metrics=[metric])[metric.name]
            return float(number if metric.larger_is_better else -number)
        from sklearn.metrics import check_scoring  # It is optional.

        return float(check_scoring(run.estimator, self.scoring)(estimator, *data))

    # -- what a callback overrides

    def _begin_fit(self, run: FitRun) -> None:
        """Begin."""

    def _end_epoch(self, run: FitRun, record: Record, fitted_estimator: Estimator) -> bool | None:
        """Go on from the record of an epoch; return True to end the fit."""

    def _end_fit(self, run: FitRun) -> None:
        """End a fit that no error has ended."""

    def _tear_down(self, run: FitRun) -> None:
        """Clean up."""


class MonitorCallback(EpochCallback):
    """A callback that acts on a monitored value, and remembers it from epoch to epoch and in checkpoints.

    Parameters
    ----------
    monitor : str
        A column of `history_`.
    scoring : str or callable, optional
        A score that is monitored, as scikit-learn names it.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.
    """

    #: Whether patience is in epochs; that of former pickles is in values.
    _counts_epochs = False

    def __init__(self, monitor: str, scoring: Scoring = None, X_val: Data = None, y_val: Data = None):
        super().__init__(scoring, X_val, y_val)
        self.monitor, self._counts_epochs = monitor, True
        if not (isinstance(monitor, str) and monitor):
            raise SettingError(f"monitor is a column of history_, such as 'validation_loss' or 'val_accuracy', not "
                               f"{monitor!r}.")

    def get_state(self) -> State:
        """Return its memory of the only fit that runs, for checkpoints; nothing if there is no fit.

        Returns
        -------
        dict of str to object
        """
        runs = list(self._runs.values())
        return dict(runs[0].values) if len(runs) == 1 else {}

    def set_state(self, state: State) -> None:
        """Go on with a former memory.

        Parameters
        ----------
        state : dict of str to object
            The result of `get_state`.
        """
        for run in self._runs.values():  # A former checkpoint goes on to count values.
            run.values.update({"counted": None, **state})

    def _is_score(self, run: FitRun) -> bool:
        """Whether more is better: of scores, and of metrics that say so."""
        if self.scoring is not None or run.view is None or self.monitor == "score":
            return True
        names = [self._monitored.removeprefix(prefix) for prefix in ("val_", "validation_")]
        for metric in map(resolve_metric, run.view.trainer.loop.settings.metrics):
            if any(n == metric.name or n.endswith(f"_{metric.name}") for n in names):
                return bool(metric.larger_is_better)
        return "accuracy" in self._monitored

    @property
    def _monitored(self) -> str:
        """The column that is monitored, whatever was given."""
        return str(self.monitor)

    def _read_monitored(self, run: FitRun, record: Record) -> float | None:
        """The monitored column in the record of an epoch; None where others have it, and an error where none has it."""
        run.values.setdefault("counted", record["epoch"] - 1 if self._counts_epochs else None)
        name = "score" if self.scoring is not None or run.view is None else self._monitored
        if name not in record:  # The loss on validation data has the longer name, and metrics the shorter one.
            long, short = "validation_", "val_"
            name = short + name.removeprefix(long) if name.startswith(long) else long + name.removeprefix(short)
        if name in record:
            run.values["waited"] = None
            return float(record[name])
        if (waited := run.values.get("waited", 0)) is not None:
            run.values["waited"] = waited + 1
            self._check_column(run, record)
        return None

    def _count_epochs(self, run: FitRun, record: Record) -> int:
        """The epochs since the value before; 1 where values are counted."""
        if (counted := run.values["counted"]) is None:
            return 1
        run.values["counted"] = record["epoch"]
        return int(record["epoch"] - counted)

    def _check_column(self, run: FitRun, record: Record) -> None:
        """Raise an error if the monitored column should be there by now."""
        assert run.view is not None
        settings = run.view.trainer.loop.settings
        is_validation = self.monitor in ("validation_loss", "val_loss")
        is_measured = is_validation or bool(settings.metrics)
        if run.values["waited"] < (settings.validation_period if is_measured else 1):
            return
        columns = [n for n, v in record.items() if isinstance(v, float)]
        guess = suggest(str(self.monitor), columns, _COLUMNS)
        hint = f"; did you mean {guess}?" if guess else "."
        if is_validation or self._lacks_data(settings, record):
            hint = "; give fit X_val."
        elif not guess and _find_metric(self._monitored.removeprefix("val_")) is not None:
            hint = "; name it in the setting metrics."
        raise SettingError(f"{type(self).__name__} monitors {self.monitor!r}, and an epoch has "
                           f"{', '.join(map(repr, columns))}{hint}")

    def _lacks_data(self, settings: FitSettings, record: Record) -> bool:
        """Whether a metric of validation data is monitored, and there are none."""
        names = [metric.name for metric in settings.list_metrics("validation")]
        return self._monitored.removeprefix("val_") in names and "validation_loss" not in record


def _find_metric(name: str) -> Metric | None:
    """The metric of a name; None where there is none of ours."""
    try:
        return resolve_metric(name)
    except SettingError:
        return None

"""Training loop: epochs over rows or batches, validation, callbacks, and divergence, at every door."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ortpartial.annotations import Data, Entries, Record, State
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, SettingError
from ortpartial.learning import Meter, Metric
from ortpartial.logs import logger

from .checkpoint import find_checkpoint
from .exchange import describe_arrays, describe_settings
from .fit_data import DataReader, FitData, check_measurable, measure_rows
from .fit_position import FitPosition, check_rows
from .interruption import interruptible
from .mean import WeightedMean
from .overrides import NO_OVERRIDES, Overrides
from .progress import Progress
from .tasks import get_states

if TYPE_CHECKING:
    from .door import Door
    from .fit_settings import FitSettings
    from .runner import StepRunner
    from .tasks import FitTasks

__all__ = ["HISTORY", "Loop"]

#: The history of a training: its names in files and at optimizers, and the attributes of a `Loop`.
HISTORY = {"train_losses_": "train_losses", "validation_losses_": "validation_losses", "n_iter_": "n_iter",
           "history_": "records"}

#: The form of a checkpoint. The first had no number, and until form 2 a module wrote other names.
_FORM = 3

#: The pieces of an uncut epoch: a single piece, from its first batch to its last.
_WHOLE = ((0, None),)


class Loop:
    """The epochs of a training, and their progress.

    Parameters
    ----------
    engine : StepRunner
        Holds the weights and takes the steps.
    door : Door
        Has the data, the losses and the first weights.
    settings : FitSettings
        May be replaced between two epochs, as may `engine`, by an engine with other steps.

    Attributes
    ----------
    train_losses, validation_losses : list of float
        A number per epoch, and a number per validation.
    n_iter : int
        Number of epochs trained.
    records : list of dict
        A record of each epoch. In place of its step size there may be the numbers that it follows from.
    last_metrics : dict of str to float
        The metrics that were computed last.
    place : FitPosition
        Where the last fit is.
    began : float
        When the epoch began, by `time.perf_counter`.
    rng : numpy.random.Generator
        Source of the order of the rows.
    thread : int or None
        The thread that trains now.
    rows : dict of str to numpy.ndarray
        The rows that are trained, or were last; none where batches are.
    """

    def __init__(self, engine: StepRunner, door: Door, settings: FitSettings):
        self.engine, self.door, self.settings = engine, door, settings
        self.thread: int | None = None
        self.rows: Mapping[str, np.ndarray] = {}
        self.began, self.place, self.overrides = perf_counter(), FitPosition(), NO_OVERRIDES
        self.count_steps: Callable[[], int | None] = lambda: None  # of an epoch of the fit that runs
        self._mean: WeightedMean | None = None  # of the batches of an epoch; the mean of rows is the engine's
        self._checked: StepRunner | None = None  # whose step was checked against the model as it is written
        #: The metrics of the validation data and of the rows of the training, and the settings that name them.
        self._measured: tuple[FitSettings | None, Sequence[Metric], Sequence[Metric]] = None, (), ()
        self.reset()

    def reset(self) -> None:
        """Return to the first weights and keep compiled graphs."""
        self.rng = np.random.default_rng(self.settings.random_state)
        self.train_losses: list[float] = []
        self.validation_losses: list[float] = []
        self.n_iter = 0
        self.records: list[Record] = []
        self.last_metrics: dict[str, float] = {}
        self.door.reset(self.rng, self.settings)

    def fit(self, X: Data, y: Data, sample_weight: Data, X_val: Data, y_val: Data, tasks: FitTasks | None = None,
            former: FitPosition | None = None, overrides: Overrides | None = None) -> None:
        """Train for `max_iter` epochs, or until a callback asks to stop.

        A fit that was cut off goes on from its `former` place.
        """
        place = former or FitPosition()
        with interruptible(self, self.settings.timeout):
            data = self._reader(overrides).read(X, y, sample_weight, X_val, y_val, place, self.rng)
        if former is not None:
            check_rows(former, len(data.rows))
        elif not self.settings.warm_start:
            self.reset()
        place.rows, place.start = len(data.rows), place.start if former else self.engine.iteration
        self.rows = {} if data.batches is not None else self.rows
        is_first = data.batches is not None or self._begin(data.arrays, data.validation)
        logger.info("training by engine %r: %s", self.engine.name, self.engine.reason)
        with Progress(self.read_progress, is_first) as progress, self._training(place, overrides), (
                tasks or nullcontext()):
            if former is not None:
                progress.go_on(place.epoch, self.settings.max_iter, place.batches, self.settings.verbose)
                if tasks is not None:
                    tasks.begin_fit()
            if self.settings.metrics:
                check_measurable(self.door, self.settings, data)
            if divergence := self._train_epochs(data, progress, tasks):
                progress.ending = "loss not finite"
                self._report(divergence, 6)  # the caller of the optimizer's `fit`, which is decorated

    def _train_epochs(self, data: FitData, progress: Progress, tasks: FitTasks | None) -> str | None:
        """Train and validate for some epochs; return a message if the loss diverged."""
        place, steps, overrides, self.began = self.place, None, self.overrides, perf_counter()

        def count_steps() -> int | None:
            return data.count_steps(self.settings.batch_size) or steps

        self.count_steps, train_epoch = count_steps, self._choose_epoch(data)
        while place.epoch < self.settings.max_iter and not place.is_stopped:
            if overrides.on_epoch_begin is not None:
                overrides.on_epoch_begin()
            told = tasks if tasks is not None and (self.settings.callbacks or tasks.is_followed) else None
            if told is not None:
                told.begin_epoch(count_steps())
                self.began = perf_counter()
            progress.begin_epoch(place.epoch + 1, self.settings.max_iter, count_steps, self.settings.verbose)
            seen = self.engine.iteration - place.batches
            if divergence := train_epoch(data, place, told):
                return divergence
            steps, place.epoch = self.engine.iteration - seen, place.epoch + 1
            if (data.validation is None and not self.settings.metrics) or (
                    place.epoch != self.settings.max_iter and place.epoch % self.settings.validation_period):
                self._record()
            else:
                self._validate(data)
            if data.validation is None and self.engine.controls:
                self.door.watch(self.train_losses[-1])
            progress.end_epoch(self.read_losses)
            if (told is not None or overrides.on_epoch_end is not None) and (by := self._end_epoch(told)):
                progress.ending = f"stopped by {by}"
        if tasks is not None:
            tasks.end_fit()
        return None

    def _choose_epoch(self, data: FitData) -> Callable[..., str | None]:
        """The method that trains for an epoch: on rows at once or in pieces, or batch by batch."""
        is_whole = data.batches is None and self.overrides.train_step is None
        return self._train_rows if is_whole else self._train_batches

    def _end_epoch(self, tasks: FitTasks | None) -> str | None:
        """Tell that an epoch has ended; return who asks to stop."""
        place, end = self.place, self.overrides.on_epoch_end
        by = "on_epoch_end" if end is not None and self.engine.broadcast(end() is True) else None
        place.is_stopped |= by is not None
        if tasks is not None and (tasks.end_epoch() or place.is_stopped):
            by = by or tasks.stopped_by
        return by

    def partial_fit(self, X: Data, y: Data, sample_weight: Data, overrides: Overrides | None = None) -> None:
        """Train for an epoch, from the current state."""
        self.began = perf_counter()
        if y is None:
            data = FitData({}, np.arange(0), self._reader(overrides).check_batches(X, 1))
        else:
            with interruptible(self, self.settings.timeout):
                arrays, rows = self.to_arrays(X, y, sample_weight)
            data = FitData(arrays, np.arange(rows))
            self._begin(arrays)
        with self._training(overrides=overrides):
            divergence = self._choose_epoch(data)(data, FitPosition())
        if divergence:
            self._report(divergence, 6)  # the caller of the optimizer's method, which is decorated
        else:
            self._record()
            self.door.watch(self.train_losses[-1])

    def step(self, batch: Data) -> float:
        """Take a step on a batch, in the turn of the engine.

        Parameters
        ----------
        batch : tuple
            (X, y) or (X, y, sample_weight), as the door takes them.

        Returns
        -------
        float
            The loss of the batch.

        Raises
        ------
        ConvergenceError
            The loss or a weight is not finite; the weights are as before.
        """
        return self._step(batch)[0]

    def _step(self, batch: Data) -> tuple[float, float]:
        """Take a step on a batch; return its loss, and by how much it counts in the mean of an epoch."""
        engine = self.engine  # A callback may have changed the rate.
        X, y, sample_weight = (*batch, None)[:3]
        arrays, rows = self.door.to_arrays(X, y, sample_weight, None)
        size = self.door.choose_size(rows)
        if self.settings.check:
            self._check_step(arrays, np.arange(size))
        with engine.turn.lock:
            self._start(arrays)
            loss = engine.epoch(np.arange(rows), size)
            if not self._is_finite(loss):
                engine.undo()
                raise ConvergenceError(self._describe(loss, engine.iteration + 1))
        return loss, self.door.weigh(arrays)

    def _validate(self, data: FitData) -> None:
        """Record the mean loss of validation data and the metrics, and let a schedule see the loss."""
        if self._measured[0] is not self.settings:  # A callback may have replaced them.
            settings = self.settings
            self._measured = settings, settings.list_metrics("validation"), settings.list_metrics("training")
        is_measured = self._measured[2] or (data.validation is None and self._measured[1])
        of_training = measure_rows(self.door, self.settings, data) if is_measured else {}
        self.last_metrics = of_training
        if data.validation is None:
            self._record(**of_training)
            return
        result, metrics = self._measure_validation(data)
        means = {"loss": result} if isinstance(result, float) else result
        self.validation_losses.append(means["loss"] if "loss" in means else next(iter(means.values()), 0.0))
        columns = {f"validation_{n}": mean for n, mean in means.items()}
        self.last_metrics = {**{f"val_{n}": number for n, number in metrics.items()}, **of_training}
        self._record(**columns, **self.last_metrics)
        self.door.watch(self.validation_losses[-1])

    def _measure_validation(self, data: FitData) -> tuple[float | Mapping[str, float], dict[str, float]]:
        """The mean loss or losses of validation data, and the metrics, in a single pass unless a user computes them."""
        metrics, step = self._measured[1], self.overrides.validation_step
        meter, batches = Meter(metrics) if metrics else None, data.validation or ()
        if step is None:
            result = (self.door.validate(batches, meter) if data.held is None else
                      self.door.validate_held(data.held, meter))
            return result, meter.read() if meter is not None else {}
        batches = batches if meter is None else list(batches)
        result = _average(step, self.door.read_batches(batches, with_target=False))
        if meter is None:
            return result, {}
        self.door.validate(batches, meter)
        return result, meter.read()

    @contextmanager
    def _training(self, place: FitPosition | None = None, overrides: Overrides | None = None) -> Iterator[None]:
        """A context in which this thread trains, until the timeout or, where a whole fit has its place, Ctrl-C."""
        # A callback may call `partial_fit` or `fit`.
        outer, self.thread = (self.thread, self.place, self.overrides), get_ident()
        self.place, self.overrides = place or self.place, overrides or NO_OVERRIDES
        try:
            with interruptible(self, self.settings.timeout, always=place is not None):
                yield
        finally:
            self.thread, former, self.overrides = outer
            if self.thread is not None:
                self.place = former

    def _reader(self, overrides: Overrides | None) -> DataReader:
        return DataReader(self.door, self.settings, self.engine.is_distributed, overrides or NO_OVERRIDES)

    def to_arrays(self, X: Data, y: Data, sample_weight: Data) -> tuple[dict[str, np.ndarray], int]:
        """The arrays that steps read, and their number of rows."""
        return self.door.to_arrays(X, y, sample_weight, self.settings.batch_size)

    def _begin(self, data: Mapping[str, np.ndarray], validation: Iterable[Data] | None = None) -> bool:
        """Hand the rows to the engine, with the state of the first process; return whether this is the first."""
        self._start(data)
        if self.engine.is_distributed:
            names = ("batch_size", "max_iter", "shuffle", "validation_every")
            settings = {n: getattr(self.settings, n) for n in names}
            facts = {**describe_settings(**settings), **describe_arrays(data)}
            self.engine.check_same(facts | _describe_validation(validation))
        self.rng = self.engine.broadcast(self.rng)
        self.engine.synchronize()
        return self.engine.is_first

    def _start(self, data: Mapping[str, np.ndarray]) -> None:
        """Hand the rows to the engine."""
        self.engine.start(data)
        self.rows = data

    def _shuffle(self, rows: np.ndarray, place: FitPosition, is_told: bool) -> np.ndarray:
        """The rows in the order of the epoch that begins or goes on."""
        rng, order = self.door.draw_from(self.rng, self.engine.iteration - place.batches), rows.copy()
        bits = rng.bit_generator
        now = bits.state if is_told else None
        if now is not None and place.batches and place.order is not None:
            bits.state = place.order
            rng.shuffle(order)
            bits.state = now
        else:
            place.order = now
            rng.shuffle(order)
        return order

    def _train_rows(self, data: FitData, place: FitPosition, tasks: FitTasks | None = None) -> str | None:
        """Train on each of these rows once, at once or in pieces; return a message if the loss diverged."""
        self._mean = None
        size, order, arrays = self.settings.batch_size, data.rows, data.arrays
        if self.settings.shuffle:
            order = self._shuffle(data.rows, place, is_told=tasks is not None)
        if self.settings.check:  # Asked here, as a small training takes microseconds.
            self._check_step(arrays, order[:size])
        mean, loss = place.mean or self.engine.mean, place.mean.value if place.mean else 0.0
        for start, stop in _WHOLE if tasks is None else tasks.cut(-(-order.size // size), place.batches):
            with self.engine.turn.lock:
                if self.rows is not arrays:  # A callback has trained on other rows.
                    self._start(arrays)
                # After a single step, its inputs are still there.
                snapshot = self.engine.snapshot(copy=order.size > size) if self.engine.copies > 1 else None
                self.engine.mean = mean
                loss = self.engine.epoch(order, size, start, stop)
                mean = self.engine.mean
                if not (np.isfinite(loss) and self.engine.is_finite()):
                    return self._replay(snapshot, order[start * size :], size, loss)
            place.batches, place.mean = stop or 0, mean
        place.batches, place.mean = 0, None
        self.train_losses.append(loss)  # Without a method of its own: an epoch may take microseconds.
        self.n_iter += 1
        return None

    def _check_step(self, data: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        """Compare a step on a batch of these rows with the model as it is written, once for each engine."""
        if self._checked is not self.engine:
            with self.engine.turn.lock:
                self.door.check_step({n: a[rows] for n, a in data.items()})
            self._checked = self.engine

    def _replay(self, snapshot: State | None, order: np.ndarray, size: int, loss: float) -> str:
        """Repeat diverged steps up to the last finite step; return the message."""
        engine = self.engine
        if snapshot is None:  # With one set of weights, the step was not taken.
            return self._describe(loss, engine.iteration + 1)
        engine.restore(snapshot)
        for start in range(0, len(order), size):
            last = engine.snapshot()
            loss = engine.epoch(order[start : start + size], size)
            if not self._is_finite(loss):
                break
        iteration = engine.iteration
        engine.restore(last)
        return self._describe(loss, iteration)

    def _list_batches(self, data: FitData, place: FitPosition, is_told: bool) -> Iterator[Data]:
        """The batches of the epoch that begins, or the batches left of an epoch that goes on."""
        if data.batches is not None:
            if (set_epoch := getattr(data.batches, "set_epoch", None)) is not None:
                set_epoch(self.n_iter)
            each = self.door.read_batches(data.batches, with_target=self.overrides.train_step is None)
            yield from islice(each, place.batches, None)
            return
        size = self.settings.batch_size
        order = self._shuffle(data.rows, place, is_told) if self.settings.shuffle else data.rows
        for start in range(place.batches * size, order.size, size):
            yield self.door.to_batch({n: a[order[start : start + size]] for n, a in data.arrays.items()})

    def _train_batches(self, data: FitData, place: FitPosition, tasks: FitTasks | None = None) -> str | None:
        """Train on every batch once, each in a turn; return a message if the loss diverged."""
        mean = self._mean = place.mean = place.mean or WeightedMean()
        each, train_step = self._list_batches(data, place, tasks is not None), self.overrides.train_step
        for batch in each if tasks is None else tasks.follow(each, place.batches):
            self._mean = mean  # A callback may have trained on other rows.
            try:
                loss, weight = self._step(batch) if train_step is None else (
                    float(train_step(batch)), _count_rows(batch))
            except ConvergenceError as e:  # The step was undone.
                return str(e.args[0])
            if train_step is not None and not self._is_finite(loss):
                return self._describe(loss, self.engine.iteration)
            mean.add(weight * loss, weight)
            place.batches += 1
        place.batches, place.mean = 0, None
        self.train_losses.append(mean.value)
        self.n_iter += 1
        return None

    def _record(self, **losses: float) -> None:
        """Add a record of the epoch that has ended."""
        now = perf_counter()
        self.records.append({"epoch": self.n_iter, "iteration": self.engine.iteration, "seconds": now - self.began,
                             "learning_rate": self.door.describe_rate(), "loss": self.train_losses[-1], **losses})
        self.began = now  # The beginning of the next epoch, if nothing is between them.

    def _is_finite(self, loss: float) -> bool:
        """Whether a loss and all weights are finite numbers."""
        return bool(np.isfinite(loss)) and self.engine.is_finite()

    def _describe(self, loss: float, iteration: int) -> str:
        """The message about a loss that diverged."""
        return self.door.describe_divergence(loss, iteration, self.n_iter + 1)

    def _report(self, divergence: str, stacklevel: int) -> None:
        """Raise the message as an error, or warn."""
        if self.settings.raise_on_divergence:
            raise ConvergenceError(divergence)
        warnings.warn(divergence, ConvergenceWarning, stacklevel=stacklevel)

    @property
    def history(self) -> list[Record]:
        """The records of all epochs, with their step sizes."""
        self.door.complete(self.records)
        return self.records

    @property
    def progress(self) -> State:
        """The history, by its names in files; records are copies."""
        return {n: getattr(self, kept) for n, kept in HISTORY.items()} | {"history_": [dict(r) for r in self.history]}

    @progress.setter
    def progress(self, values: Entries) -> None:
        for name in HISTORY.keys() & values.keys() - {"history_"}:
            setattr(self, HISTORY[name], values[name])
        self.records[:] = map(dict, values.get("history_", self.records))  # The door may have the list, too.

    def capture(self, **parts: object) -> State:
        """The content of a checkpoint: the parts that a door adds, history, random state, place and callbacks."""
        return {"form": _FORM, **parts, "progress": self.progress, "random": self.rng.bit_generator.state,
                "place": self.place.state, "callbacks": get_states(self.settings.callbacks)}

    def restore(self, state: Entries, rng: np.random.Generator) -> None:
        """Go on with the history and the random state of a checkpoint, in a generator that takes it."""
        rng.bit_generator.state = state["random"]
        self.progress, self.rng = state["progress"], rng

    def find(self, path: str | os.PathLike[str]) -> tuple[str, State] | None:
        """The checkpoint from which a fit is to go on, read by the first process: its name in errors, and its content.

        It is a file, or the newest whole file of a folder; None where the folder holds no checkpoint.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise SettingError(f"resume is the folder of a Checkpoint, or a file of it, not {path!r}.")
        stored = self.engine.broadcast(find_checkpoint(path) if self.engine.is_first else None)
        return None if stored is None else (f"The checkpoint {str(stored[0])!r}", stored[1])

    def read_losses(self) -> dict[str, float]:
        """The last losses, to be shown."""
        last = {"loss": self.train_losses[-1:], "validation": self.validation_losses[-1:]}
        return {**{n: v[0] for n, v in last.items() if v}, **self.last_metrics}

    def read_progress(self) -> tuple[int, float | None]:
        """The number of batches taken so far, and the mean loss of the epoch that runs; another thread asks."""
        mean = self._mean or self.engine.mean
        return self.engine.iteration, mean.value if mean.weight or mean.waiting else None


def _describe_validation(batches: Iterable[Data] | None) -> dict[str, str]:
    """Describe the data that validate, as far as they are arrays."""
    facts = {"X_val": "missing" if batches is None else "given"}
    if isinstance(batches, list):
        for name, part in zip(("X_val", "y_val"), batches[0], strict=False):
            facts |= describe_arrays(part if isinstance(part, Mapping) else {name: part})
    return facts


def _average(step: Callable[[Data], float | Mapping[str, float]], batches: Iterable[Data]) -> dict[str, float]:
    """The means over all rows of the numbers that a function computes of batches."""
    sums: defaultdict[str, float] = defaultdict(float)
    total = 0
    for batch in batches:
        result, rows = step(batch), _count_rows(batch)
        for name, number in (result if isinstance(result, Mapping) else {"loss": result}).items():
            sums[name] += rows * float(number)
        total += rows
    return {name: number / total for name, number in sums.items()}


def _count_rows(batch: Data) -> int:
    """The number of rows of a batch."""
    X = next(iter(batch[0].values())) if isinstance(batch[0], Mapping) else batch[0]
    return len(X)

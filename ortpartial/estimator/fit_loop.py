"""Training loop: epochs over rows or batches, validation, callbacks, and divergence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import islice
from numbers import Real
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DataError, SettingError
from ortpartial.learning import draw_weights
from ortpartial.logs import logger
from ortpartial.training import Engine, TrainingSpec, WeightedMean, check_rewrites, count_elements

from .batches import is_batches
from .params import FitSettings
from .predictor import Predictor, interruptible
from .progress import Progress

if TYPE_CHECKING:
    from .tasks import FitTasks

__all__ = ["FitLoop", "Place", "count_batches"]


@dataclass
class Place:
    """Where a fit is, from which it can go on.

    Attributes
    ----------
    epoch : int
        Number of its epochs that are over.
    batches : int
        Number of batches of the epoch that runs which are over.
    start : int
        Number of batches seen before the fit.
    rows : int or None
        Number of rows that are trained, 0 where they come in batches; None before the first fit.
    is_stopped : bool
        Whether a callback has asked to stop.
    held_out, order : dict or None
        The random states from which the rows for validation, and the order of the others in the epoch that runs, were
        drawn, where that may be asked for.
    mean : WeightedMean or None
        The mean loss of that epoch until there.
    """

    epoch: int = 0
    batches: int = 0
    start: int = 0
    rows: int | None = None
    is_stopped: bool = False
    held_out: Mapping[str, Any] | None = None
    order: Mapping[str, Any] | None = None
    mean: WeightedMean | None = None

    @property
    def state(self) -> dict[str, Any]:
        """What `from_state` makes it of again."""
        mean = self.mean.state if self.batches and self.mean else None
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"mean": mean}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Place:
        """The place that `state` tells of."""
        mean = state["mean"]
        return cls(**{**state, "mean": mean and WeightedMean.from_state(mean)})


#: The pieces of an epoch that is not cut: one, from its first batch to its last.
_WHOLE = ((0, None),)


class FitLoop:
    """The epochs of a training, and their progress.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    engine : Engine
        Holds the weights and takes the steps.
    predictor : Predictor
        Computes validation losses, and has the data adapter.
    settings : FitSettings
        May be replaced between two epochs, as may `spec` and `engine` by those of another optimizer or penalty.

    Attributes
    ----------
    train_losses, validation_losses : list of float
        One number per epoch, and one per validation.
    n_iter : int
        Number of epochs trained.
    records : list of dict
        A record of each epoch. In place of its step size there may be the spec, update and scale that it follows
        from: a schedule is a graph, and an epoch may take microseconds.
    place : Place
        Where the last fit is.
    began : float
        When the epoch began, by `time.perf_counter`.
    rng : numpy.random.Generator
        Source of the order of the rows.
    thread : int or None
        The thread that trains now.
    """

    def __init__(self, spec: TrainingSpec, engine: Engine, predictor: Predictor, settings: FitSettings):
        self.spec, self.engine, self.predictor, self.settings = spec, engine, predictor, settings
        self.thread: int | None = None
        self.began, self.place = perf_counter(), Place()
        self.count_steps: Callable[[], int | None] = lambda: None  # of an epoch of the fit that runs
        self._mean: WeightedMean | None = None  # of the batches of an epoch; that of rows is the engine's
        self._checked: Engine | None = None  # whose step is known to be that of the model as it is written
        self.reset()

    def reset(self) -> None:
        """Return to the first weights and keep compiled graphs."""
        self.rng = np.random.default_rng(self.settings.random_state)
        self.train_losses: list[float] = []
        self.validation_losses: list[float] = []
        self.n_iter = 0
        self.records: list[dict[str, Any]] = []
        first = dict(self.spec.model.arrays)
        if self.settings.init == "random":
            first |= draw_weights(self.spec.model, self.spec.weights, self.rng)
        seed = self.rng.integers(-(2**31), 2**31, 2).tolist() if self.spec.train_mode else (0, 0)
        with self.engine.turn.lock:
            self.engine.reset(first, seed)

    def fit(self, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any, tasks: FitTasks | None = None,
            former: Place | None = None) -> None:
        """Train for `max_iter` epochs, or until one of those that are told of the tasks asks to stop.

        A fit that was cut off goes on from its `former` place.
        """
        batches = self._check_batches(X) if y is None else None
        if sample_weight is not None and X_val is not None and y_val is None and not isinstance(X_val, Real):
            raise DataError("The third argument of fit is sample_weight; give validation data by name, as "
                            "fit(X, y, X_val=..., y_val=...).")
        with interruptible(self, self.settings.timeout):
            data, rows = ({}, 0) if batches is not None else self.to_arrays(X, y, sample_weight)
            self.predictor.data.check_counts(data)
            place = former or Place()
            kept, validation = self._hold_out(data, rows, X_val, y_val, place)
        if former is not None:
            _check_rows(former, len(kept))
        elif not self.settings.warm_start:
            self.reset()
        place.rows, place.start = len(kept), place.start if former else self.engine.iteration
        is_first = batches is not None or self._begin(data, rows)
        logger.info("training by engine %r: %s", self.engine.name, self.engine.reason)
        with Progress(self.read_progress, is_first) as progress, self._training(place), tasks or nullcontext():
            if former is not None:
                progress.go_on(place.epoch, self.settings.max_iter, place.batches, self.settings.verbose)
                if tasks is not None:
                    tasks.begin_fit()
            if divergence := self._train_epochs(data, kept, batches, validation, progress, tasks):
                progress.ending = "loss not finite"
                self._report(divergence, 6)  # the caller of the optimizer's `fit`, which is decorated

    def _train_epochs(self, data: Mapping[str, np.ndarray], rows: np.ndarray, batches: Any, validation: Any,
                      progress: Progress, tasks: FitTasks | None) -> str | None:
        """Train and validate for some epochs; return a message if the loss diverged."""
        place, steps, self.began = self.place, None, perf_counter()

        def count_steps() -> int | None:
            return self._count_steps(rows, batches) or steps

        self.count_steps = count_steps
        while place.epoch < self.settings.max_iter and not place.is_stopped:
            epoch = place.epoch + 1
            told = tasks if tasks is not None and (self.settings.callbacks or tasks.is_followed) else None
            if told is not None:
                told.begin_epoch(count_steps())
                self.began = perf_counter()
            progress.begin_epoch(epoch, self.settings.max_iter, count_steps, self.settings.verbose)
            seen = self.engine.iteration - place.batches
            divergence = (self._train_rows(data, rows, place, told) if batches is None else
                          self._train_batches(batches, place, told))
            if divergence:
                return divergence
            steps, place.epoch = self.engine.iteration - seen, epoch
            if validation is not None and (epoch == self.settings.max_iter
                                           or epoch % self.settings.validation_period == 0):
                self.validation_losses.append(self._validate(validation))
                self._record(validation_loss=self.validation_losses[-1])
                self._watch(self.validation_losses)
            else:
                self._record()
                if validation is None and self.engine.controls:
                    self._watch(self.train_losses)
            progress.end_epoch(self.read_losses)
            if told is not None and (told.end_epoch() or place.is_stopped):
                progress.ending = f"stopped by {told.stopped_by}"
        if tasks is not None:
            tasks.end_fit()
        return None

    def partial_fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Train for one epoch, from the current state."""
        self.began = perf_counter()
        if y is None:
            batches = self._check_batches(X, 1)
            with self._training():
                divergence = self._train_batches(batches, Place())
        else:
            with interruptible(self, self.settings.timeout):
                data, rows = self.to_arrays(X, y, sample_weight)
            self._begin(data, rows)
            with self._training():
                divergence = self._train_rows(data, np.arange(rows), Place())
        if divergence:
            self._report(divergence, 6)  # the caller of the optimizer's method, which is decorated
        else:
            self._record()
            self._watch(self.train_losses)

    def _watch(self, losses: Sequence[float]) -> None:
        """Let a schedule reduce the step size where the loss no longer falls."""
        if (plateau := self.spec.rate.plateau) is None:
            return
        names, engine = self.spec.names, self.engine
        with engine.turn.lock:
            scale, memory = plateau.watch(losses[-1], float(engine.get(names.rate_scale)), engine.get(names.plateau),
                                          self.spec.rate.eta0)
            engine.set(names.rate_scale, np.array(scale))
            engine.set(names.plateau, memory)

    def _hold_out(self, data: Mapping[str, np.ndarray], rows: int, X_val: Any, y_val: Any, place: Place
                  ) -> tuple[np.ndarray, Any]:
        """The rows to train on, and the batches to validate on, if any."""
        kept, reader = np.arange(rows), self.predictor.reader
        if X_val is None:
            if y_val is not None:
                raise DataError("X_val and y_val belong together; X_val is missing.")
            return kept, None
        if isinstance(X_val, Real):
            held_out = self._draw_rows(X_val, y_val, rows, place)
            held_rows = {n: a[held_out] for n, a in data.items()}
            return np.setdiff1d(kept, held_out), [self.predictor.data.to_batch(held_rows)]
        X_val, y_val, _ = reader.unpack(X_val, y_val, None)
        if y_val is not None:
            # An error is better now than after the first epochs.
            try:
                self.predictor.data.check_counts(self.to_arrays(X_val, y_val, None)[0])
            except DataError as e:
                raise DataError(f"The validation data do not fit: {e}") from None
            return kept, [(X_val, y_val, None)]
        if not is_batches(X_val):
            raise DataError("X_val and y_val belong together; y_val is missing.")
        if iter(X_val) is X_val and self.settings.max_iter > 1:
            raise DataError("X_val gives its batches once; give what can be iterated over again.")
        return kept, X_val

    def _draw_rows(self, share: Any, y_val: Any, rows: int, place: Place) -> np.ndarray:
        """The rows that a share holds out, which follow from a number as `random_state`, in their order."""
        seed = self.settings.random_state
        if not 0 < share < 1 or y_val is not None:
            raise DataError(f"X_val is {share!r}; give data and y_val, or alone a share of the rows between 0 and 1.")
        if not rows:
            raise DataError("X gives batches; X_val cannot be a share of them, give other ones.")
        if self.engine.is_distributed and seed is None:
            raise DataError("X_val is a share of the rows, the same ones in every process; set random_state.")
        count = max(1, round(share * rows))
        if count >= rows:
            raise DataError(f"X_val={share!r} of {rows} rows leaves none to train on.")
        rng = np.random.default_rng(seed)
        if place.held_out is not None:  # The fit goes on, whose generator is further by now.
            rng = np.random.Generator(type(self.rng.bit_generator)())
            rng.bit_generator.state = place.held_out
        place.held_out = rng.bit_generator.state
        return np.sort(rng.permutation(rows)[:count])

    def _validate(self, batches: Any) -> float:
        """The mean loss of validation data, over what counts in all their batches."""
        sums = sum(self.predictor.sum_losses(*batch) for batch in self.predictor.reader.read_batches(batches))
        return sum(total / count for total, count in np.asarray(sums).tolist() if count)

    @contextmanager
    def _training(self, place: Place | None = None) -> Iterator[None]:
        """A context in which this thread trains, until the timeout or, where a whole fit has its place, Ctrl-C."""
        outer, self.thread = (self.thread, self.place), get_ident()  # A callback may call `partial_fit` or `fit`.
        self.place = place or self.place
        try:
            with interruptible(self, self.settings.timeout, always=place is not None):
                yield
        finally:
            self.thread, former = outer
            if self.thread is not None:
                self.place = former

    def to_arrays(self, X: Any, y: Any, sample_weight: Any, batch_size: int | None = None
                  ) -> tuple[dict[str, np.ndarray], int]:
        """The arrays that a step reads, and their number of rows."""
        predictor = self.predictor
        return predictor.data.to_arrays(X, y, sample_weight, batch_size or self.settings.batch_size, predictor.forward)

    def _begin(self, data: Mapping[str, np.ndarray], rows: int) -> bool:
        """Hand the rows to the engine, with the state of the first process; return whether this is the first."""
        self._start(data)
        first_rows, self.rng = self.engine.broadcast((rows, self.rng))
        if first_rows != rows:
            raise DataError(f"This process has {rows} rows, the first one {first_rows}; every process is given all "
                            f"rows.")
        self.engine.synchronize()
        return self.engine.is_first

    def _start(self, data: Mapping[str, np.ndarray]) -> None:
        """Hand the rows to the engine."""
        self.engine.start(data)
        self._started = data

    def _check_batches(self, X: Any, epochs: int | None = None) -> Iterable[Any]:
        """X, if it can be iterated over in every epoch."""
        if isinstance(X, tuple) and len(X) in (2, 3) and all(hasattr(a, "__array__") for a in X):
            raise DataError(f"X is a tuple of {len(X)} arrays; give them as arguments of their own: fit(X, y).")
        if not is_batches(X) and not isinstance(X, (tuple, list)):
            raise DataError(f"{self.predictor.reader.target} is missing; without it, X is to give batches (X, y), one "
                            f"after the other, as PaddedBatches does of rows of token ids.")
        if iter(X) is X and (epochs or self.settings.max_iter) > 1:
            raise DataError(f"X gives its batches once, and max_iter is {self.settings.max_iter}: give what can be "
                            f"iterated over again, such as a list or a DataLoader, or max_iter=1.")
        if self.engine.is_distributed:
            raise DataError("distributed=True needs all rows as arrays, memory maps for example, not batches.")
        return X

    def _shuffle(self, rows: np.ndarray, place: Place, is_told: bool) -> np.ndarray:
        """The rows in the order of the epoch that begins, or of the one that goes on."""
        bits, order = self.rng.bit_generator, rows.copy()
        now = bits.state if is_told else None
        if now is not None and place.batches and place.order is not None:
            bits.state = place.order
            self.rng.shuffle(order)
            bits.state = now
        else:
            place.order = now
            self.rng.shuffle(order)
        return order

    def _train_rows(self, data: Mapping[str, np.ndarray], rows: np.ndarray, place: Place,
                    tasks: FitTasks | None = None) -> str | None:
        """Train on each of these rows once, in one turn or in pieces; return a message if the loss diverged."""
        self._mean = None
        size, order = self.settings.batch_size, rows
        if self.settings.shuffle:
            order = self._shuffle(rows, place, is_told=tasks is not None)
        if self.settings.check:  # Asked here, as a small training takes microseconds.
            self._check_step(data, order[:size])
        mean, loss = place.mean or self.engine.mean, place.mean.value if place.mean else 0.0
        for start, stop in _WHOLE if tasks is None else tasks.cut(-(-order.size // size), place.batches):
            with self.engine.turn.lock:
                if self._started is not data:  # A callback has trained on other rows.
                    self._start(data)
                # After a single step, what it has read is still there.
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
                check_rewrites(self.engine, {n: a[rows] for n, a in data.items()})
            self._checked = self.engine

    def _replay(self, snapshot: Any, order: np.ndarray, size: int, loss: float) -> str:
        """Repeat diverged steps up to the last finite one; return the message."""
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

    def _train_batches(self, batches: Iterable[Any], place: Place, tasks: FitTasks | None = None) -> str | None:
        """Train on every batch once, each in a turn; return a message if the loss diverged."""
        if (set_epoch := getattr(batches, "set_epoch", None)) is not None:
            set_epoch(self.n_iter)
        mean = self._mean = place.mean = place.mean or WeightedMean()
        each = islice(self.predictor.reader.read_batches(batches), place.batches, None)
        for X, y, w in each if tasks is None else tasks.follow(each, place.batches):
            engine, self._mean = self.engine, mean  # A callback may have changed the rate, or trained on other rows.
            data, rows = self.to_arrays(X, y, w, self.predictor.data.fixed_batch)
            if self.settings.check:
                self._check_step(data, np.arange(self.predictor.data.fixed_batch or rows))
            with engine.turn.lock:
                self._start(data)
                loss = engine.epoch(np.arange(rows), self.predictor.data.fixed_batch or rows)
                if not self._is_finite(loss):
                    engine.undo()
                    return self._describe(loss, engine.iteration + 1)
            share = float(np.mean([rows.sum() for rows in count_elements(self.spec, data).values()]))
            mean.add(share * loss, share)
            place.batches += 1
        place.batches, place.mean = 0, None
        self.train_losses.append(mean.value)
        self.n_iter += 1
        return None

    def _record(self, **losses: float) -> None:
        """Add a record of the epoch that has ended."""
        now, engine = perf_counter(), self.engine
        update = engine.updates if self.spec.accumulate > 1 or self.spec.precision else engine.iteration
        scale = float(engine.get(self.spec.names.rate_scale)) if engine.controls else 1.0
        self.records.append({"epoch": self.n_iter, "iteration": engine.iteration, "seconds": now - self.began,
                             "learning_rate": (self.spec, update, scale), "loss": self.train_losses[-1], **losses})
        self.began = now  # That of the next epoch, if nothing is between them.

    def _is_finite(self, loss: float) -> bool:
        """Whether a loss and all weights are finite numbers."""
        return bool(np.isfinite(loss)) and self.engine.is_finite()

    def _describe(self, loss: float, iteration: int) -> str:
        """The message about a loss that diverged."""
        weights = ", and a weight is NaN or infinite," if np.isfinite(loss) else ""
        return (f"The loss is {loss}{weights} at iteration {iteration} (epoch {self.n_iter + 1}) with "
                f"{self.spec.rate!r}; the weights are those of iteration {iteration - 1}. Lower the rate, or scale X "
                f"and y.")

    def _report(self, divergence: str, stacklevel: int) -> None:
        """Raise the message as an error, or warn."""
        if self.settings.exc:
            raise ConvergenceError(divergence)
        warnings.warn(divergence, ConvergenceWarning, stacklevel=stacklevel)

    def read_losses(self) -> dict[str, float]:
        """The last losses, to be shown."""
        last = {"loss": self.train_losses[-1:], "validation": self.validation_losses[-1:]}
        return {n: v[0] for n, v in last.items() if v}

    def read_progress(self) -> tuple[int, float | None]:
        """The number of batches taken so far, and the mean loss of the epoch that runs; another thread asks."""
        mean = self._mean or self.engine.mean
        return self.engine.iteration, mean.value if mean.weight or mean.waiting else None

    def _count_steps(self, rows: np.ndarray, batches: Any) -> int | None:
        """The number of steps of an epoch, if it is known."""
        if batches is None:
            return -(-len(rows) // self.settings.batch_size)
        return len(batches) if hasattr(batches, "__len__") else None


def _check_rows(former: Place, rows: int) -> None:
    """Check that a fit goes on with as many rows as before."""
    if former.rows not in (None, rows):
        there, here = (f"{n} rows" if n else "batches" for n in (former.rows, rows))
        raise DataError(f"The checkpoint is of a training on {there}, and this one is on {here}; give the same data.")


def count_batches(X: Any, y: Any, batch_size: int, X_val: Any = None) -> int:
    """The number of batches of an epoch; the data are checked later.

    Parameters
    ----------
    X, y : object
        As for `fit`; without `y`, X gives the batches.
    batch_size : int
        Rows of a batch, where `y` is given.
    X_val : object
        As for `fit`: a number is the share of the rows that is not trained.

    Returns
    -------
    int
        At least 1.

    Raises
    ------
    SettingError
        X gives batches, and does not say how many.
    """
    whole = next(iter(X.values()), ()) if isinstance(X, Mapping) and y is not None else X
    try:
        count = len(whole)
    except TypeError:
        if y is None and isinstance(X, Iterable):
            raise SettingError("The schedule lasts as long as the training, and X has no len() and does not say how "
                               "many batches it gives; give the schedule their number, as CosineSchedule(n=...)."
                               ) from None
        return 1
    if y is None:
        return max(1, count)
    held_out = max(1, round(float(X_val) * count)) if isinstance(X_val, Real) else 0
    return max(1, -(-(count - held_out) // batch_size))

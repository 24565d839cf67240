"""Epochs of a stored training: steps over the rows in a new order, and means of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import ConvergenceError, DeadlineError
from ortpartial.execution import (
    Batch,
    FitSettings,
    Loop,
    Means,
    Overrides,
    StepDoor,
    describe_infinity,
    read_numbers,
)
from ortpartial.learning import Meter

from .rows import count_rows
from .session import TrainingSession

__all__ = ["train_epochs"]

#: The stand-in for y: the arrays of a training have the targets among them.
_NO_TARGET = ()


def train_epochs(
    session: TrainingSession, data: Mapping[str, np.ndarray], epochs: int, batch_size: int, *,
    rng: np.random.Generator | None = None, validation: Mapping[str, np.ndarray] | None = None,
    after_step: Callable[[Mapping[str, float]], bool] | None = None, timeout: float | None = None,
    raise_on_divergence: bool = True,
) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Train for some epochs, and yield after each the means over its rows of all outputs that are numbers.

    With the engine ``"epoch"`` or ``"native"`` of the session, many steps are taken in a run where nothing is to be
    called after each, a step returns a single number, and the model does not declare the size of a batch.

    Parameters
    ----------
    session : TrainingSession
        Takes the steps; it is changed.
    data : dict of str to numpy.ndarray of shape (rows, ...)
        By the names of its inputs. An array without axes is the same for every row.
    epochs, batch_size : int
        How often to go over the rows, and the rows of a step. The last step of an epoch has fewer, or begins again with
        the first rows where the model declares the size of a batch.
    rng : numpy.random.Generator, optional
        Draws a new order of the rows for every epoch; by default they stay in theirs.
    validation : dict of str to numpy.ndarray, optional
        Rows to evaluate after every epoch.
    after_step : callable, optional
        Called with the means so far; where it returns True, the training ends with this step.
    timeout : float, optional
        Seconds after which the training ends.
    raise_on_divergence : bool
        Whether an output that is NaN or infinite is an error; otherwise it warns, and the training ends.

    Yields
    ------
    means, validation : dict of str to float
        By the names of the outputs; the second is empty without `validation`.

    Raises
    ------
    ConvergenceError
        An output is NaN or infinite; the state is that before its step.
    DeadlineError
        The time is over; the state is that of the steps until then.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> session = TrainingSession(optimizer.get_training_onnx())
    >>> X = np.ones((4, 1), np.float32)
    >>> [means["loss"] for means, _ in train_epochs(session, {"x": X, "y_target": 2 * X}, 3, 4)]
    [4.0, 1.0, 0.25]
    """
    settings = FitSettings(max_iter=1, batch_size=batch_size, shuffle=rng is not None, warm_start=True,
                           validation_every=1, timeout=timeout, raise_on_divergence=raise_on_divergence)
    door = SessionDoor(session, data, batch_size, rng, after_step, validation or {})
    loop = Loop(session.runner, door, settings)
    end, late = (None, "") if timeout is None else (
        monotonic() + timeout, f"The training was not over after {timeout:g} s, the timeout.")
    for _ in range(epochs):
        if end is not None:
            if (left := end - monotonic()) <= 0:
                raise DeadlineError(late)
            loop.settings = FitSettings(**{**vars(settings), "timeout": left})
        door.begin_epoch()
        epochs_before = loop.n_iter
        try:
            loop.fit(data, _NO_TARGET, None, validation, None if validation is None else _NO_TARGET,
                     overrides=door.overrides)
        except _End:
            yield door.means.read(), door.validate([(validation, None, None)]) if validation is not None else {}
            return
        except DeadlineError as e:  # It tells the time that was left.
            raise DeadlineError(late or str(e)) from None
        if loop.n_iter == epochs_before:  # It has diverged, and warned.
            return
        means = {str(session.loss): loop.train_losses[-1]} if door.is_joined else door.means.read()
        yield means, door.validated if validation is not None else {}


class _End(Exception):
    """The caller has asked to end with the step that was taken."""


class SessionDoor(StepDoor):
    """The `Door` of a stored training.

    Parameters
    ----------
    session : TrainingSession
        Takes the steps.
    data : dict of str to numpy.ndarray
        The rows.
    batch_size : int
        The rows of a step.
    rng : numpy.random.Generator or None
        Draws the order of the rows.
    after_step : callable or None
        As for `train_epochs`.
    validation : dict of str to numpy.ndarray
        The rows that validate, if any.
    """

    def __init__(self, session: TrainingSession, data: Mapping[str, np.ndarray], batch_size: int,
                 rng: np.random.Generator | None, after_step: Callable[[Mapping[str, float]], bool] | None,
                 validation: Mapping[str, np.ndarray]):
        super().__init__(batch_size, session.batch_size is not None)
        self.session, self.rng, self.after_step = session, rng, after_step
        #: Whether the runner takes all steps of an epoch.
        self.is_joined = (after_step is None and session.engine_ != "step" and session.loss is not None
                          and not self.is_fixed and all(a.ndim for a in data.values()))
        self.constant, self.validation_constant = ({n: a for n, a in rows.items() if not a.ndim}
                                                   for rows in (data, validation))
        self.epoch = self.steps = 0

    def begin_epoch(self) -> None:
        """Forget the means of the epoch before."""
        self.epoch += 1
        self.means = Means()  # Empty where the runner takes the steps.
        self._first: Mapping[str, np.ndarray] = {}

    def to_arrays(self, X: Data, y: Data, sample_weight: Data, batch_size: int | None
                  ) -> tuple[dict[str, np.ndarray], int]:
        """The arrays that have rows, and their number."""
        rows = count_rows(X)
        arrays = self.session.convert(X) if self.is_joined else X
        return {n: a for n, a in arrays.items() if a.ndim}, rows

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The batch of some rows, filled up with the first rows of the epoch where the model declares its size."""
        if self.is_fixed:
            self._first = self._first or arrays
            arrays = {n: np.concatenate([a, self._first[n]]).take(range(self.batch_size), 0, mode="wrap")
                      if len(a) < self.batch_size else a for n, a in arrays.items()}
        return arrays, None, None

    def draw_from(self, rng: np.random.Generator, iteration: int) -> np.random.Generator:
        """The generator of the caller."""
        return self.rng or rng

    @property
    def overrides(self) -> Overrides:
        """The step of the session in place of the loop's own."""
        return Overrides() if self.is_joined else Overrides(train_step=self.train_step)

    def train_step(self, batch: Batch) -> float:
        """Take a step; it is undone if its outputs are not finite."""
        self.steps += 1
        arrays = batch[0]
        outputs = self.session.step({**arrays, **self.constant} if self.constant else arrays)
        try:
            numbers = read_numbers(outputs, f"step {self.steps} (epoch {self.epoch})")
        except ConvergenceError:
            self.session.undo()
            raise
        self.means.add(numbers, len(next(iter(arrays.values()), (0,))))
        if self.after_step is not None and self.after_step(self.means.read()):
            raise _End
        return 0.0  # The means are ours, of all outputs.

    def evaluate(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of a step that is not taken."""
        return self.session.evaluate(arrays)

    def validate_held(self, arrays: Mapping[str, np.ndarray], meter: Meter | None = None) -> dict[str, float]:
        """The same of rows as `to_arrays` gives them."""
        return super().validate_held({**arrays, **self.validation_constant}, meter)

    def describe_divergence(self, loss: float, iteration: int, epoch: int) -> str:
        """The message about a loss that is not finite."""
        return describe_infinity(str(self.session.loss), loss, f"step {iteration} (epoch {epoch})")

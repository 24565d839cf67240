"""Epochs of a stored training: steps over the rows in a new order, and means of what they compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import count

import numpy as np

from ortpartial.exceptions import ConvergenceError

from .rows import count_rows, select_rows
from .session import TrainingSession

__all__ = ["train_epochs"]

#: Sums over rows of the outputs that are numbers, such as the loss, by name.
Sums = defaultdict[str, float]


def train_epochs(
    session: TrainingSession, data: Mapping[str, np.ndarray], epochs: int, batch_size: int, *,
    rng: np.random.Generator | None = None, validation: Mapping[str, np.ndarray] | None = None,
    after_step: Callable[[Mapping[str, float]], bool] = lambda means: False,
) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    """Train for some epochs, and yield after each the means over its rows of all outputs that are numbers.

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
    after_step : callable
        Called with the means so far; where it returns True, the training ends with this step.

    Yields
    ------
    means, validation : dict of str to float
        By the names of the outputs; the second is empty without `validation`.

    Raises
    ------
    ConvergenceError
        An output is NaN or infinite.

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
    rows, steps = count_rows(data), count(1)
    for epoch in range(1, epochs + 1):
        order = np.arange(rows) if rng is None else rng.permutation(rows)
        sums, ended = Sums(float), False
        for batch in _split(session, order, batch_size):
            _add(sums, session.step(select_rows(data, batch)), len(batch), f"step {next(steps)} (epoch {epoch})")
            if ended := after_step(_mean(sums)):
                break
        yield _mean(sums), _evaluate(session, validation, batch_size) if validation else {}
        if ended:
            break


def _split(session: TrainingSession, order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """The rows of each batch; the last is filled up where the model declares its size."""
    for start in range(0, len(order), size):
        if session.batch_size is None:
            yield order[start : start + size]
        else:
            yield order.take(range(start, start + size), mode="wrap")


def _evaluate(session: TrainingSession, data: Mapping[str, np.ndarray], size: int) -> dict[str, float]:
    """The means over the rows without a step."""
    sums = Sums(float)
    for batch in _split(session, np.arange(count_rows(data)), size):
        _add(sums, session.evaluate(select_rows(data, batch)), len(batch), "the validation")
    return _mean(sums)


def _add(sums: Sums, outputs: Mapping[str, np.ndarray], rows: int, where: str) -> None:
    """Add the outputs of a batch that are numbers to their sums over rows."""
    for n, v in outputs.items():
        if v.size == 1 and v.dtype.kind == "f":
            if not np.isfinite(v).all():
                raise ConvergenceError(f"The output {n!r} is {v.item()} in {where}; lower the learning rate, or scale "
                                       f"the data.")
            sums[n] += rows * v.item()
    sums[""] += rows


def _mean(sums: Sums) -> dict[str, float]:
    """The means over the rows that were added."""
    return {n: total / sums[""] for n, total in sums.items() if n}

"""Times of steps on random rows, which `bench` compares and `info --measure` tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ortpartial.annotations import Data, Settings
from ortpartial.estimator import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import find_inputs
from ortpartial.learning import BaseLearningLoss
from ortpartial.model import Model, index_ranges
from ortpartial.runtime import Session
from ortpartial.training import forward_graph

__all__ = ["RandomRows", "parse_sizes", "time_forward", "time_steps"]

#: Bytes of random rows that are drawn at most, where a batch takes less.
_BYTES = 2**24

#: Batches of random rows that are drawn at most.
_BATCHES = 1000


@dataclass(frozen=True)
class RandomRows:
    """Random rows for the inputs of a model.

    Parameters
    ----------
    model : Model
        The model.
    losses : dict of str to BaseLearningLoss
        The losses of the trained outputs.
    batch_size : int
        Rows of a batch, where the model does not fix them.
    sizes : dict of str to int
        Sizes of axes by the names that the model gives them, such as the length of texts.
    """

    model: Model
    losses: Mapping[str, BaseLearningLoss]
    batch_size: int
    sizes: Mapping[str, int]

    def draw_inputs(self, batches: int = 1) -> dict[str, np.ndarray]:
        """Real numbers around 0, and whole numbers that are allowed as indices."""
        outputs = [self.model.outputs[o] for o in self.losses]
        inputs = find_inputs(outputs, self.model.inputs)
        ranges, rng = index_ranges(inputs, outputs), np.random.default_rng(0)
        arrays = {}
        for name, v in inputs.items():
            shape = [self._find_size(name, axis, n) for axis, n in enumerate(v.shape or ())]
            if not shape:
                raise DataError(f"The input {name!r} has no rows, so that none can be drawn.")
            shape[0] *= batches
            if v.is_float:
                arrays[name] = rng.standard_normal(shape, np.float32).astype(v.dtype)
            elif v.dtype.kind in "biu":
                arrays[name] = rng.integers(0, ranges[name].high + 1 if name in ranges else 2, shape).astype(v.dtype)
            else:
                raise DataError(f"The input {name!r} is of {v.dtype}, of which nothing can be drawn.")
        return arrays

    def _find_size(self, name: str, axis: int, size: int | str | None) -> int:
        if isinstance(size, int):
            return size
        if axis == 0:
            return self.batch_size
        if size not in self.sizes:
            what = f"{name}.{axis}" if size is None else size
            raise SettingError(f"The size {what!r} of the input {name!r} is open; give it, as --size {what}=16.")
        return self.sizes[str(size)]

    def count_batches(self) -> int:
        """As many batches as fit a moderate memory, so that the work around an epoch does not count."""
        size = sum(a.nbytes for a in self.draw_inputs().values())
        return max(1, min(_BATCHES, _BYTES // max(size, 1)))

    def draw_targets(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Targets that every loss takes: 0 and 1, in the shapes that the outputs of a batch have."""
        first = self.draw_inputs()
        rows, batch = (len(next(iter(arrays.values()))) for arrays in (inputs, first))
        outputs = _open(self.model, list(self.losses)).run(first)
        targets = {}
        for output, loss in self.losses.items():
            shape = loss.target_shape(outputs[output].shape)
            _, *rest = outputs[output].shape if shape is None else (int(n or 1) for n in shape)
            if len(outputs[output]) != batch:
                raise DataError(f"The output {output!r} has no row for each of the inputs.")
            targets[output] = np.random.default_rng(1).integers(0, 2, (rows, *rest))
        return targets


def parse_sizes(words: Sequence[str]) -> dict[str, int]:
    """Sizes by name, of words such as ``T=128``.

    Parameters
    ----------
    words : sequence of str
        The words.

    Returns
    -------
    dict of str to int

    Raises
    ------
    SettingError
        A word has another form.

    Examples
    --------
    >>> parse_sizes(["T=128"])
    {'T': 128}
    """
    sizes = {}
    for word in words:
        name, _, number = word.partition("=")
        if not number.isdigit() or not int(number):
            raise SettingError(f"--size is NAME=NUMBER, as T=128, not {word!r}.")
        sizes[name] = int(number)
    return sizes


def _open(model: Model, outputs: Sequence[str]) -> Session:
    return Session(forward_graph(model, [], list(outputs), used_only=True), threads=None)


def _repeat(run: Callable[[], object], seconds: float) -> float:
    """The least time of the runs that fit into some seconds, after a run that compiles."""
    run()
    times: list[float] = []
    end = perf_counter() + seconds
    while not times or perf_counter() < end:
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)


def time_forward(rows: RandomRows, seconds: float) -> float:
    """Measure how long the outputs of a batch take.

    Parameters
    ----------
    rows : RandomRows
        The model and its data.
    seconds : float
        How long to measure.

    Returns
    -------
    float
        In seconds.
    """
    session, feeds = _open(rows.model, list(rows.losses)), rows.draw_inputs()
    return _repeat(lambda: session.run(feeds), seconds)


def time_steps(rows: RandomRows, settings: Settings, seconds: float) -> tuple[float, str]:
    """Measure how long a step takes, with all that `fit` does around it.

    Parameters
    ----------
    rows : RandomRows
        The model and its data.
    settings : dict of str to object
        The settings of the optimizer.
    seconds : float
        How long to measure.

    Returns
    -------
    time : float
        In seconds.
    engine : str
        The engine that trained.
    """
    optimizer = OrtGradientForwardBackwardOptimizer(
        rows.model, learning_loss=dict(rows.losses), batch_size=rows.batch_size, shuffle=False, exc=False, **settings)
    X = rows.draw_inputs()
    y: Data = rows.draw_targets(X)
    first = _repeat(lambda: optimizer.partial_fit(X, y), 0)
    batches = max(1, min(rows.count_batches(), int(seconds / 4 / first)))
    if batches > 1:
        X = rows.draw_inputs(batches)
        y = rows.draw_targets(X)
    return _repeat(lambda: optimizer.partial_fit(X, y), seconds) / batches, optimizer.engine_

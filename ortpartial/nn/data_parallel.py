"""Data-parallel training: processes take their rows of a batch, and exchange gradients in the middle of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ortpartial.exceptions import DataError, SettingError
from ortpartial.execution import DataParallel, Exchange, StepRunner
from ortpartial.graph import Value, constant, op, walk_back, with_numbers
from ortpartial.runtime import Buffer

from .nested import Nested, flatten, rebuild
from .trace import PASSING, RANK, SHARE, WEIGHTS, Passing, Trace

__all__ = ["RESIDUAL", "Processes", "average", "average_statistics"]

#: The state that holds what is averaged beside gradients, and then the sum of the shares.
_STATISTICS = f"{PASSING}statistics"

#: The state of a process alone.
_ALONE: dict[str, np.ndarray] = {RANK: np.zeros((), np.int32), SHARE: np.ones(())}

#: How the state ends that holds what an exchange has not sent yet.
RESIDUAL = ".residual"


def average(trace: Trace, values: Sequence[Value], name: str, how: DataParallel | None = None) -> list[Value]:
    """The means of values over the processes, each of which counts as many times as it has rows.

    Parameters
    ----------
    trace : Trace
        Where it is written.
    values : sequence of Value
        Of static shapes.
    name : str
        The name of the exchanged numbers; the state that holds them adds ``data_parallel.`` before.
    how : DataParallel, optional
        How the numbers are compressed on their way.

    Returns
    -------
    list of Value
    """
    how = how or DataParallel()
    while PASSING + name in trace.exchanges:
        name += "_"
    common = np.result_type(*(v.dtype for v in values))
    sizes = [prod(v.shape) for v in values]  # type: ignore[arg-type]
    share = trace.read_state(SHARE, np.float64, (), _ALONE[SHARE]).astype(common)
    flat = op.Concat(*(v.astype(common).reshape([-1]) for v in values), axis=0) * share
    flat = op.Where(share > 0, flat, constant(np.zeros((), common)))  # No rows have no mean.
    state, shape, kept = name + RESIDUAL, (sum(sizes),), how.count_sent(sum(sizes))
    sent, rest = how.compress(flat, None if kept is None else trace.read_state(
        state, flat.dtype, shape, np.zeros(shape, flat.dtype)))
    if rest is not None:
        trace.write_state(state, rest)
    received = trace.read_state(PASSING + name, sent.dtype, shape, np.zeros(shape, sent.dtype))
    if trace.add_up is not None:
        received = with_numbers(received, trace.add_up(PASSING + name, kept, sent.numpy()))
    trace.exchanges[PASSING + name] = Passing(sent, received, kept)
    parts = op.Split(received, sizes, axis=0, n_outputs=len(sizes))
    return [part.astype(v.dtype).reshape(list(v.shape or ())) for part, v in zip(parts, values, strict=True)]


def average_statistics(trace: Trace, inputs: Mapping[str, Value], result: Nested) -> Nested:
    """Average the scalars that a step returns, such as losses, and the buffers that it writes.

    Parameters
    ----------
    trace : Trace
        The trace of a module's code.
    inputs : dict of str to Value
        The inputs of the step: numbers that do not depend on them are the same in all processes.
    result : object
        The result of the code.

    Returns
    -------
    object
        The result, with scalars averaged.
    """
    rows = set(inputs.values())

    def is_local(v: Value) -> bool:
        return v.is_float and not rows.isdisjoint(walk_back([v], lambda _: False))

    leaves = flatten(result, "")
    scalars = {n: v for n, v in leaves.items() if v.is_static and prod(v.shape) == 1 and is_local(v)}
    buffers = {n: v for n, v in trace.changed.items() if n in trace.parameters and is_local(v)}
    one = constant(np.ones((), np.float32))
    *means, _ = average(trace, [*scalars.values(), *buffers.values(), one], "statistics")
    for n, mean in zip(buffers, means[len(scalars):], strict=True):
        trace.write_state(n, mean)
    return rebuild(result, "", {**leaves, **dict(zip(scalars, means, strict=False))})


class Processes(Exchange):
    """The processes that train a module together."""

    def take_rows(self, placeholders: Mapping[str, Value], feeds: Mapping[str, np.ndarray],
                  labels: Mapping[str, tuple[int, int | None]]
                  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Take the rows of this process of a batch.

        Parameters
        ----------
        placeholders : dict of str to Value
            The inputs of a step.
        feeds : dict of str to numpy.ndarray
            Its numbers, with all rows.
        labels : dict of str to tuple of int
            The placeholders that are labels, with the number of classes and the label that does not count.

        Returns
        -------
        feeds : dict of str to numpy.ndarray
            With every ``size``-th row. A process without rows takes the first, which does not count.
        state : dict of str to numpy.ndarray
            Which process this is, and the share of the rows that it has, by their weights and labels.

        Raises
        ------
        SettingError
            The number of rows cannot change.
        """
        for n, v in placeholders.items():
            if v.shape and isinstance(v.shape[0], int):
                raise SettingError(f"distributed=True gives each process a part of the rows, and {n!r} is compiled for "
                                   f"{v.shape[0]} rows; write a name, such as 'N', in its placeholder.")
        rows = next((len(a) for a in feeds.values() if a.ndim), 1)
        own = self.take(np.arange(rows))
        counts = _count_rows(feeds, labels, rows)
        if not counts.any():
            counts = np.ones(rows)
        share = float(counts[own].sum()) / max(float(counts.sum()), np.finfo(np.float64).tiny)
        part = slice(self.group.rank, None, self.group.size) if len(own) else slice(1)
        taken = {n: a[part] if a.ndim and len(a) == rows else a for n, a in feeds.items()}
        return taken, {RANK: np.array(self.group.rank, np.int32), SHARE: np.array(share)}

    def step(self, runner: StepRunner, placeholders: Mapping[str, Value], feeds: Mapping[str, np.ndarray],
             labels: Mapping[str, tuple[int, int | None]]) -> dict[str, np.ndarray]:
        """Take a step on the rows of this process.

        Parameters
        ----------
        runner : StepRunner
            Takes it.
        placeholders, feeds, labels : dict
            As for `take_rows`.

        Returns
        -------
        dict of str to numpy.ndarray
            All that the step returns.

        Raises
        ------
        SettingError
            The number of rows cannot change.
        DataError
            The processes were given different numbers of rows.
        """
        taken, state = self.take_rows(placeholders, feeds, labels)
        state = {n: a for n, a in state.items() if n in runner.source.names_of_state}
        for n, a in state.items():
            runner.set(n, a)
        try:
            return runner.step(taken)
        finally:  # A file that is written now is that of one process.
            for n in state:
                runner.set(n, _ALONE[n])

    def add_up(self, passed: Mapping[str, tuple[Buffer, int | None]]) -> None:
        """Replace numbers by their sum over the processes.

        Parameters
        ----------
        passed : dict of str to (Buffer, int or None)
            As for `Exchange`.

        Raises
        ------
        DataError
            The processes were given different numbers of rows.
        """
        super().add_up(passed)
        if _STATISTICS in passed and abs(shares := float(passed[_STATISTICS][0].numpy()[-1]) - 1) > 1e-3:
            raise DataError(f"The rows of all processes are {1 + shares:.3f} of the batch; every process is given all "
                            f"rows of the same batch.")


def _count_rows(feeds: Mapping[str, np.ndarray], labels: Mapping[str, tuple[int, int | None]], rows: int) -> np.ndarray:
    """By how much each row counts in the loss: by its weight, and by how many of its labels do."""
    counts = np.ones(rows)
    ignored = [(feeds[n], label) for n, (_, label) in labels.items() if label is not None and n in feeds]
    w = feeds.get(WEIGHTS)
    if len(ignored) == 1 and ignored[0][0].ndim and len(ignored[0][0]) == rows:  # Of several, each counts otherwise.
        counts = (ignored[0][0] != ignored[0][1]).astype(np.float64)
    if w is not None and w.ndim and len(w) == rows:
        w = w.reshape(w.shape + (1,) * (counts.ndim - w.ndim))
        counts = counts.reshape(counts.shape + (1,) * (w.ndim - counts.ndim)) * w
    return counts.reshape(rows, -1).sum(axis=1, dtype=np.float64)

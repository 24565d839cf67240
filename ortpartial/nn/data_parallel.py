"""Data-parallel training: processes take their rows of a batch, and exchange gradients in the middle of a step."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import DataError, SettingError
from ortpartial.execution import StepRunner
from ortpartial.graph import Value, constant, op, walk_back, with_numbers, zeros_like
from ortpartial.logs import logger
from ortpartial.runtime import Buffer, ProcessGroup, choose_threads, cores

from .structure import Nested, flatten, rebuild
from .trace import PASSING, RANK, SHARE, Exchange, Trace

__all__ = ["Processes", "average", "average_statistics", "choose_own_threads"]

#: The state that holds what is averaged beside gradients, and then the sum of the shares.
_STATISTICS = f"{PASSING}statistics"

#: The state of a process alone.
_ALONE: dict[str, np.ndarray] = {RANK: np.zeros((), np.int32), SHARE: np.ones(())}

#: How the state ends that holds what an exchange has not sent yet.
_RESIDUAL = ".residual"


def average(trace: Trace, values: Sequence[Value], name: str, *, dtype: DTypeLike | None = None,
            top_k: float | None = None) -> list[Value]:
    """The means of values over the processes, each of which counts as many times as it has rows.

    Parameters
    ----------
    trace : Trace
        Where it is written.
    values : sequence of Value
        Of static shapes.
    name : str
        What is exchanged; the state that holds it adds ``data_parallel.`` before.
    dtype : numpy dtype, optional
        That of the numbers on their way.
    top_k : float, optional
        The share of the numbers that are sent, the largest. The others are added to those of the next step [1]_.

    Returns
    -------
    list of Value

    References
    ----------
    .. [1] S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """
    while PASSING + name in trace.exchanges:
        name += "_"
    common = np.result_type(*(v.dtype for v in values))
    sizes = [prod(v.shape) for v in values]  # type: ignore[arg-type]
    share = trace.read_state(SHARE, np.float64, (), _ALONE[SHARE]).astype(common)
    flat = op.Concat(*(v.astype(common).reshape([-1]) for v in values), axis=0) * share
    flat = op.Where(share > 0, flat, constant(np.zeros((), common)))  # No rows have no mean.
    kept = None if top_k is None else max(1, round(top_k * sum(sizes)))
    sent = flat.astype(dtype or common) if kept is None else _keep_largest(trace, flat, kept, name, dtype or common)
    received = trace.read_state(PASSING + name, sent.dtype, (sum(sizes),), np.zeros(sum(sizes), sent.dtype))
    if trace.add_up is not None:
        received = with_numbers(received, trace.add_up(PASSING + name, kept, sent.numpy()))
    trace.exchanges[PASSING + name] = Exchange(sent, received, kept)
    parts = op.Split(received, sizes, axis=0, n_outputs=len(sizes))
    return [part.astype(v.dtype).reshape(list(v.shape or ())) for part, v in zip(parts, values, strict=True)]


def _keep_largest(trace: Trace, flat: Value, kept: int, name: str, dtype: DTypeLike) -> Value:
    """The largest numbers in place and 0 elsewhere; what is not sent is added the next time."""
    residual = name + _RESIDUAL
    shape = tuple(flat.shape or ())
    flat = flat + trace.read_state(residual, flat.dtype, shape, np.zeros(shape, flat.dtype))  # type: ignore[arg-type]
    _, places = op.TopK(op.Abs(flat), constant(np.array([kept])), axis=0)
    sent = op.ScatterElements(zeros_like(flat), places, op.Gather(flat, places), axis=0).astype(dtype)
    trace.write_state(residual, flat - sent.astype(flat.dtype))
    return sent


def average_statistics(trace: Trace, inputs: Mapping[str, Value], result: Nested) -> Nested:
    """Average the scalars that a step returns, such as losses, and the buffers that it writes.

    Parameters
    ----------
    trace : Trace
        What the code of a module has written.
    inputs : dict of str to Value
        What the step reads: numbers that do not depend on it are the same in all processes.
    result : object
        What the code has returned.

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


def choose_own_threads(values: Iterable[Value]) -> int | None:
    """Choose the number of threads of a step, where the processes of this machine share its cores.

    Parameters
    ----------
    values : iterable of Value
        What it computes.

    Returns
    -------
    int or None
        All threads if None.
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    threads = choose_threads(list(values))
    return threads if threads or processes == 1 else max(1, cores() // processes)


class Processes:
    """The processes that train a module together, as ``torch.distributed`` connects them.

    Attributes
    ----------
    group : ProcessGroup
        Their collective operations.
    """

    def __init__(self) -> None:
        self.group = ProcessGroup()

    def take_rows(self, placeholders: Mapping[str, Value], feeds: Mapping[str, np.ndarray]
                  ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Take the rows of this process of a batch.

        Parameters
        ----------
        placeholders : dict of str to Value
            What a step reads.
        feeds : dict of str to numpy.ndarray
            Its numbers, with all rows.

        Returns
        -------
        feeds : dict of str to numpy.ndarray
            With every ``size``-th row. A process without one takes the first, which does not count.
        state : dict of str to numpy.ndarray
            Which process this is, and the share of the rows that it has.

        Raises
        ------
        SettingError
            The number of rows cannot change.
        """
        for n, v in placeholders.items():
            if v.shape and isinstance(v.shape[0], int):
                raise SettingError(f"distributed=True gives each process a part of the rows, and {n!r} is compiled for "
                                   f"{v.shape[0]} rows; write a name, such as 'N', in its placeholder.")
        rank, size = self.group.rank, self.group.size
        rows = next((len(a) for a in feeds.values() if a.ndim), 1)
        count = len(range(rank, rows, size))
        own = slice(rank, None, size) if count else slice(1)
        taken = {n: a[own] if a.ndim and len(a) == rows else a for n, a in feeds.items()}
        return taken, {RANK: np.array(rank, np.int32), SHARE: np.array(count / max(rows, 1))}

    def step(self, runner: StepRunner, placeholders: Mapping[str, Value], feeds: Mapping[str, np.ndarray]
             ) -> dict[str, np.ndarray]:
        """Take a step on the rows of this process.

        Parameters
        ----------
        runner : StepRunner
            Takes it.
        placeholders, feeds : dict
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
        taken, state = self.take_rows(placeholders, feeds)
        state = {n: a for n, a in state.items() if n in runner.source.names_of_state}
        for n, a in state.items():
            runner.set(n, a)
        try:
            return runner.step(taken)
        finally:  # A file that is written now is that of one process.
            for n in state:
                runner.set(n, _ALONE[n])

    def add_up(self, name: str, kept: int | None, buffer: Buffer) -> None:
        """Replace numbers by their sum over the processes.

        Parameters
        ----------
        name : str
            What is exchanged.
        kept : int, optional
            As of an `Exchange`.
        buffer : Buffer
            The numbers of this process.

        Raises
        ------
        DataError
            The processes were given different numbers of rows.
        """
        before = self.group.bytes_sent
        if kept is None:
            self.group.all_reduce(buffer)
        else:
            buffer.fill(self._add_sparse(buffer.numpy(), kept))
        logger.debug("process %d has sent %d bytes of %s", self.group.rank, self.group.bytes_sent - before, name)
        if name == _STATISTICS and abs(shares := float(buffer.numpy()[-1]) - 1) > 1e-3:
            raise DataError(f"The rows of all processes are {1 + shares:.3f} of the batch; every process is given all "
                            f"rows of the same batch.")

    def _add_sparse(self, own: np.ndarray, kept: int) -> np.ndarray:
        """The sum over the processes of vectors of so many numbers that are not 0."""
        places = np.flatnonzero(own)
        message = np.zeros(kept, [("place", np.int32), ("value", own.dtype)])
        message["place"][: len(places)], message["value"][: len(places)] = places, own[places]
        messages = self.group.all_gather(message.view(np.uint8)).view(message.dtype)
        total = np.zeros(own.shape, np.result_type(own.dtype, np.float32))
        np.add.at(total, messages["place"].ravel(), messages["value"].ravel())
        return total.astype(own.dtype)

    def take_first(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Take over the state of the first process.

        Parameters
        ----------
        state : dict of str to numpy.ndarray
            That of this process.

        Returns
        -------
        dict of str to numpy.ndarray
            That of the first, but for what this process has not sent yet. If that is the same, as after a file is read,
            it is the first's to send.
        """
        first = dict(self.group.broadcast(dict(state)))
        if self.group.rank:
            residuals = [n for n in first if n.endswith(_RESIDUAL)]
            first |= {n: state[n] if n in state and (state[n] != first[n]).any() else np.zeros_like(first[n])
                      for n in residuals}
        return first

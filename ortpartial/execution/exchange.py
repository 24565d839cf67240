"""Data parallelism: the sum between processes that train together, and the check that they train the same."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Data, DTypeLike, Same
from ortpartial.checks import check_flag, to_number
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import Value, constant, op, zeros_like
from ortpartial.logs import logger
from ortpartial.runtime import Buffer, ProcessGroup, cores, runtime_version

from .sparse_rows import SparseRows

__all__ = ["DataParallel", "Exchange", "describe_arrays", "describe_graphs", "describe_settings", "describe_versions",
           "resolve_distributed", "share_cores"]

#: Bytes of an array under its checksum: all, or the bytes of rows at equal distances.
_SAMPLE = 2**24

#: Bytes up to which vectors share a message: its time, and not theirs, is that of the exchange.
_TOGETHER = 2**16

#: Characters of a setting that an error shows.
_SHOWN = 300


@dataclass(frozen=True)
class DataParallel:
    """Data parallelism with gradients that are compressed on their way: a setting in place of ``distributed=True``.

    Losses, and by how much rows count, are sent whole.

    Parameters
    ----------
    gradient_dtype : str, optional
        ``"float16"`` halves the bytes that processes send. Gradients are divided by the rows of the batch first, so
        that their sum is as large as their mean; numbers under 3e-8 then become 0.
    top_k : float, optional
        The share of the gradients that a process sends, the largest, such as 0.01. The rest is added to the gradients
        of the next step [1]_.

    Raises
    ------
    SettingError
        The dtype is another, or the share is not above 0 and at most 1.

    References
    ----------
    .. [1] S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.

    Examples
    --------
    >>> DataParallel(top_k=0.01)
    DataParallel(gradient_dtype=None, top_k=0.01)
    """

    gradient_dtype: DTypeLike | None = None
    top_k: float | None = None

    def __post_init__(self) -> None:
        if self.gradient_dtype is not None:
            if str(self.gradient_dtype) != "float16" and self.gradient_dtype is not np.float16:
                raise SettingError(f"gradient_dtype is 'float16' or None, not {self.gradient_dtype!r}.")
            object.__setattr__(self, "gradient_dtype", "float16")
        if self.top_k is not None:
            if (share := to_number(self.top_k, above=0, high=1)) is None:
                raise SettingError(f"top_k is the share of the gradients that are sent, above 0 and at most 1, not "
                                   f"{self.top_k!r}.")
            object.__setattr__(self, "top_k", share)

    @property
    def is_whole(self) -> bool:
        """Whether gradients are sent as they are."""
        return self.gradient_dtype is None and self.top_k is None

    def count_sent(self, size: int) -> int | None:
        """How many of so many numbers are sent with their places; None for all of them."""
        return None if self.top_k is None else max(1, round(self.top_k * size))

    def compress(self, flat: Value, residual: Value | None = None) -> tuple[Value, Value | None]:
        """Compress a vector.

        Parameters
        ----------
        flat : Value of shape (size,)
            The numbers of this process.
        residual : Value of shape (size,), optional
            Gradients not sent yet, where `top_k` is set.

        Returns
        -------
        sent : Value of shape (size,)
            The gradients to send, in place, and 0 elsewhere.
        residual : Value of shape (size,) or None
            The others.
        """
        dtype = self.gradient_dtype or flat.dtype
        if residual is None:
            return flat.astype(dtype), None
        flat = flat + residual
        kept = self.count_sent((flat.shape or (0,))[0])  # type: ignore[arg-type]
        _, places = op.TopK(op.Abs(flat), constant(np.array([kept])), axis=0)
        sent = op.ScatterElements(zeros_like(flat), places, op.Gather(flat, places), axis=0).astype(dtype)
        return sent, flat - sent.astype(flat.dtype)


def resolve_distributed(distributed: object) -> bool | DataParallel:
    """The setting `distributed`: whether processes train together, or how.

    Parameters
    ----------
    distributed : bool or DataParallel
        The setting.

    Returns
    -------
    bool or DataParallel

    Raises
    ------
    SettingError
        It is something else.

    Examples
    --------
    >>> resolve_distributed(1)
    True
    """
    if isinstance(distributed, DataParallel):
        return distributed
    try:
        return check_flag("distributed", distributed)
    except SettingError:
        raise SettingError(f"distributed is True, False or a DataParallel, not {distributed!r}.") from None


def share_cores(threads: int | None, size: int = 1) -> int | None:
    """The number of threads of a process, where processes of a machine share its cores.

    Parameters
    ----------
    threads : int or None
        Number that suits a step, None for all.
    size : int
        Number of processes, where the launcher does not say how many run on this machine.

    Returns
    -------
    int or None
    """
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return threads if threads is not None or processes == 1 else max(1, cores() // processes)


class Exchange:
    """The processes that train together: their sums, and the values that are the same in all.

    Attributes
    ----------
    group : ProcessGroup
        Their collective operations.

    Raises
    ------
    RuntimeMissingError
        torch is not installed.
    SettingError
        The processes are not connected.
    """

    def __init__(self) -> None:
        self.group = ProcessGroup()
        self.is_first = self.group.rank == 0

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The rows of this process, every ``size``-th."""
        return rows[self.group.rank :: self.group.size]

    def add_up(self, passed: Mapping[str, tuple[Buffer, int | None]]) -> None:
        """Replace numbers by their sum over the processes; small ones travel together, in a single message.

        Parameters
        ----------
        passed : dict of str to (Buffer of shape (size,), int or None)
            By name, for the log, the numbers of this process, and how many of them are not 0 and are sent, with their
            places; None for all.

        Raises
        ------
        ProcessError
            Another process has ended.
        """
        before = self.group.bytes_sent
        small = [p for p in passed.values() if p[1] is not None or prod(p[0].shape) * p[0].dtype.itemsize <= _TOGETHER]
        together = small if len(small) > 1 or any(kept for _, kept in small) else []
        for buffer, _ in (p for p in passed.values() if p not in together):
            self.group.all_reduce(buffer)
        if together:
            self._add_together(together)
        logger.debug("process %d has sent %d bytes of %s", self.group.rank, self.group.bytes_sent - before,
                     " and ".join(passed))

    def _add_together(self, passed: Sequence[tuple[Buffer, int | None]]) -> None:
        """Add up several vectors, of which all numbers or so many that are not 0 stand in a message."""
        parts = [buffer.numpy() if kept is None else _list_places(buffer.numpy(), kept) for buffer, kept in passed]
        messages = self.group.all_gather(np.concatenate([part.view(np.uint8) for part in parts]))
        each = np.split(messages, np.cumsum([part.nbytes for part in parts])[:-1], axis=1)
        for (buffer, kept), part, sent in zip(passed, parts, each, strict=True):
            numbers = np.ascontiguousarray(sent).view(part.dtype)
            buffer.fill(numbers.sum(axis=0, dtype=part.dtype) if kept is None else _add_places(numbers, buffer.numpy()))

    def broadcast(self, value: Same) -> Same:
        """The value of the first process."""
        result: Same = self.group.broadcast(value)
        return result

    def take_first(self, state: Mapping[str, np.ndarray], is_residual: Callable[[str], bool]
                   ) -> dict[str, np.ndarray]:
        """Take over the state of the first process.

        Parameters
        ----------
        state : dict of str to numpy.ndarray
            That of this process.
        is_residual : callable
            Whether a name belongs to numbers that a process has not sent yet.

        Returns
        -------
        dict of str to numpy.ndarray
            The state of the first process, but for residuals. A residual that all have, as after a file is read, is
            left to the first to send.
        """
        first = dict(self.broadcast(dict(state)))
        if self.is_first:
            return first
        return first | {n: state[n] if n in state and (state[n] != first[n]).any() else np.zeros_like(first[n])
                        for n in first if is_residual(n)}

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Check that all processes train the same.

        Parameters
        ----------
        facts : dict of str to str
            The facts that have to agree, by name.

        Raises
        ------
        DataError
            A fact differs: all processes raise it, and the message names the first.
        """
        each = self.group.gather(dict(facts))
        for rank, other in enumerate(each):
            for name in dict.fromkeys([*each[0], *other]):
                if (here := each[0].get(name, "missing")) != (there := other.get(name, "missing")):
                    first = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), 0)
                    here, there = (text[max(0, first - _SHOWN // 2):][:_SHOWN] for text in (here, there))
                    raise DataError(f"The processes do not train the same: {name} is {here} in process 0 and {there} "
                                    f"in process {rank}; give every process the same model, settings and rows, all of "
                                    f"them.")


def _list_places(numbers: np.ndarray, kept: int) -> np.ndarray:
    """So many numbers that are not 0, with their places."""
    places = np.flatnonzero(numbers)
    message = np.zeros(kept, [("place", np.int32), ("value", numbers.dtype)])
    message["place"][: len(places)], message["value"][: len(places)] = places, numbers[places]
    return message


def _add_places(messages: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The sum of vectors that are given by numbers with their places."""
    total = np.zeros(like.shape, np.result_type(like.dtype, np.float32))
    np.add.at(total, messages["place"].ravel(), messages["value"].ravel())
    return total.astype(like.dtype)


def describe_arrays(arrays: Mapping[Any, Data]) -> dict[str, str]:
    """Describe arrays, so that two of other content have other descriptions.

    Parameters
    ----------
    arrays : dict of str to array
        The arrays by name. Of those above 16 MB, a sample of the rows is read; of other objects, their type.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> describe_arrays({"x": np.arange(6, dtype=np.float32).reshape(3, 2)})
    {"'x'": 'float32 of shape (3, 2) and checksum 11166d77d139'}
    """
    return {repr(n): f"{a.dtype} of shape {tuple(a.shape)} and checksum {_digest(_sample(a))}"
            if isinstance(a, (np.ndarray, SparseRows)) else type(a).__name__ for n, a in arrays.items()}


def describe_graphs(graphs: Mapping[str, ModelProto]) -> dict[str, str]:
    """Describe graphs, so that others have other descriptions.

    Parameters
    ----------
    graphs : dict of str to onnx.ModelProto
        By name.

    Returns
    -------
    dict of str to str
    """
    return {f"the graph of {n}": f"one of checksum {_digest(graph.SerializeToString(deterministic=True))}"
            for n, graph in graphs.items()}


def _digest(content: bytes) -> str:
    """12 hexadecimal digits that tell contents apart."""
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _sample(a: Any) -> bytes:
    """Bytes of an array, or of some of its rows."""
    size = int(np.prod(a.shape)) * a.dtype.itemsize
    if size > _SAMPLE:
        rows = np.linspace(0, a.shape[0] - 1, max(1, int(a.shape[0] * _SAMPLE / size))).astype(np.int64)
    else:
        rows = np.arange(a.shape[0] if a.shape else 1)
    sample = np.empty((len(rows), *a.shape[1:]), a.dtype)
    (a if a.shape else a.reshape(1)).take(rows, 0, sample, "clip")  # Rows that are sparse know no more than this.
    return repr(sample.tolist()).encode() if a.dtype.hasobject else sample.tobytes()


def describe_settings(**settings: object) -> dict[str, str]:
    """Describe settings, so that equal settings have equal descriptions in all processes.

    Parameters
    ----------
    **settings : object
        The settings by name.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> describe_settings(batch_size=8)
    {'batch_size': '8'}
    """
    return {n: re.sub(r" at 0x[0-9a-f]+", "", repr(v)) for n, v in settings.items()}


def describe_versions() -> dict[str, str]:
    """Describe the versions that the numbers of a step depend on.

    Returns
    -------
    dict of str to str

    Examples
    --------
    >>> list(describe_versions())
    ['the version of ortpartial', 'the version of onnxruntime']
    """
    package = sys.modules[__name__.partition(".")[0]]  # This room is imported by it, and imports nothing from it.
    return {"the version of ortpartial": package.__version__, "the version of onnxruntime": runtime_version()}

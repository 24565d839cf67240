"""Collective operations of data-parallel training, over ``torch.distributed``: all-reduce, all-gather and broadcast."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from ortpartial.exceptions import ProcessError, RuntimeMissingError, SettingError
from ortpartial.installation import install_command

from .buffer import Buffer

__all__ = ["ProcessGroup", "connect_processes"]

#: Seconds after which a collective operation fails if another process does not join it.
_TIMEOUT = 300


@contextmanager
def connect_processes() -> Iterator[bool]:
    """A context in which the processes that torchrun has started are connected.

    Yields
    ------
    bool
        Whether this process is the first.

    Raises
    ------
    RuntimeMissingError
        torch is not installed.
    SettingError
        torchrun has not started this process.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise RuntimeMissingError(f"Several processes need torch: run {install_command('torch')}.") from None
    is_connected = dist.is_initialized()
    if not is_connected and "RANK" not in os.environ:
        raise SettingError("Several processes are started by torchrun: `torchrun --nproc_per_node=2 -m ortpartial "
                           "train ... --distributed`.")
    if not is_connected:
        dist.init_process_group("gloo")
    try:
        yield dist.get_rank() == 0
    finally:
        if not is_connected:
            dist.destroy_process_group()


class ProcessGroup:
    """The processes that ``torch.distributed`` connects.

    Attributes
    ----------
    rank, size : int
        The number of this process, and the number of processes.
    bytes_sent : int
        The size of all that this process has added to sums and gathered arrays.

    Raises
    ------
    RuntimeMissingError
        torch is not installed.
    SettingError
        ``torch.distributed.init_process_group`` was not called.
    """

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError:
            raise RuntimeMissingError(f"distributed=True needs torch: run {install_command('torch')}.") from None
        if not dist.is_available() or not dist.is_initialized():
            raise SettingError("distributed=True needs torch.distributed.init_process_group('gloo') before fit, in a "
                               "script that `torchrun --nproc_per_node=2 script.py` starts.")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._torch, self._dist = torch, dist
        self._group = dist.new_group(timeout=timedelta(seconds=_TIMEOUT))
        self.bytes_sent = 0
        #: The last tensors are kept alive: a thread of gloo must not free them while Python shuts down.
        self._tensors: deque[object] = deque(maxlen=4)

    def all_reduce(self, buffer: Buffer) -> None:
        """Replace the content of a buffer by its sum over the processes."""
        self._tensors.append(tensor := self._to_tensor(buffer))
        try:
            self._dist.all_reduce(tensor, group=self._group)
        except RuntimeError as e:
            raise self._process_error(e) from None
        self.bytes_sent += tensor.nbytes

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """The arrays that all processes pass here, of one shape and dtype, along a new first axis."""
        gathered = np.empty((self.size, *array.shape), array.dtype)
        parts = list(self._torch.from_numpy(gathered).unbind())
        try:
            self._dist.all_gather(parts, self._torch.from_numpy(array), group=self._group)
        except RuntimeError as e:
            raise self._process_error(e) from None
        self.bytes_sent += array.nbytes
        return gathered

    def gather(self, value: object) -> list[Any]:
        """The values that all processes pass here, picklable objects, by their ranks."""
        values: list[Any] = [None] * self.size
        try:
            self._dist.all_gather_object(values, value, group=self._group)
        except RuntimeError as e:
            raise self._process_error(e) from None
        return values

    def _to_tensor(self, buffer: Buffer) -> Any:
        """A torch tensor that shares the memory of a buffer."""
        if buffer.array is not None:
            return self._torch.from_numpy(buffer.array)
        return self._torch.utils.dlpack.from_dlpack(buffer.ortvalue.to_dlpack())

    def broadcast(self, value: object) -> Any:
        """The value that the first process passes here, a picklable object."""
        values = [value]
        try:
            self._dist.broadcast_object_list(values, src=0, group=self._group)
        except RuntimeError as e:
            raise self._process_error(e) from None
        return values[0]

    def _process_error(self, e: Exception) -> ProcessError:
        first = str(e).strip().splitlines()[0]
        return ProcessError(f"Process {self.rank} of {self.size} has lost the others: {first} One of them has ended or "
                            f"hangs, and its own error says why. What was trained until then is kept.")

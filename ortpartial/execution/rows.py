"""Rows of data: of a batch, in memory that stays where it is, and all of them where a device reads them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ortpartial.annotations import Entries
from ortpartial.runtime import CPU, Buffer, Device

__all__ = ["Batch", "DeviceRows"]


class Batch:
    """Rows of several arrays, gathered into memory that stays where it is, so that it is bound once."""

    def __init__(self, data: Mapping[str, np.ndarray], rows: int, device: str | Device = CPU):
        self.buffers = {n: Buffer.empty((rows, *a.shape[1:]), a.dtype, device) for n, a in data.items()}
        # A device takes the rows from host memory, where they are gathered first.
        self._hosts = {n: np.empty(b.shape, b.dtype) for n, b in self.buffers.items() if b.array is None}
        self.read_from(data)

    def read_from(self, data: Mapping[str, np.ndarray]) -> None:
        """Take the rows from these arrays from now on."""
        self._takes = [(data[n].take, self._hosts.get(n, b.array)) for n, b in self.buffers.items()]

    def fits(self, data: Mapping[str, np.ndarray], rows: int) -> bool:
        """Whether so many rows of these arrays have the shapes of the batch."""
        return all(b.shape == (rows, *data[n].shape[1:]) for n, b in self.buffers.items())

    def gather(self, rows: np.ndarray) -> None:
        """Copy the rows in."""
        # "clip" writes straight into the buffer; the indices are a permutation, so nothing is clipped. Keywords would
        # double the time that a small batch takes.
        for take, out in self._takes:
            take(rows, 0, out, "clip")
        if self._hosts:
            for name, host in self._hosts.items():
                self.buffers[name].fill(host)


class DeviceRows:
    """All the rows of several arrays, where they are; a device gets a copy of them, once."""

    def __init__(self, data: Mapping[str, np.ndarray], device: str | Device = CPU):
        self._device = Device.parse(device)
        self.read_from(data)

    def read_from(self, data: Mapping[str, np.ndarray]) -> None:
        """Take the rows from these arrays from now on."""
        near = self._device.shares_memory
        self.arrays: Entries = dict(data) if near else {n: Buffer(a, self._device) for n, a in data.items()}

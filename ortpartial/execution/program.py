"""Programs: compiled steps, bound to the batch that they read and to both sets of buffers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpartial.runtime import CPU, Binding, Buffer, Device, Session

from .names import StepNames
from .rows import Batch

__all__ = ["Program", "RunLocal", "bind", "directions"]


def bind(session: Session, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> Binding:
    """A binding of a session to the inputs that it reads, and to outputs."""
    binding, names = session.binding(), frozenset(session.inputs)
    for name, buffer in inputs.items():
        if name in names:
            binding.bind_input(name, buffer)
    for name, buffer in outputs.items():
        binding.bind_output(name, buffer)
    return binding


def directions(
    buffers: Sequence[Mapping[str, Buffer]], names: StepNames
) -> list[tuple[Mapping[str, Buffer], dict[str, Buffer]]]:
    """Both directions of a double buffer: the inputs of a step on one side, and its outputs on the other, by name."""
    return [(read, {names.new(n): buffer for n, buffer in write.items()}) for read, write in (buffers, buffers[::-1])]


class RunLocal(threading.local):
    """Options of the thread that runs."""

    #: Given to every run; an `Interrupt` sets its own.
    options: Any = None


class Program(ABC):
    """A compiled step, and the batch that it reads.

    Parameters
    ----------
    bindings : sequence of Binding
        The bindings that read the batch.
    device : str or Device
        Where they read it.
    """

    def __init__(self, bindings: Sequence[Binding], device: str | Device = CPU):
        self.bindings, self.device = bindings, device
        self.batch: Batch | None = None
        #: The data that `StepRunner._program` asked it to read last.
        self.source: tuple[int, int] | None = None

    def read_from(self, data: Mapping[str, np.ndarray], rows: int) -> None:
        """Take batches of so many rows from these arrays from now on."""
        if self.batch is not None and self.batch.fits(data, rows):
            self.batch.read_from(data)
            return
        self.batch = Batch(data, rows, self.device)
        for binding in self.bindings:
            for name in self.batch.buffers.keys() & binding.session.inputs:
                binding.bind_input(name, self.batch.buffers[name])

    @abstractmethod
    def __call__(self, side: int) -> float:
        """Run the step on the batch, from this set of buffers to the other; return the loss."""

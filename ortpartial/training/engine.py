"""The engine: the weights and states of a training, and the loop over the batches of an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import ModelProto

from ortpartial.logs import compiling
from ortpartial.runtime import CPU, Binding, Buffer, Device, Session

from .names import Names
from .spec import TrainingSpec
from .split_graphs import loss_graph
from .step import check_gradient

__all__ = ["Batch", "DeviceRows", "Engine", "ProgramKey", "WeightedMean", "bind", "directions"]

#: Programs, each for one size of batch, that are kept.
_PROGRAMS = 8


class ProgramKey(NamedTuple):
    """What a program of an engine is for: its kind, the rows of a batch, and the thread that it belongs to, if any."""

    kind: str
    rows: int
    thread: int | None = None


class WeightedMean:
    """The weighted mean of the losses of an epoch, summed up batch by batch."""

    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def add(self, total: float, weight: float) -> None:
        """Add a weighted sum of losses, and the sum of their weights."""
        self.total += total
        self.weight += weight

    @property
    def value(self) -> float:
        """The mean; 0 without any weight."""
        return self.total / self.weight if self.weight else 0.0


def bind(session: Session, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> Binding:
    """A binding of a session to those inputs that it reads, and to outputs."""
    binding = session.binding()
    for name, buffer in inputs.items():
        if name in session.inputs:
            binding.bind_input(name, buffer)
    for name, buffer in outputs.items():
        binding.bind_output(name, buffer)
    return binding


def directions(
    sides: Sequence[Mapping[str, Buffer]], names: Names
) -> list[tuple[Mapping[str, Buffer], dict[str, Buffer]]]:
    """Both directions of a double buffer: what a step reads on one side, and what it writes to the other, by name."""
    return [(read, {names.new(n): buffer for n, buffer in write.items()}) for read, write in (sides, sides[::-1])]


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

    def gather(self, rows: np.ndarray) -> None:
        """Copy the rows in."""
        # "clip" writes straight into the buffer; the indices are a permutation, so nothing is clipped. Keywords would
        # double the time that a small batch takes.
        for take, out in self._takes:
            take(rows, 0, out, "clip")
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
        self.arrays: dict[str, Any] = dict(data) if near else {n: Buffer(a, self._device) for n, a in data.items()}


class Engine(ABC):
    """Weights, optimizer states and the loop over the batches of an epoch.

    Weights and states live in two sets of buffers: a step reads one and writes the other, then they change places.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained.
    """

    name: str
    #: Why it was chosen, and what it has found out since.
    reason: str
    #: Sets of buffers: two, or one where a step overwrites what it reads.
    copies: ClassVar[int] = 2
    #: Whether several processes train together, each of which is given all the rows.
    is_distributed: ClassVar[bool] = False

    def __init__(self, spec: TrainingSpec):
        self.spec = spec
        self.iteration = 0
        #: Given to every run of a step; an `Interrupt` sets its own.
        self.options: Any = None
        first = {w: spec.model.arrays[w] for w in spec.moving}
        zeros = {name: (first[w].shape, first[w].dtype) for name, (w, _) in spec.states.items()}
        sides = [{**{w: Buffer(np.array(a, order="C"), spec.device) for w, a in {**first, **spec.scaling}.items()},
                  **{n: Buffer(np.zeros(*z), spec.device) for n, z in zeros.items()}}
                 for _ in range(self.copies)]
        self.sides = sides[0], sides[-1]
        self.side = 0
        names = spec.names
        # Read from the host by every device, as the loss is written to it.
        self.k, self.seed = Buffer(np.zeros((), np.int64)), Buffer(np.zeros(2, np.int32))
        #: What no step changes: the engine itself counts, and random numbers follow from seed and count.
        self.given = {names.iteration: self.k, names.seed: self.seed}
        self._programs: dict[ProgramKey, Any] = {}
        self._data: dict[str, np.ndarray] = {}

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the processes that train together."""
        return True

    def broadcast(self, value: Any) -> Any:
        """The value that the first process has."""
        return value

    def synchronize(self) -> None:  # noqa: B027 - a single process has nothing to take over
        """Take over weights, states and iteration of the first process."""

    def get(self, name: str) -> np.ndarray:
        """A copy of a weight, state or statistic, the seed or the number of batches seen, by its name in the graphs."""
        names = self.spec.names
        if name == names.iteration:
            return np.array(self.iteration, np.int64)
        if name == names.seed:
            return self.seed.numpy().copy()
        return self.sides[self.side][name].numpy().copy()

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite what `get` gives."""
        if name == self.spec.names.iteration:
            self.iteration = int(array)
            return
        buffer = self.seed if name == self.spec.names.seed else self.sides[self.side][name]
        buffer.fill(np.broadcast_to(np.asarray(array, buffer.dtype), buffer.shape))

    def reset(self, first: Mapping[str, np.ndarray], seed: Sequence[int] = (0, 0)) -> None:
        """Back to these weights and statistics, states of zero and the first iteration, with another seed."""
        self.iteration = 0
        self.seed.fill(np.asarray(seed, np.int32))
        for w in self.spec.moving:
            self.set(w, first[w])
        for name in self.spec.states:
            self.set(name, np.zeros((), np.float32))
        for name, array in self.spec.scaling.items():
            self.set(name, array)
        self.spec.model.release()

    def snapshot(self) -> dict[str, Any]:
        """Weights, states, statistics, iteration and seed: all that the steps to come depend on."""
        arrays = {n: b.numpy().copy() for n, b in self.sides[self.side].items()}
        return {"iteration": self.iteration, "seed": self.seed.numpy().copy(), "arrays": arrays}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Back to a snapshot, also of another engine: what this one lacks is left out."""
        self.iteration = snapshot["iteration"]
        self.seed.fill(snapshot["seed"])
        for name, array in snapshot["arrays"].items():
            if name in self.sides[self.side] and self.sides[self.side][name].shape == array.shape:
                self.set(name, array)

    def continue_with(self, spec: TrainingSpec) -> Engine:
        """An engine of this kind that goes on from here, on the same rows, with another spec of the same states."""
        engine = type(self)(spec)
        engine.restore(self.snapshot())
        engine.reason, engine.options, engine._data = self.reason, self.options, self._data
        return engine

    def undo(self) -> None:
        """Back to before the last step, which is in the other set of buffers; with one set, it was not taken."""
        if self.copies > 1:
            self.side ^= 1
            self.iteration -= 1

    def is_finite(self) -> bool:
        """Whether all weights and statistics are finite numbers."""
        side = self.sides[self.side]
        return all(np.isfinite(side[w].numpy()).all() for w in self.spec.moving)

    def loss_graph(self) -> ModelProto:
        """Loss and its gradient by the outputs, apart."""
        return loss_graph(self.spec, weighted=self._weighted)

    @property
    def _weighted(self) -> bool:
        """Whether the rows have weights."""
        return self.spec.names.sample_weight in self._data

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from: inputs, targets and, where rows have them, weights, by name."""
        def layout(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
            return {n: (a.dtype, a.shape[1:]) for n, a in arrays.items()}

        if layout(data) != layout(self._data):
            self._programs.clear()
        self._data = dict(data)
        for program in self._programs.values():
            program.batch.read_from(data)

    def epoch(self, order: np.ndarray, batch_size: int) -> float:
        """Train once on the rows in this order; returns their weighted mean loss, each batch's before its step."""
        mean, k, size = WeightedMean(), self.k.numpy(), 0
        weights = self._data.get(self.spec.names.sample_weight)
        for start in range(0, len(order), batch_size):  # Every call counts in here: a small step takes microseconds.
            rows = order[start : start + batch_size]
            if len(rows) != size:
                size = len(rows)
                program = self._program(ProgramKey("step", size))
            program.batch.gather(rows)
            k[...] = self.iteration + 1
            weight = float(size if weights is None else weights[rows].sum(dtype=np.float64))
            loss = program(self.side)
            if self.copies == 1 and not np.isfinite(loss):
                return float(loss)  # The step was not taken.
            mean.total += weight * loss
            mean.weight += weight
            self.side ^= 1
            self.iteration += 1
        return mean.value

    def _weights_of(self, batches: np.ndarray) -> np.ndarray:
        """For every batch, a row of `batches`, the sum of the weights of its rows; their number without weights."""
        weights = self._data.get(self.spec.names.sample_weight)
        if weights is None:
            return np.full(len(batches), float(batches.shape[1]))
        return np.asarray(weights[batches].sum(1, np.float64))

    def _program(self, key: ProgramKey) -> Any:
        """The program of a key, which is kept."""
        if (program := self._programs.get(key)) is None:
            while len(self._programs) >= _PROGRAMS:  # Batches of every size must not fill the memory with programs.
                del self._programs[next(iter(self._programs))]
            with compiling(f"the {key.kind} for {key.rows} rows"):
                program = self._programs[key] = self._open(key)
        return program

    @abstractmethod
    def _open(self, key: ProgramKey) -> Any:
        """A new program. A step has a `batch`; called with the side to read, it runs and returns the loss."""

    def check(self) -> None:
        """Raise NoGradientError now, and not in the first step, if an operator has no gradient."""
        check_gradient(self.spec)

    @abstractmethod
    def graphs(self) -> dict[str, ModelProto]:
        """The graphs that a step runs, by what they do."""

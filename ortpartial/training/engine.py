"""The engine: the weights and states of a training, and the loop over the batches of an epoch."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import DataError, GraphError
from ortpartial.logs import compiling
from ortpartial.runtime import CPU, Binding, Buffer, Device, NodePlacement, Session, Turn

from .counting import count_rows, find_weighting
from .names import Names
from .shape_policy import ShapePolicy
from .spec import ACCUMULATED, AVERAGE, TrainingSpec, program_bytes
from .split_graphs import loss_graph
from .step import check_gradient
from .text_codes import encode_text

__all__ = ["Batch", "DeviceRows", "Engine", "Program", "ProgramKey", "WeightedMean", "bind", "directions",
           "is_symbolic"]

#: Programs that are kept when a training starts anew, whose batches may have other shapes.
_PROGRAMS = 16

#: The names and shapes of the arrays of a batch, with -1 for symbolic sizes.
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class ProgramKey(NamedTuple):
    """What a program of an engine is for."""

    kind: str
    shapes: Shapes
    #: The thread that it belongs to, if any.
    thread: int | None = None
    #: Where sizes are symbolic, the number of threads that it uses.
    threads: int | None = None


def is_symbolic(shapes: Shapes) -> bool:
    """Whether all sizes of a batch are symbolic, the number of rows first."""
    return shapes[0][1][0] < 0


class WeightedMean:
    """The weighted mean of the losses of an epoch, summed up batch by batch.

    Attributes
    ----------
    total, weight : float
        The weighted sum of losses, and the sum of their weights.
    waiting : int
        Number of losses that wait to be added together with later ones.
    """

    def __init__(self) -> None:
        self.total = self.weight = 0.0
        self.waiting = 0
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._expected = 0.0, 0.0  # of what waits, up to the last bits

    def add(self, total: float, weight: float) -> None:
        """Add a weighted sum of losses, and the sum of their weights."""
        self.total += total
        self.weight += weight

    def collect(self, losses: np.ndarray, weights: np.ndarray, count: int) -> None:
        """Add losses as soon as there are `count` of them: in one sum, whose last bits do not depend on the parts."""
        total, weight = self._expected
        self._parts.append((losses.copy(), weights))
        self._expected = total + float(losses @ weights), weight + float(weights.sum())
        self.waiting += len(losses)
        if self.waiting == count:
            self.settle()

    def settle(self) -> None:
        """Add the losses that wait."""
        losses, weights = map(np.concatenate, zip(*self._parts, strict=True))
        self.add(float(losses @ weights), float(weights.sum()))
        self._parts, self._expected, self.waiting = [], (0.0, 0.0), 0

    @property
    def value(self) -> float:
        """The mean; 0 without any weight."""
        total, weight = self._expected
        total, weight = self.total + total, self.weight + weight
        return total / weight if weight else 0.0

    @property
    def state(self) -> dict[str, Any]:
        """What a mean that continues this one is made of."""
        return {"total": self.total, "weight": self.weight, "parts": list(self._parts)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> WeightedMean:
        """The mean that continues another one."""
        mean = cls()
        mean.add(state["total"], state["weight"])
        for losses, weights in state["parts"]:
            mean.collect(losses, weights, 0)
        return mean


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
        self.arrays: dict[str, Any] = dict(data) if near else {n: Buffer(a, self._device) for n, a in data.items()}


class Program(ABC):
    """A compiled step, and the batch that it reads.

    Parameters
    ----------
    engine : Engine
        Whose step it is.
    bindings : sequence of Binding
        Those that read the batch.
    """

    def __init__(self, engine: Engine, bindings: Sequence[Binding]):
        self.engine, self.bindings = engine, bindings
        self.batch: Batch | None = None
        #: What `Engine._program` asked it to read last.
        self.source: tuple[int, int] | None = None

    def read_from(self, data: Mapping[str, np.ndarray], rows: int) -> None:
        """Take batches of so many rows from these arrays from now on."""
        if self.batch is not None and self.batch.fits(data, rows):
            self.batch.read_from(data)
            return
        self.batch = Batch(data, rows, self.engine.spec.device)
        for binding in self.bindings:
            for name in self.batch.buffers.keys() & binding.session.inputs:
                binding.bind_input(name, self.batch.buffers[name])

    @abstractmethod
    def __call__(self, side: int) -> float:
        """Run the step on the batch, from this set of buffers to the other; return the loss."""


class _Local(threading.local):
    """What belongs to the thread that runs."""

    #: Given to every run; an `Interrupt` sets its own.
    options: Any = None


class Engine(ABC):
    """Weights, optimizer states and the loop over the batches of an epoch.

    Weights and states live in two sets of buffers: a step reads one and writes the other, then they change places.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained.
    """

    name: str
    #: The graphs that a batch passes through, each with the parts of a step that it computes: what pictures show.
    runs: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = (
        ("step", ("model", "loss", "gradient", "update")),)
    #: Why it was chosen, and what it has found out since.
    reason = "asked for"
    #: Whether predictions use the averages of the weights.
    use_average = False
    #: What trainings of equal graphs have in common, so that they share compiled sessions; None for no sharing.
    identity: Hashable = None
    #: Sets of buffers: two, or one where a step overwrites what it reads.
    copies: ClassVar[int] = 2
    #: Whether several processes train together, each of which is given all the rows.
    is_distributed: ClassVar[bool] = False

    def __init__(self, spec: TrainingSpec):
        self.spec = spec
        self.iteration = 0
        #: The threads that share the weights take turns: an epoch of rows, a batch of others, a prediction.
        self.turn = Turn()
        self.local = _Local()
        first = {w: spec.model.arrays[w] for w in spec.moving}
        zeros = {name: (spec.shapes_of_states(w)[s], first[w].dtype) for name, (w, s) in spec.states.items()}
        # The first step writes to the whole second set, which starts without content.
        sides = [{**{w: Buffer(allocate(a, order="C"), spec.device) for w, a in {**first, **spec.scaling}.items()},
                  **{n: Buffer(np.zeros(*z), spec.device) for n, z in zeros.items()}}
                 for allocate in (np.array, np.empty_like)[: self.copies]]
        self.sides = sides[0], sides[-1]
        self._join_buffers()
        self.side = 0
        self._checked = [*spec.moving, *(n for n, (_, s) in spec.states.items() if s == ACCUMULATED)]
        names = spec.names
        # Read from the host by every device, as the loss is written to it.
        self.k, self.seed = Buffer(np.zeros((), np.int64)), Buffer(np.zeros(2, np.int32))
        self.controls = {n: Buffer(a) for n, a in spec.controls.items()}
        #: By side, all that the next steps depend on.
        self._buffers = [{**side, **self.controls} for side in self.sides]
        #: What no step changes: the engine itself counts, and random numbers follow from seed and count.
        self.given = {names.iteration: self.k, names.seed: self.seed, **self.controls}
        #: How often `set` has overwritten something.
        self.changes = 0
        #: The mean loss of the epoch that runs, or has run last.
        self.mean = WeightedMean()
        self._policy = ShapePolicy()
        self._programs: dict[ProgramKey, Any] = {}
        self._data: dict[str, np.ndarray] = {}
        self._row_shapes: list[tuple[str, tuple[int, ...]]] = []
        #: By the number of rows, the shapes of a batch of these data.
        self._shapes: dict[int, Shapes] = {}
        self._starts, self._is_whole = 0, True
        self._static: dict[Shapes, TrainingSpec] = {}
        self._symbolic: dict[Any, tuple[TrainingSpec, int | None]] = {}
        self._counts: np.ndarray | None = None

    @property
    def placement(self) -> NodePlacement | None:
        """Which nodes of a step an execution provider runs, once one is compiled; None on other devices."""
        bindings = (b for program in self._programs.values() for b in getattr(program, "bindings", ()))
        return next((b.session.placement for b in bindings), None)

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the processes that train together."""
        return True

    def _join_buffers(self) -> None:  # noqa: B027 - each has memory of its own
        """Lay buffers side by side which a step takes as one."""

    def connect(self) -> None:  # noqa: B027 - a single process has nothing to connect to
        """Connect the processes that train together."""

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
        return self._buffers[self.side][name].numpy().copy()

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite what `get` gives."""
        self.changes += 1
        if name == self.spec.names.iteration:
            self.iteration = int(array)
            return
        buffer = self.seed if name == self.spec.names.seed else self._buffers[self.side][name]
        new = np.asarray(array, buffer.dtype)
        buffer.fill(new if new.shape == buffer.shape else np.broadcast_to(new, buffer.shape))

    def reset(self, first: Mapping[str, np.ndarray], seed: Sequence[int] = (0, 0)) -> None:
        """Back to these weights and statistics, states of zero and the first iteration, with another seed."""
        self.iteration = 0
        self._policy = ShapePolicy()
        self.seed.fill(np.asarray(seed, np.int32))
        for w in self.spec.moving:
            self.set(w, first[w])
        for name in self.spec.states:
            self.set(name, np.zeros((), np.float32))
        for name, array in {**self.spec.scaling, **(self.spec.controls if self.controls else {})}.items():
            self.set(name, array)
        self.spec.model.release()

    def snapshot(self, *, copy: bool = True) -> dict[str, Any]:
        """Weights, states, statistics, iteration, seed and choice of programs: all that later steps depend on.

        Without a copy, arrays may be the memory that the next step writes to.
        """
        arrays = {n: b.numpy().copy() if b.array is None else b.array.copy() if copy else b.array
                  for n, b in self._buffers[self.side].items()}
        return {"iteration": self.iteration, "seed": self.seed.numpy().copy(), "arrays": arrays,
                "shapes": self._policy.state}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Back to a snapshot, also of another engine: what this one lacks is left out."""
        self.iteration = snapshot["iteration"]
        self.seed.fill(snapshot["seed"])
        self._policy = ShapePolicy(*snapshot.get("shapes", ()))  # Pickles of version 0.1.0 have none.
        for name, array in snapshot["arrays"].items():
            if name in self._buffers[self.side] and self._buffers[self.side][name].shape == array.shape:
                self.set(name, array)
        for name, (w, s) in self.spec.states.items():
            if s == AVERAGE and name not in snapshot["arrays"]:
                self.set(name, self.get(w))

    def continue_with(self, spec: TrainingSpec, kind: type[Engine] | None = None,
                      learned: Mapping[str, np.ndarray] | None = None) -> Engine:
        """An engine of this or another kind that goes on from here, on the same rows, with another optimizer or penalty
        or with other weights to train.

        The states of weights for which an optimizer starts with this engine are zero; `learned` is the content of those
        that this engine does not train.
        """
        engine, snapshot = (kind or type(self))(spec), self.snapshot()
        for name, (w, s) in self.spec.states.items():
            if s not in (ACCUMULATED, AVERAGE) and spec.rate_starts.get(w, 0) != self.spec.rate_starts.get(w, 0):
                del snapshot["arrays"][name]
        snapshot["arrays"].update(learned or {})
        engine.restore(snapshot)
        engine.reason, engine.turn, engine.local, engine.mean = self.reason, self.turn, self.local, self.mean
        engine.changes += self.changes
        engine.use_average = self.use_average
        Engine.start(engine, self._data)  # Processes stay connected.
        return engine

    @property
    def counted(self) -> int:
        """Number of batches that were trained: those seen, without those that a `LossScale` skipped."""
        skipped = [int(self.get(n)) for n in list(self.spec.scaling)[-1:]]
        return self.iteration - sum(skipped)

    @property
    def updates(self) -> int:
        """Number of updates of the weights, by which schedules count."""
        return self.counted // self.spec.accumulate

    def get_used(self, name: str) -> np.ndarray:
        """A copy of a weight or statistic as predictions use it: of the average of a weight with `use_average`.

        The average of no update is the weight itself.
        """
        if not self.use_average or self.spec.averaging is None or name not in self.spec.weights:
            return self.get(name)
        return self.get(self.spec.names.state(name, AVERAGE) if self.updates > self.spec.average_start else name)

    def undo(self) -> None:
        """Back to before the last step, which is in the other set of buffers; with one set, it was not taken."""
        if self.copies > 1:
            self.side ^= 1
            self.iteration -= 1

    def is_finite(self) -> bool:
        """Whether all weights, statistics and sums of gradients are finite numbers."""
        side = self.sides[self.side]
        for w in self._checked:
            if (array := side[w].array) is None:  # Without a call, which takes longer than most arrays.
                array = side[w].numpy()
            if not np.logical_and.reduce(np.isfinite(array), axis=None):
                return False
        return True

    def loss_graph(self) -> ModelProto:
        """Loss and its gradient by the outputs, apart."""
        return loss_graph(self.spec, weighted=self._weighted)

    @property
    def data(self) -> Mapping[str, np.ndarray]:
        """The rows that are trained, or the last batch: inputs, targets and, where rows have them, weights, by name."""
        return self._data

    @property
    def _weighted(self) -> bool | str:
        """Whether the rows have weights, or the elements of the targets."""
        return find_weighting(self.spec, self._data)

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from: inputs, targets and, where rows have them, weights, by name."""
        data = encode_text(data, self.spec.vocabulary)
        self._data, self._starts = dict(data), self._starts + 1
        # Rows of another kind, such as sparse ones, are only gathered batch by batch.
        self._is_whole = all(isinstance(a, np.ndarray) for a in data.values())
        #: By how much each row counts; None where all count the same.
        self._counts = count_rows(self.spec, data)
        self._row_shapes = [(n, a.shape[1:]) for n, a in data.items()]
        self._shapes.clear()

    def epoch(self, order: np.ndarray, batch_size: int, start: int = 0, stop: int | None = None) -> float:
        """Train once on the rows in this order; returns their weighted mean loss, each batch's before its step.

        An epoch may be cut into pieces, from batch `start` to batch `stop`, each of which continues `mean`: weights and
        mean are the same, to the last bit.
        """
        mean = self.mean = self.mean if start else WeightedMean()
        steps, rest = order.size // batch_size, order.size % batch_size
        if start < steps:
            batches = order[: order.size - rest].reshape(-1, batch_size)[start:stop]
            # The choice is that of the first piece, for the whole epoch.
            self._train(batches, self._choose_shapes(0 if start else steps, batch_size), mean, steps)
        if mean.waiting and (stop is None or stop >= steps):
            mean.settle()
        if rest and (stop is None or stop > steps) and np.isfinite(mean.total):
            self._train(order[order.size - rest :][None], self._choose_shapes(1, rest), mean, 1)
        return mean.total / mean.weight if mean.weight and not mean.waiting else mean.value

    def _train(self, batches: np.ndarray, shapes: Shapes, mean: WeightedMean, steps: int) -> None:
        """Take a step for each row of `batches`, by a program for these shapes; with one set of weights, until a loss
        is not finite. An epoch has so many `steps` on batches of this size."""
        program, k = self._program("step", shapes, batches.shape[1]), self.k.numpy()
        counts, size = self._counts, float(batches.shape[1])
        for rows in batches:  # Every call counts in here: a small step takes microseconds.
            program.batch.gather(rows)
            k[...] = self.iteration + 1
            weight = size if counts is None else float(counts[rows].sum(dtype=np.float64))
            loss = program(self.side)
            mean.total += weight * loss
            mean.weight += weight
            if self.copies == 1 and not np.isfinite(loss):
                return  # The step was not taken.
            self.side ^= 1
            self.iteration += 1

    def _weights_of(self, batches: np.ndarray) -> np.ndarray:
        """For every batch, a row of `batches`, by how much its rows count; their number where all count the same."""
        if self._counts is None:
            return np.full(len(batches), float(batches.shape[1]))
        return np.asarray(self._counts[batches].sum(1, np.float64))

    def _choose_shapes(self, steps: int, rows: int) -> Shapes:
        """The shapes of the program for some steps on batches of so many rows: theirs, or symbolic ones."""
        if rows not in self._shapes:
            self._shapes[rows] = tuple([(n, (rows, *shape)) for n, shape in self._row_shapes])
        shapes = self._shapes[rows]
        if self._policy.choose(shapes, steps, lambda: program_bytes(self._spec_for(shapes).rewritten)):
            return shapes
        return tuple([(n, (-1,) * len(shape)) for n, shape in shapes])

    def _spec_for(self, shapes: Shapes) -> TrainingSpec:
        """The training with the sizes of a batch, or with symbolic sizes."""
        if is_symbolic(shapes):
            return self._symbolic_spec(shapes)[0]
        try:
            if shapes not in self._static:  # The policy asks for it just before it is compiled.
                sizes = {n: shape for n, shape in shapes if n in self.spec.model.inputs}
                self._static = {shapes: self.spec.for_batch(sizes)}
            return self._static[shapes]
        except GraphError as e:
            raise DataError(f"The model does not take inputs of these shapes: {e}") from None

    def _symbolic_spec(self, shapes: Shapes) -> tuple[TrainingSpec, int | None]:
        """The training on the inputs of a batch, with symbolic sizes, and its threads.

        Their number follows from the first shapes, which are part of the state of the policy, so that a training that
        goes on uses the same.
        """
        first = self._policy.first
        names = tuple([n for n, _ in shapes])
        if (first, names) not in self._symbolic:
            pairs = [(v.shape or (), shape) for n, shape in first if (v := self.spec.model.inputs.get(n)) is not None]
            axes = [axis for pair in pairs for axis in zip(*pair, strict=False)]
            spec = replace(self.spec.for_inputs(names), sizes={d: n for d, n in axes if isinstance(d, str)})
            self._symbolic = {(first, names): (spec, spec.threads())}
        return self._symbolic[first, names]

    def _program(self, kind: str, shapes: Shapes, rows: int, thread: int | None = None) -> Any:
        """The program of a kind for these shapes, which is kept; it reads batches of so many rows from now on."""
        key = kind, shapes, thread, self._symbolic_spec(shapes)[1] if shapes[0][1][0] < 0 else None
        if key not in self._programs:  # Found by a tuple, as a `ProgramKey` takes two calls more.
            self._make_room()
            with compiling(f"the {kind} for {'batches of any shape' if is_symbolic(shapes) else f'{rows} rows'}"):
                self._programs[ProgramKey(*key)] = self._open(ProgramKey(*key))
        program = self._programs[key]  # type: ignore[index]  # a ProgramKey is a tuple
        if program.source != (source := (self._starts, rows)):
            program.read_from(self._data, rows)
            program.source = source
        return program

    def _make_room(self) -> None:
        """Drop programs for single shapes of former trainings, where there are many."""
        current = self._policy.chosen.keys() | self._policy.counts.keys()
        for key in [k for k in self._programs if not is_symbolic(k.shapes) and k.shapes not in current]:
            if len(self._programs) >= _PROGRAMS:
                del self._programs[key]

    @abstractmethod
    def _open(self, key: ProgramKey) -> Any:
        """A new program: a `Program` for a step, or one with a `read_from` of its own."""

    def check(self) -> None:
        """Raise NoGradientError now, and not in the first step, if an operator has no gradient."""
        check_gradient(self.spec)

    @abstractmethod
    def graphs(self) -> dict[str, ModelProto]:
        """The graphs that a step runs, by what they do."""

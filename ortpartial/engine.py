"""Who runs the training? `EpochEngine`, one graph an epoch; `StepEngine`, one a step; `AgentEngine`, several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from .agent import Agent
from .buffer import Buffer
from .device import CPU, Device, has_training
from .epoch import epoch_graph
from .exceptions import DeviceError, ModelError, SettingError
from .learning_loss import BaseLearningLoss
from .learning_penalty import BaseLearningPenalty
from .learning_rate import BaseLearningRate
from .model import Model, load
from .parts import forward_graph, loss_graph, penalty_graph, update_graph
from .precision import Precision
from .runtime import Binding, Session
from .simplify import simplified
from .step import Gradient, Names, step_graph
from .threads import threads
from .trust import untrusted

__all__ = ["AgentEngine", "Engine", "EpochEngine", "Setup", "StepEngine", "choose_for_backward", "choose_for_fit"]

#: With more rows times trained numbers than this, a step is long: about 0.1 ms.
_LONG_STEP = 10**6

#: Steps of one run of an epoch at most: with short steps some tenths of a second, which is all that Ctrl-C can take
#: away; and how many bytes of rows a run may gather, so that they are still near when they are read.
_CHUNK, _NEAR = 2000, 2**20

#: Programs, each for one size of batch, that are kept.
_PROGRAMS = 8


@dataclass(frozen=True)
class Setup:
    """What is trained and how: the same for every engine.

    Parameters
    ----------
    model : Model
        The model, with static or symbolic sizes.
    weights : tuple of str
        The initializers that change.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    penalty, rate : BaseLearningPenalty, BaseLearningRate
        The other two pieces.
    device : str
        Where it runs.
    train_mode : bool
        Whether Dropout and BatchNormalization train.
    statistics : tuple of str
        The initializers that are running statistics, which a step moves then.
    gradient : callable, optional
        Instead of `grad`, a gradient that computes values once more: see `checkpointed`.
    precision : Precision, optional
        In what dtype products are computed, and how the loss is scaled.
    """

    model: Model
    weights: tuple[str, ...]
    losses: Mapping[str, BaseLearningLoss]
    penalty: BaseLearningPenalty
    rate: BaseLearningRate
    device: str = "cpu"
    train_mode: bool = False
    statistics: tuple[str, ...] = ()
    gradient: Gradient | None = None
    precision: Precision | None = None

    @property
    def moving(self) -> tuple[str, ...]:
        """The initializers that a step changes."""
        return (*self.weights, *self.statistics)

    def sized(self, rows: int) -> Model:
        """The model for batches of so many rows."""
        model = load(self.model, batch=rows, variables=self.moving)
        return simplified(model, dropout=self.train_mode)

    @property
    def scaling(self) -> dict[str, np.ndarray]:
        """What is carried of the scale of the loss, before the first step, by the names in the graphs."""
        return Names.of(self.model).scaling(self.precision)

    def threads(self, model: Model | None = None) -> int | None:
        """Threads of a step of the model `sized` for a batch, or of its own: as many in every engine."""
        model = model or self.model
        return threads([*(model.outputs[o] for o in self.losses), *(model.initializers[w] for w in self.weights)])

    @property
    def kernels(self) -> bool:
        """Whether onnxruntime-training's operators for gradients run on the device."""
        return Device.parse(self.device).has_kernels

    @property
    def dtype(self) -> np.dtype:
        """Element type of the loss: that of the outputs."""
        return self.model.outputs[next(iter(self.losses))].dtype

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        """Every optimizer state: its name in the graphs, the weight it belongs to and its own name."""
        names = Names.of(self.model)
        return {names.state(w, s): (w, s) for w in self.weights for s in self.rate.state}


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


class Rows:
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
    setup : Setup
        What is trained.
    """

    name: str
    #: Why it was chosen, and what it has found out since.
    reason: str
    #: Sets of buffers: two, or one where a step overwrites what it reads.
    copies: ClassVar[int] = 2

    def __init__(self, setup: Setup):
        self.setup = setup
        self.iteration = 0
        #: Given to every run of a step; a `Watch` sets its own.
        self.options: Any = None
        first = {w: setup.model.arrays[w] for w in setup.moving}
        zeros = {name: (first[w].shape, first[w].dtype) for name, (w, _) in setup.states.items()}
        sides = [{**{w: Buffer(np.array(a, order="C"), setup.device) for w, a in {**first, **setup.scaling}.items()},
                  **{n: Buffer(np.zeros(*z), setup.device) for n, z in zeros.items()}}
                 for _ in range(self.copies)]  # fmt: skip
        self.sides = sides[0], sides[-1]
        self.side = 0
        names = Names.of(setup.model)
        # Read from the host by every device, as the loss is written to it.
        self.k, self.seed = Buffer(np.zeros((), np.int64)), Buffer(np.zeros(2, np.int32))
        #: What no step changes: the engine itself counts, and random numbers follow from seed and count.
        self.given = {names.iteration: self.k, names.seed: self.seed}
        self._programs: dict[Any, Any] = {}
        self._data: dict[str, np.ndarray] = {}

    def get(self, name: str) -> np.ndarray:
        """A copy of a weight, state or statistic, the seed or the number of batches seen, by its name in the graphs."""
        names = Names.of(self.setup.model)
        if name == names.iteration:
            return np.array(self.iteration, np.int64)
        if name == names.seed:
            return self.seed.numpy().copy()
        return self.sides[self.side][name].numpy().copy()

    def set(self, name: str, array: np.ndarray) -> None:
        """Overwrite what `get` gives."""
        if name == Names.of(self.setup.model).iteration:
            self.iteration = int(array)
            return
        buffer = self.seed if name == Names.of(self.setup.model).seed else self.sides[self.side][name]
        buffer.fill(np.broadcast_to(np.asarray(array, buffer.dtype), buffer.shape))

    def reset(self, first: Mapping[str, np.ndarray], seed: Sequence[int] = (0, 0)) -> None:
        """Back to these weights and statistics, states of zero and the first iteration, with another seed."""
        self.iteration = 0
        self.seed.fill(np.asarray(seed, np.int32))
        for w in self.setup.moving:
            self.set(w, first[w])
        for name in self.setup.states:
            self.set(name, np.zeros((), np.float32))
        for name, array in self.setup.scaling.items():
            self.set(name, array)
        self.setup.model.release()

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

    def undo(self) -> None:
        """Back to before the last step, which is in the other set of buffers; with one set, it was not taken."""
        if self.copies > 1:
            self.side ^= 1
            self.iteration -= 1

    def is_finite(self) -> bool:
        """Whether all weights and statistics are finite numbers."""
        side = self.sides[self.side]
        return all(np.isfinite(side[w].numpy()).all() for w in self.setup.moving)

    def loss_graph(self) -> ModelProto:
        """Loss and its gradient by the outputs, apart."""
        return loss_graph(self.setup.model, self.setup.losses, weighted=self._weighted)

    @property
    def _weighted(self) -> bool:
        """Whether the rows have weights."""
        return Names.of(self.setup.model).sample_weight in self._data

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
        total = weight = 0.0
        k = self.k.numpy()
        weighted = self._data.get(Names.of(self.setup.model).sample_weight)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            program = self._programs.get(len(rows)) or self._new(len(rows))
            program.batch.gather(rows)
            k[...] = self.iteration + 1
            share = float(len(rows) if weighted is None else weighted[rows].sum(dtype=np.float64))
            loss = program(self.side)
            if self.copies == 1 and not np.isfinite(loss):
                return loss  # The step was not taken.
            total += share * loss
            weight += share
            self.side ^= 1
            self.iteration += 1
        return total / weight if weight else 0.0

    def _new(self, rows: Any) -> Any:
        while len(self._programs) >= _PROGRAMS:  # Batches of every size must not fill the memory with programs.
            del self._programs[next(iter(self._programs))]
        program = self._programs[rows] = self.program(rows)
        return program

    @abstractmethod
    def program(self, rows: int) -> Any:
        """Something with a `batch` that, called with the side to read, does a step on it and returns its loss."""

    @abstractmethod
    def graphs(self) -> dict[str, ModelProto]:
        """The graphs that a step runs, by what they do."""


class StepEngine(Engine):
    """One graph a step, from our own gradient, on any onnxruntime.

    Parameters
    ----------
    setup : Setup
        What is trained.
    """

    name = "step"

    def graphs(self) -> dict[str, ModelProto]:
        """The step, with symbolic sizes where the model has them."""
        return {"step": self._graph(self.setup.model)}

    def _graph(self, model: Model, *, kernels: bool = False) -> ModelProto:
        s = self.setup
        return step_graph(model, s.weights, s.losses, s.penalty, s.rate, weighted=self._weighted,
                          train_mode=s.train_mode, precision=s.precision, kernels=kernels)  # fmt: skip

    def program(self, rows: int) -> _StepProgram:
        """The step for batches of so many rows."""
        return _StepProgram(self, rows)


class _StepProgram:
    """A step, bound twice: from the first set of buffers into the second, and back."""

    def __init__(self, engine: StepEngine, rows: int):
        setup = engine.setup
        model = setup.sized(rows)
        graph = engine._graph(model, kernels=setup.kernels)
        session = Session(graph, device=setup.device, threads=setup.threads(model))
        names = Names.of(setup.model)
        self.engine, self.batch = engine, Batch(engine._data, rows, setup.device)
        self.loss = np.zeros((), setup.dtype)
        loss = Buffer(self.loss)
        self.runs = []
        for read, write in (engine.sides, engine.sides[::-1]):
            binding = session.binding()
            for name, buffer in {**self.batch.buffers, **read, **engine.given}.items():
                if name in session.inputs:
                    binding.bind_input(name, buffer)
            binding.bind_output(names.loss, loss)
            for name, buffer in write.items():
                binding.bind_output(names.new(name), buffer)
            self.runs.append(binding.run)

    def __call__(self, side: int) -> float:
        self.runs[side](self.engine.options)
        return float(self.loss)


class EpochEngine(StepEngine):
    """Many steps in one run: a Scan over the batches of an epoch, with the data where they are.

    The last batch of an epoch, where it is smaller, is a step of its own. So are all where a step is long: then calling
    onnxruntime for each costs nothing beside it, and it reuses memory better outside of a Scan. The numbers are the
    same to the last bit.

    Parameters
    ----------
    setup : Setup
        What is trained.
    """

    name = "epoch"

    def __init__(self, setup: Setup):
        super().__init__(setup)
        self._trained = sum(setup.model.arrays[w].size for w in setup.weights)

    def graphs(self) -> dict[str, ModelProto]:
        """The steps of an epoch, with symbolic sizes where the model has them, and the step."""
        return {"epoch": self._epoch_graph(self.setup.model), **super().graphs()}

    def _epoch_graph(self, model: Model, *, kernels: bool = False) -> ModelProto:
        s = self.setup
        return epoch_graph(model, s.weights, s.losses, s.penalty, s.rate, weighted=self._weighted,
                           train_mode=s.train_mode, precision=s.precision, kernels=kernels)  # fmt: skip

    def epoch(self, order: np.ndarray, batch_size: int) -> float:
        """Train once on the rows in this order; returns their weighted mean loss, each batch's before its step."""
        if batch_size * self._trained > _LONG_STEP:
            return super().epoch(order, batch_size)
        steps = len(order) // batch_size
        last = order[steps * batch_size :]
        weighted = self._data.get(Names.of(self.setup.model).sample_weight)
        total = weight = 0.0
        every = np.ascontiguousarray(order[: steps * batch_size], np.int64).reshape(steps, batch_size)
        row = sum(a[:1].nbytes for a in self._data.values())
        chunk = max(1, min(_CHUNK, _NEAR // (batch_size * row)))
        for batches in (every[i : i + chunk] for i in range(0, steps, chunk)):
            key = "epoch", batch_size
            program = self._programs.get(key) or self._new(key)
            self.k.numpy()[...] = self.iteration
            losses = program(self.side, batches)
            self.side ^= 1
            self.iteration += len(batches)
            shares = np.full(len(batches), float(batch_size)) if weighted is None else (
                weighted[batches].sum(1, np.float64))  # fmt: skip
            total, weight = total + float(losses @ shares), weight + float(shares.sum())
        if len(last):
            share = float(len(last) if weighted is None else weighted[last].sum(dtype=np.float64))
            total += share * super().epoch(last, len(last))
            weight += share
        return total / weight if weight else 0.0

    def program(self, rows: Any) -> Any:
        """The steps of an epoch, asked for by ("epoch", rows), or a single step."""
        return _EpochProgram(self, rows[1]) if isinstance(rows, tuple) else super().program(rows)


class _EpochProgram:
    """The steps of an epoch, bound twice: from the first set of buffers into the second, and back."""

    def __init__(self, engine: EpochEngine, rows: int):
        setup = engine.setup
        model = setup.sized(rows)
        graph = engine._epoch_graph(model, kernels=setup.kernels)
        session = Session(graph, device=setup.device, threads=setup.threads(model))
        self.names, self.engine, self.batch = Names.of(setup.model), engine, Rows(engine._data, setup.device)
        self.bindings = []
        for read, write in (engine.sides, engine.sides[::-1]):
            binding = session.binding()
            for name, buffer in {**read, **engine.given}.items():
                if name in session.inputs:
                    binding.bind_input(name, buffer)
            for name, buffer in write.items():
                binding.bind_output(self.names.new(name), buffer)
            self.bindings.append(binding)
        self.data = [n for n in session.inputs if n in engine._data]
        self.order = next(n for n in session.inputs if n not in {*self.data, *engine.sides[0], *engine.given})

    def __call__(self, side: int, batches: np.ndarray) -> np.ndarray:
        binding = self.bindings[side]
        for name in self.data:
            binding.bind_input(name, self.batch.arrays[name])
        binding.bind_input(self.order, batches)
        binding.run(self.engine.options)
        return binding.ortvalues()[self.names.loss].numpy()


class AgentEngine(Engine):
    """Forward and backward by the TrainingAgent; loss, penalty and update in sessions of their own.

    Parameters
    ----------
    setup : Setup
        What is trained.
    """

    name = "agent"

    def __init__(self, setup: Setup):
        if not Device.parse(setup.device).shares_memory:
            raise DeviceError(f"engine='agent' trains on the CPU alone, not on {setup.device!r}; use engine='step'.")
        super().__init__(setup)
        self.names = Names.of(setup.model)
        self.trained = {w: setup.model.initializers[w] for w in setup.weights}
        self.forward = forward_graph(setup.model, setup.weights, list(setup.losses), used_only=True)
        penalty, self.penalised = penalty_graph(self.trained, setup.penalty, self.names)
        self.update = update_graph(self.trained, setup.rate, self.names, penalised=self.penalised)
        self.penalty = penalty
        self.agent = Agent(self.forward, list(setup.weights), device=setup.device, threads=setup.threads())
        session = partial(Session, device=setup.device, threads=setup.threads())
        self.update_session = session(self.update)
        self.penalty_session = session(penalty) if penalty is not None else None

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of forward, forward and backward, loss, penalty and update."""
        found = {"forward": self.forward, "forward_backward": ModelProto.FromString(self.agent.gradient_onnx),
                 "learning_loss": self.loss_graph(), "learning_rate": self.update}  # fmt: skip
        return {**found, "learning_penalty": self.penalty} if self.penalty is not None else found

    def program(self, rows: int) -> _AgentProgram:
        """A step for batches of so many rows."""
        return _AgentProgram(self, rows)


class _AgentProgram:
    """Forward, loss, penalty, backward, update, each with what it reads and writes bound once where it stays."""

    def __init__(self, engine: AgentEngine, rows: int):
        setup, names = engine.setup, engine.names
        model = setup.sized(rows)
        graph = loss_graph(model, setup.losses, weighted=engine._weighted)
        session = Session(graph, device=setup.device, threads=setup.threads(model))
        self.engine, self.batch = engine, Batch(engine._data, rows)
        self.agent = engine.agent
        self.inputs = {n: b for n, b in self.batch.buffers.items() if n in setup.model.inputs}
        self.sides = [{w: side[w] for w in setup.weights} for side in engine.sides]
        self.outputs = list(setup.losses)
        self.gradients = {w: names.grad(w) for w in setup.weights}
        self.loss = np.zeros((), setup.dtype)
        self.output_gradients = [
            Buffer(np.zeros(_static(model.outputs[o].shape, o), model.outputs[o].dtype), setup.device)
            for o in self.outputs
        ]
        self.loss_binding: Binding = session.binding()
        for name, buffer in self.batch.buffers.items():
            if name in session.inputs:
                self.loss_binding.bind_input(name, buffer)
        self.loss_binding.bind_output(names.loss, Buffer(self.loss))
        for o, buffer in zip(self.outputs, self.output_gradients, strict=True):
            self.loss_binding.bind_output(names.grad(o), buffer)
        penalties = {w: Buffer(np.zeros_like(setup.model.arrays[w]), setup.device) for w in engine.penalised}
        self.penalty_runs, self.update_bindings = [], []
        for read, write in (engine.sides, engine.sides[::-1]):
            if engine.penalty_session is not None:
                binding = engine.penalty_session.binding()
                for w, buffer in penalties.items():
                    binding.bind_input(w, read[w])
                    binding.bind_output(names.penalty_grad(w), buffer)
                self.penalty_runs.append(binding.run)
            binding = engine.update_session.binding()
            given = {**read, names.iteration: engine.k, **{names.penalty_grad(w): b for w, b in penalties.items()}}
            for name, buffer in given.items():
                if name in engine.update_session.inputs:
                    binding.bind_input(name, buffer)
            for name, buffer in write.items():
                binding.bind_output(names.new(name), buffer)
            self.update_bindings.append((binding, binding.run))

    def __call__(self, side: int) -> float:
        outputs, state = self.agent.forward(self.inputs, self.sides[side])
        assert state is not None
        loss = self.loss_binding
        for name, y in zip(self.outputs, outputs, strict=True):
            loss.bind_ortvalue_input(name, y)
        loss.run(self.engine.options)
        gradients = self.agent.backward(self.output_gradients, state)
        if self.penalty_runs:
            self.penalty_runs[side](self.engine.options)
        binding, run = self.update_bindings[side]
        for w, g in gradients.items():
            binding.bind_ortvalue_input(self.gradients[w], g)
        run(self.engine.options)
        return float(self.loss)


def _static(shape: Sequence[int | str | None] | None, name: str) -> tuple[int, ...]:
    """A shape whose sizes are all known once the number of rows is."""
    if shape is None or not all(isinstance(d, int) for d in shape):
        raise ModelError(f"The shape of output {name!r} is {shape}; engine='agent' needs it known, 'step' does not.")
    return tuple(d for d in shape if isinstance(d, int))


def choose_for_fit(engine: str) -> tuple[type[Engine], str]:
    """The engine that `fit` uses, and why.

    Parameters
    ----------
    engine : str
        ``"auto"``, ``"agent"`` or ``"step"``.

    Returns
    -------
    tuple of type and str

    Raises
    ------
    SettingError
        The name is unknown.
    """
    if engine == "auto":
        return EpochEngine, "one graph an epoch runs on any onnxruntime and is the fastest"
    if engine not in (table := {"agent": AgentEngine, "epoch": EpochEngine, "step": StepEngine}):
        raise SettingError(f"engine is 'auto', {', '.join(map(repr, table))}, not {engine!r}.")
    return table[engine], "asked for"


def choose_for_backward(engine: str, model: ModelProto, weights: Sequence[str] | None = None,
                        input_grads: Sequence[str] | None = None) -> tuple[str, str]:  # fmt: skip
    """The engine for forward and backward apart, and why.

    Parameters
    ----------
    engine : str
        ``"auto"``, ``"agent"`` or ``"step"``.
    model : onnx.ModelProto
        The graph that would be run.
    weights : sequence of str, optional
        The weights that it is differentiated by, beside its inputs; all where left out.
    input_grads : sequence of str, optional
        The inputs that it is differentiated by; all of a floating-point type where left out.

    Returns
    -------
    tuple of str and str
    """
    if engine == "epoch":
        return "step", "forward and backward apart know no epoch"
    if engine != "auto":
        return choose_for_fit(engine)[0].name, "asked for"
    if not has_training():
        return "step", "onnxruntime-training is not installed"
    if reasons := untrusted(model, weights, input_grads=input_grads):
        return "step", reasons[0]
    return "agent", "onnxruntime-training is installed and right about every operator of the graph"

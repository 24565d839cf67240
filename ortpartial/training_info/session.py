"""Training sessions: run the initialization and the training steps that a model stores as training information."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from ortpartial.exceptions import DataError, GraphError, ModelError, SettingError
from ortpartial.graph import Node, Value, build, constant, find_inputs, rewrite, to_dtype
from ortpartial.model import (
    Model,
    Range,
    check_finite,
    check_indices,
    find_indices,
    find_libraries,
    index_ranges,
    load,
    match_names,
    read,
    register_libraries,
    write,
)
from ortpartial.rewrites import rewrite_model
from ortpartial.runtime import Binding, Buffer, Device, DeviceName, Session, Turn, as_numpy, choose_threads

from .checker import check_training_info, initialization
from .graphs import build_step, list_computed, mutable, pairs, strip_training_info
from .labels import read_labels
from .steps import compose_step

__all__ = ["TrainingSession", "draw_initialization"]

#: How many shapes of inputs have sessions of their own.
_MAX_SHAPES = 8


class TrainingSession:
    """Run the training that a model stores, as the ONNX standard specifies it.

    The state is the initializers that a binding changes. It starts with the values stored in the model; `initialize`
    sets it to the outputs of the initializations. A step runs the algorithms of all entries in turn, each with the
    state that the one before has left. Threads that share a session take turns.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path or Model
        A model with training information; it is not written to. Of a `Model`, the session keeps ``straight_through``.
    device : str or tuple of str and dict
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider, as in `OrtGradientForwardBackwardOptimizer`.
    folder : path, optional
        Where the external data of a ModelProto or of bytes are; those of a path are beside it.
    returned : collection of str, optional
        What a step returns, of the outputs of the algorithms; by default all of them, and those outputs of the
        inference graph that need nothing else.
    threads : int, optional
        Number of threads of a step; by default as its sizes suggest.
    exchanges : dict of str to callable, optional
        By initializer, what is called with the `Buffer` of its new value before the next entry reads it: processes that
        train together add theirs up. It is not pickled.

    Attributes
    ----------
    inputs, outputs : list of str
        What a step reads and what it returns.
    shapes : dict of str to tuple
        The shapes that the inputs are declared with: sizes, names of sizes, or None; None where there is no shape.
    ranges : dict of str to Range
        By input that holds labels or indices, the whole numbers that it may hold.
    batch_size : int or None
        The number of rows of a step, if the model declares one.
    steps_taken : int
        The number of steps since the session was opened.

    Raises
    ------
    ModelError
        The training information is not valid; the message names the entry and its field.

    Examples
    --------
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer
    >>> from ortpartial.graph import variable
    >>> from ortpartial.training_info import to_training_info
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> session = TrainingSession(to_training_info(optimizer))
    >>> X = np.ones((4, 1), np.float32)
    >>> session.step({"x": X, "y_target": 2 * X})["loss"].item()
    4.0
    >>> session.state["w"].tolist()
    [[1.0]]
    """

    def __init__(self, model: Model | ModelProto | bytes | str | os.PathLike[str], *,
                 device: DeviceName | Device = "cpu", folder: str | os.PathLike[str] | None = None,
                 returned: Collection[str] | None = None,
                 threads: int | None = None, exchanges: Mapping[str, Callable[[Buffer], None]] | None = None):
        copy = ModelProto()
        copy.CopyFrom(read(model, folder))
        check_training_info(copy)
        self._open(copy, Device.parse(device), returned, threads)
        self._exchanges.update(exchanges or {})

    def _open(self, model: ModelProto, device: Device, returned: Collection[str] | None, threads: int | None) -> None:
        """Start with the state that a model stores."""
        self._model, self._device, self._turn = model, device, Turn()
        self._returned, self._threads = returned, threads
        self._exchanges: dict[str, Callable[[Buffer], None]] = {}
        self._stored = {n: numpy_helper.to_array(t) for n, t in mutable(self._model).items()}
        #: The steps by the shapes of inputs; None where they are yet to be made again after a pickle.
        self._steps: dict[Any, _BoundSteps | None] = {}
        updates = [pairs(info.update_binding) for info in self._model.training_info]
        counts = Counter(n for update in updates for n in update)
        # A step reads one buffer of the state and writes the next, so that one that fails has no effect.
        self._rings = {n: [Buffer(a.copy(), device) for _ in range(counts[n] + 1)] for n, a in self._stored.items()}
        self._turns = math.lcm(*(len(ring) for ring in self._rings.values()))
        # One number says which buffers are current, so that Ctrl-C finds them before or after a step.
        self.steps_taken = 0
        self._describe_steps({v for update in updates for v in update.values()})

    def _describe_steps(self, bound: Collection[str]) -> None:
        """Name what the steps read and what they return: all that they compute but the bound values, the new state."""
        infos = self._model.training_info
        steps = [list_computed(build_step(self._model, i), info, self._returned) for i, info in enumerate(infos)]
        self.ranges: dict[str, Range] = {}
        self._indices: frozenset[str] = frozenset()
        for i, (inputs, outputs) in enumerate(steps):
            self.ranges |= index_ranges(inputs, outputs.values())
            self._indices |= find_indices(inputs, outputs.values())
            self.ranges |= read_labels(infos[i].algorithm, f"training_info[{i}]")
        self._types = {n: v for inputs, _ in steps for n, v in inputs.items() if n not in self._stored}
        self.inputs = list(self._types)
        self.shapes = {n: v.shape for n, v in self._types.items()}
        sizes = [shape[0] for shape in self.shapes.values() if shape]
        self.batch_size = next((size for size in sizes if isinstance(size, int)), None)
        self.outputs = list(dict.fromkeys(n for _, outputs in steps for n in outputs if n not in bound))
        self._evaluations: list[Session] = []
        self._declared = {i.name for g in (self._model.graph, *(t.algorithm for t in infos)) for i in g.input}

    @classmethod
    def from_model(
        cls, model: Model | ModelProto | bytes | str | os.PathLike[str], **settings: Any
    ) -> TrainingSession:
        """Make a session from a model; the same as the constructor.

        Parameters
        ----------
        model : onnx.ModelProto, bytes, path or Model
            A model with training information.
        **settings : object
            As for the constructor.

        Returns
        -------
        TrainingSession
        """
        return cls(model, **settings)

    def initialize(self, seed: int | None = None) -> None:
        """Reset the state to the stored initializers, then run the initializations.

        Parameters
        ----------
        seed : int, optional
            Seed of the random numbers, which are then the same on every runtime. Without it they follow from the
            seeds of the nodes; those of nodes without one cannot be reproduced.
        """
        try:
            rng = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise SettingError(f"seed is None or a whole number of at least 0, not {seed!r}.") from None
        with self._turn.lock:
            self._initialize(seed, rng)

    @property
    def model(self) -> ModelProto:
        """The model that the session was opened with, which nothing may write to."""
        return self._model

    def _initialize(self, seed: int | None, rng: np.random.Generator) -> None:
        """Run the initializations, each of which sees what those before have set."""
        self._set(self._stored)
        for info in self._model.training_info:
            binding = pairs(info.initialization_binding)
            if not binding:
                continue
            arrays = draw_initialization(load(initialization(self._model, info)), seed, rng, self._device)
            self._set({key: arrays[value] for key, value in binding.items()})

    def _current(self, name: str) -> Buffer:
        """The buffer that holds an initializer now: in a ring of n buffers each step moves it by n - 1."""
        ring = self._rings[name]
        return ring[-self.steps_taken % len(ring)]

    def _set(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite initializers."""
        for name, array in arrays.items():
            self._current(name).fill(array)

    @property
    def names(self) -> list[str]:
        """The names of the initializers that a binding changes."""
        return list(self._rings)

    def get(self, name: str) -> np.ndarray:
        """A copy of an initializer that a binding changes.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        numpy.ndarray
        """
        with self._turn.lock:
            return self._current(name).numpy().copy()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Overwrite initializers that a binding changes.

        Parameters
        ----------
        state : dict of str to array_like
            By name; others keep their numbers.

        Raises
        ------
        ModelError
            The training has no such initializer, or it has another shape.
        """
        arrays = {n: np.asarray(a) for n, a in state.items()}
        for n, a in arrays.items():
            if n not in self._stored:
                raise ModelError(f"The training has no state {n!r}; it has {', '.join(self._stored)}.")
            if a.shape != self._stored[n].shape:
                raise ModelError(f"The state {n!r} has the shape {self._stored[n].shape}, not {a.shape}.")
        with self._turn.lock:
            self._set(arrays)

    def step(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the algorithms of all entries once, and update the state.

        Parameters
        ----------
        feeds : dict of str to array_like
            By the names of `inputs`. Inputs of the model that no step reads are ignored.

        Returns
        -------
        dict of str to numpy.ndarray
            By the names of `outputs`; where several entries compute one, that of the last.

        Raises
        ------
        DataError
            An input is missing or unknown, has the wrong type or shape, or holds labels or indices out of range.
        """
        arrays = self._check(feeds)
        with self._turn.lock:
            outputs = self._steps_for(arrays).run(self.steps_taken % self._turns, arrays)
            self.steps_taken += 1
        return {n: outputs[n] for n in self.outputs}

    def undo(self) -> None:
        """Go back to before the last step, once; what was set since then is lost."""
        with self._turn.lock:
            self.steps_taken -= 1

    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Compute what a step returns, without an update of the state.

        The algorithms are those of the training, with its Dropout masks if it has any. Each reads the current state.

        Parameters
        ----------
        feeds : dict of str to array_like
            As for `step`.

        Returns
        -------
        dict of str to numpy.ndarray
            By the names of `outputs`.

        Raises
        ------
        DataError
            As for `step`.
        """
        arrays = self._check(feeds)
        outputs: dict[str, np.ndarray] = {}
        with self._turn.lock:
            if not self._evaluations:
                self._evaluations = [self._evaluation(i) for i in range(len(self._model.training_info))]
            for session in self._evaluations:
                state = {n: self._current(n).numpy() for n in session.inputs if n in self._rings}
                outputs.update(session.run({**state, **{n: a for n, a in arrays.items() if n in session.inputs}}))
        return {n: outputs[n] for n in self.outputs}

    def _evaluation(self, entry: int) -> Session:
        """A session for the outputs of an entry but its updates."""
        step, info = build_step(self._model, entry), self._model.training_info[entry]
        _, computed = list_computed(step, info, self._returned)
        outputs = {n: v for n, v in computed.items() if n in self.outputs}
        outputs = dict(zip(outputs, rewrite_model(replace(step, outputs=outputs)).outputs.values(), strict=True))
        graph = build(find_inputs(list(outputs.values()), step.inputs), outputs, name="evaluation")
        return Session(graph, device=self._device, threads=choose_threads(list(outputs.values())))

    def _check(self, feeds: Any) -> dict[str, np.ndarray]:
        """The arrays of a step, in the order of `inputs`, with indices and labels within their ranges."""
        if not isinstance(feeds, Mapping):
            listed = ", ".join(f"{n!r}: ..." for n in self.inputs)
            raise DataError(f"A step reads a dict of arrays by name, {{{listed}}}, not a {type(feeds).__name__}.")
        if feeds.keys() != self._types.keys():
            match_names(self.inputs, [n for n in feeds if not self._is_unused_input(n)])
        arrays = {n: self._convert(n, feeds[n]) for n in self.inputs}
        check_indices(self.ranges, arrays)
        return arrays

    def _is_unused_input(self, name: str) -> bool:
        """Whether the model has an input that no step reads."""
        return name in self._declared and name not in self._stored and name not in self.inputs

    def _convert(self, name: str, values: Any) -> np.ndarray:
        """Convert an input to the dtype that the steps read, which has to hold its numbers."""
        array, dtype = np.asarray(values), self._types[name].dtype
        if array.dtype == dtype:
            return array
        return to_dtype(array, dtype, f"The input {name!r}", counts=name in self._indices)

    def _steps_for(self, arrays: Mapping[str, np.ndarray]) -> _BoundSteps:
        """The steps for inputs of these shapes alone, or for all shapes when there have been many."""
        shapes = tuple([a.shape for a in arrays.values()])
        steps = self._steps.get(shapes)
        if steps is None:
            for (name, v), shape in zip(self._types.items(), shapes, strict=True):
                if v.shape is not None and not _fits(shape, v.shape):
                    raise DataError(f"The input {name!r} has shape {shape}, and the steps read {list(v.shape)}.")
            key = shapes if shapes in self._steps or len(self._steps) < _MAX_SHAPES else None
            steps = self._steps.get(key)
            if steps is None:
                sizes = None if key is None else dict(zip(arrays, shapes, strict=True))
                try:
                    steps = self._steps[key] = _BoundSteps(self, sizes)
                except (GraphError, ModelError) as e:
                    listed = ", ".join(f"{n} {a.shape}" for n, a in arrays.items())
                    raise DataError(f"The shapes of the inputs do not fit together: {listed}. {e}") from None
        return steps

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the initializers that a binding changes, by name."""
        with self._turn.lock:
            return {n: self._current(n).numpy().copy() for n in self._rings}

    def training_model(self) -> ModelProto:
        """The model with its current state and its training information.

        Returns
        -------
        onnx.ModelProto
        """
        model, state = ModelProto(), self.state
        model.CopyFrom(self._model)
        for graph in (model.graph, *(info.algorithm for info in model.training_info)):
            for t in graph.initializer:
                if t.name in state:
                    t.CopyFrom(numpy_helper.from_array(state[t.name], t.name))
        return model

    def inference_model(self) -> ModelProto:
        """The model with its current weights, without training information.

        Returns
        -------
        onnx.ModelProto
        """
        return strip_training_info(self.training_model())

    def check_finite(self) -> None:
        """Check that the training has not failed, before its state is written somewhere.

        Raises
        ------
        ConvergenceError
            A part of the state is NaN or infinite that was not when the session was opened; `training_model` returns
            the model all the same.
        """
        check_finite(self.state, self._stored, "training_model")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its current state, from which a new session goes on.

        Parameters
        ----------
        path : path
            The file. It holds either its former content or the whole model, even if the process is interrupted; the
            weights of a model of more than 2 GB stand beside it in ``<name>.data``.

        Raises
        ------
        OSError
            The file cannot be written.
        ConvergenceError
            As for `check_finite`; the file remains as it is.
        """
        self.check_finite()
        write(self.training_model(), path)

    def __getstate__(self) -> dict[str, Any]:
        # Sessions are made again, for the same shapes, since those of others are compiled for any shape.
        return {"model": self._model, "device": self._device, "state": self.state, "shapes": list(self._steps),
                "libraries": find_libraries(self._model), "returned": self._returned, "threads": self._threads}

    def __setstate__(self, state: dict[str, Any]) -> None:
        register_libraries(state["model"], state.get("libraries", ()))
        self._open(state["model"], state["device"], state.get("returned"), state.get("threads"))
        self._set(state["state"])
        self._steps = dict.fromkeys(state["shapes"])

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {v.type_name}" for n, v in self._types.items())
        size = sum(a.size for a in self._stored.values())
        return f"<TrainingSession {inputs} -> {', '.join(self.outputs)}; state: {len(self._rings)} ({size:,} numbers)>"


class _BoundSteps:
    """The steps of all entries for some sizes of inputs, bound once for every turn of the rings.

    Parameters
    ----------
    training : TrainingSession
        The training, whose buffers of the state have one more for each initializer than there are entries that update
        it.
    sizes : dict of str to sequence of int, optional
        The sizes of the inputs; any sizes if left out.
    """

    def __init__(self, training: TrainingSession, sizes: Mapping[str, Sequence[int]] | None):
        self._rings, self._exchanges = training._rings, training._exchanges
        #: For each entry that computes something its session, the initializers by the names of their new values, and
        #: the buffers of outputs whose shape is known.
        self._steps: list[tuple[Session, dict[str, str], dict[str, Buffer]]] = []
        self._turns: dict[int, list[tuple[Binding, list[str], dict[str, Buffer]]]] = {}
        model = training._model
        for i in range(len(model.training_info)):
            inputs, outputs, new = compose_step(model, i, sizes, training._returned)
            if not outputs:
                continue
            graph = build(inputs, outputs, name="step")
            threads = training._threads or choose_threads(list(outputs.values()))
            session = Session(graph, device=training._device, threads=threads)
            fixed = {n: Buffer.empty(v.shape, v.dtype) for n, v in outputs.items()  # type: ignore[arg-type]
                     if n not in new and v.is_static and v.dtype != object}  # onnxruntime binds no strings.
            self._steps.append((session, new, fixed))

    def run(self, turn: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the steps of a turn, and return copies of their outputs without the new state."""
        outputs: dict[str, np.ndarray] = {}
        for (_, new, fixed), (binding, inputs, exchanged) in zip(self._steps, self._bind(turn), strict=True):
            for name in inputs:
                binding.bind_input(name, arrays[name])
            binding.run()
            for name, buffer in exchanged.items():
                self._exchanges[name](buffer)
            outputs.update({n: b.numpy().copy() for n, b in fixed.items()})
            if len(fixed) + len(new) < len(binding.session.outputs):
                outputs.update({n: as_numpy(v) for n, v in binding.ortvalues().items() if n not in fixed | new})
        return outputs

    def _bind(self, turn: int) -> list[tuple[Binding, list[str], dict[str, Buffer]]]:
        """A binding for each step, the inputs that it has yet to bind, and what is exchanged after it."""
        if turn in self._turns:
            return self._turns[turn]
        positions = {n: -turn % len(ring) for n, ring in self._rings.items()}
        bindings = self._turns[turn] = []
        for session, new, fixed in self._steps:
            binding = session.binding()
            for n in session.inputs:
                if n in positions:
                    binding.bind_input(n, self._rings[n][positions[n]])
            for n, key in new.items():
                positions[key] = (positions[key] + 1) % len(self._rings[key])
                binding.bind_output(n, self._rings[key][positions[key]])
            for n, buffer in fixed.items():
                binding.bind_output(n, buffer)
            exchanged = {key: self._rings[key][positions[key]] for key in new.values() if key in self._exchanges}
            bindings.append((binding, [n for n in session.inputs if n not in positions], exchanged))
        return bindings


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether a shape agrees with the declared one."""
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(m == n or not isinstance(n, int) for m, n in pairs)


def draw_initialization(
    graph: Model, seed: int | None, rng: np.random.Generator, device: DeviceName | Device = "cpu"
) -> dict[str, np.ndarray]:
    """Run an initialization, whose random numbers numpy draws, alike on every runtime.

    Parameters
    ----------
    graph : Model
        The initialization, without inputs.
    seed : int or None
        Without a seed, a node that has one of its own draws by that.
    rng : numpy.random.Generator
        Draws all other numbers.
    device : str
        Where it runs.

    Returns
    -------
    dict of str to numpy.ndarray
        The outputs by name.
    """
    values = rewrite(list(graph.outputs.values()), {}, lambda node, _: _draw(node, seed, rng))
    return Session(build(graph.inputs, dict(zip(graph.outputs, values, strict=True))), device=device).run({})


def _draw(node: Node, seed: int | None, rng: np.random.Generator) -> Sequence[Value] | None:
    """Random numbers in place of a random node; None, so that the runtime draws them, if their shape is not known."""
    kind, like = node.op_type.removesuffix("Like"), node.outputs[0]
    if node.domain or kind not in ("RandomNormal", "RandomUniform") or not like.is_static:
        return None
    node_seed = node.attribute("seed")
    if seed is None and node_seed is not None:
        rng = np.random.default_rng(int(np.float32(node_seed).view(np.uint32)))
    a, b = ("mean", "scale") if kind == "RandomNormal" else ("low", "high")
    draw: Any = rng.normal if kind == "RandomNormal" else rng.uniform
    return [constant(np.asarray(draw(node.attribute(a), node.attribute(b), like.shape), like.dtype))]

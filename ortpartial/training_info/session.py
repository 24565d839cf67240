"""Training sessions: run the initialization and the training steps that a model stores as training information."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from ortpartial.annotations import Data, Entries, Settings, State
from ortpartial.checks import check_flag, check_names, to_generator
from ortpartial.exceptions import ConvergenceError, DataError, ModelError, SettingError
from ortpartial.execution import EngineNames, GraphPart, GraphSource, StepNames, Stepper, StepRunner, fits
from ortpartial.graph import Node, Value, build, constant, find_inputs, read_array, rewrite, to_dtype
from ortpartial.learning import SESSION_HABITS, AnsweredAttributes, ClassWatch, NamedSettings, accept_words
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
    use_libraries,
    write,
)
from ortpartial.rewrites import rewrite_model
from ortpartial.runtime import Buffer, Device, DeviceName, Session, choose_threads

from .checker import check_training_info, initialization
from .graphs import mutable, pairs, strip_training_info
from .labels import read_labels
from .steps import read_part

__all__ = ["TrainingSession", "draw_initialization"]

#: The engines that take single steps.
_ENGINES = ("step", "epoch", "native")
#: The settings that a pickle has, as they are where it has none: pickles of version 0.1.0 lack all, later pickles the
#: last.
_SETTINGS: Settings = {"returned": None, "threads": None, "engine": "auto", "timeout": None,
                       "raise_on_divergence": None}


class TrainingSession(AnsweredAttributes, EngineNames, NamedSettings):
    """Run the training that a model stores, as the ONNX standard specifies it.

    The state is the initializers that a binding changes. It starts with the values stored in the model; `initialize`
    sets it to the outputs of the initializations. A step runs the algorithms of all entries in turn, each with the
    state that the entry before has left. Threads that share a session take turns.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path or Model
        A model with training information; it is not written to. Of a `Model`, the session keeps ``straight_through``.
    device : str or tuple of str and dict
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider, as in `OrtGradientForwardBackwardOptimizer`.
    folder : path, optional
        Where the external data of a ModelProto or of bytes are; for a path, they are beside it.
    returned : collection of str, optional
        The outputs of the algorithms that a step returns; by default all of them, and the outputs of the inference
        graph that need nothing else.
    threads : int, optional
        Number of threads of a step; by default as its sizes suggest.
    engine : str
        ``"auto"`` or ``"step"``: a graph for each step; a big state is held once by "step", and by "auto" where memory
        is short, and a step that overwrites it cannot be undone. ``"epoch"``: the same, and many steps in a run where
        `train_epochs` takes them. ``"native"``: machine code, which a C compiler makes of a step for the shapes of
        batches that come often; an operator that cannot be written in C is an error.
    timeout : float, optional
        Seconds that a step may take, compilation included; then `DeadlineError` ends it, without an effect.
    exchanges : dict of str to callable, optional
        By initializer, a function of the `Buffer` of its new value, called before the next entry reads it: processes
        that train together add theirs up. It is not pickled.
    custom_ops_library : path or sequence of path, optional
        The shared library of the model's custom operators, as for `ortpartial.load`.
    raise_on_divergence : bool, optional
        Whether an output of a step that is a number, such as the loss, raises ConvergenceError where it is NaN or
        infinite, or else warns; the state is that before the step. By default steps are not looked at, and
        `check_finite` and `save` tell.

    Attributes
    ----------
    inputs, outputs : list of str
        The names of the inputs and results of a step.
    shapes : dict of str to tuple
        The shapes that the inputs are declared with: sizes, names of sizes, or None; None where there is no shape.
    ranges : dict of str to Range
        By input that holds labels or indices, the whole numbers that it may hold.
    batch_size : int or None
        The number of rows of a step, if the model declares it.
    engine_, engine_reason_ : str
        The engine, and why it was chosen.

    Raises
    ------
    ModelError
        The training information is not valid; the message names the entry and its field.
    SettingError
        The engine or the timeout is out of range.

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

    _habits = SESSION_HABITS

    def __init__(self, model: Model | ModelProto | bytes | str | os.PathLike[str], *,
                 device: DeviceName | Device = "cpu", folder: str | os.PathLike[str] | None = None,
                 returned: Collection[str] | None = None,
                 threads: int | None = None, engine: str = "auto", timeout: float | None = None,
                 exchanges: Mapping[str, Callable[[Buffer], None]] | None = None,
                 custom_ops_library: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
                 raise_on_divergence: bool | None = None):
        if returned is not None:
            returned = check_names("returned", returned)
        if exchanges is not None and not isinstance(exchanges, Mapping):
            raise SettingError(f"exchanges is a dict of functions by name, not {exchanges!r}.")
        copy = ModelProto()
        copy.CopyFrom(read(model, folder))
        use_libraries(copy, custom_ops_library)
        check_training_info(copy)
        self._open(copy, Device.parse(device), exchanges or {}, returned=returned, threads=threads, engine=engine,
                   timeout=timeout, raise_on_divergence=raise_on_divergence)

    def _open(self, model: ModelProto, device: Device, exchanges: Mapping[str, Callable[[Buffer], None]],
              **settings: Data) -> None:
        """Start with the state that a model stores."""
        self._model, self._device, self._settings = model, device, {**_SETTINGS, **settings}
        returned, threads, engine, timeout, raises = self._settings.values()
        self._check_outputs = None if raises is None else self._check_numbers
        self._stored = {n: numpy_helper.to_array(t) for n, t in mutable(self._model).items()}
        self._parts = [read_part(model, i, returned) for i in range(len(model.training_info))]
        numbers = [n for part in self._parts for n, v in part.results.items() if v.is_float and v.shape == ()]
        #: The only output of a step, if it is a number.
        self.loss = numbers[0] if len(numbers) == len(self._parts) == 1 else None
        source = GraphSource(
            tuple([part for part in self._parts if part.model.outputs]), self._stored,
            StepNames.beside({*self._stored, *(n for part in self._parts for n in part.model.values)}),
            device, self.loss, thread_count=threads, exchanges=exchanges,
            exchange=lambda new: [exchanges[n](buffer) for n, buffer in new.items()])
        self._steps = Stepper(source, engine, _ENGINES, timeout, raises is not False)
        self._runner = self._steps.engine
        self._describe_steps()

    def _describe_steps(self) -> None:
        """Name the inputs and results of the steps: all that they compute but the new state."""
        self.ranges: dict[str, Range] = {}
        self._indices: frozenset[str] = frozenset()
        self._types: dict[str, Value] = {}
        for i, (part, info) in enumerate(zip(self._parts, self._model.training_info, strict=True)):
            inputs, outputs = part.model.inputs, list(part.model.outputs.values())
            self.ranges |= index_ranges(inputs, outputs)
            self._indices |= find_indices(inputs, outputs)
            self.ranges |= read_labels(info.algorithm, f"training_info[{i}]")
            self._types |= {n: v for n, v in inputs.items() if n not in self._stored}
        self.inputs = list(self._types)
        self.shapes = {n: v.shape for n, v in self._types.items()}
        sizes = [shape[0] for shape in self.shapes.values() if shape]
        self.batch_size = next((size for size in sizes if isinstance(size, int)), None)
        bound = {v for part in self._parts for v in part.updates.values()}
        self.outputs = list(dict.fromkeys(n for part in self._parts for n in part.model.outputs if n not in bound))
        self._evaluations: list[Session] = []
        self._shapes: Any = None  # of the last batch, which fit
        self._watch = ClassWatch([v for part in self._parts for v in part.model.outputs.values()], self._types,
                                 "the stored training")
        graphs = (self._model.graph, *(t.algorithm for t in self._model.training_info))
        self._declared = {i.name for g in graphs for i in g.input}

    @property
    def steps_taken(self) -> int:
        """The number of steps since the session was opened."""
        return self._runner.iteration

    @property
    def runner(self) -> StepRunner:
        """The runner that holds the state and takes the steps, for loops of this library."""
        return self._runner

    def convert(self, data: Entries) -> dict[str, np.ndarray]:
        """The arrays of a step or of many, as `step` reads them, with all its checks.

        Parameters
        ----------
        data : dict of str to array_like
            As for `step`.

        Returns
        -------
        dict of str to numpy.ndarray
            In the order of `inputs`.
        """
        return self._check(data)

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

    @accept_words(random_state="seed")
    def initialize(self, seed: int | None = None) -> None:
        """Reset the state to the stored initializers, then run the initializations.

        Parameters
        ----------
        seed : int, optional
            Seed of the random numbers, which are then the same on every runtime. Without it they follow from the seeds
            of the nodes; numbers of nodes without a seed cannot be reproduced.
        """
        rng = to_generator("seed", seed)
        with self._runner.turn.lock:
            self._initialize(seed, rng)

    @property
    def model(self) -> ModelProto:
        """The model that the session was opened with, which nothing may write to."""
        return self._model

    def _initialize(self, seed: int | None, rng: np.random.Generator) -> None:
        """Run the initializations, each of which sees the state set by the former."""
        self._set(self._stored)
        for info in self._model.training_info:
            binding = pairs(info.initialization_binding)
            if not binding:
                continue
            arrays = draw_initialization(load(initialization(self._model, info)).outputs, seed, rng, self._device)
            self._set({key: arrays[value] for key, value in binding.items()})

    def _set(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite initializers."""
        for name, array in arrays.items():
            self._runner.set(name, array)

    @property
    def names(self) -> list[str]:
        """The names of the initializers that a binding changes."""
        return list(self._stored)

    def get(self, name: str) -> np.ndarray:
        """A copy of an initializer that a binding changes.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        numpy.ndarray

        Raises
        ------
        ModelError
            The training has no such initializer.
        """
        self._check_name(name)
        with self._runner.turn.lock:
            return self._runner.get(name)

    def _check_name(self, name: object) -> None:
        """Refuse the name of a tensor that no binding changes."""
        if name not in self._stored:
            raise ModelError(f"The training has no state {name!r}; it has {', '.join(self._stored)}.")

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
            self._check_name(n)
            if a.shape != self._stored[n].shape:
                raise ModelError(f"The state {n!r} has the shape {self._stored[n].shape}, not {a.shape}.")
        with self._runner.turn.lock:
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
            By the names of `outputs`; where several entries compute an output, the last counts.

        Raises
        ------
        DataError
            An input is missing or unknown, has the wrong type or shape, or holds labels or indices out of range.
        DeadlineError
            It was not over before the timeout; the state is that before it.
        ConvergenceError
            With `raise_on_divergence`, an output that is a number is NaN or infinite; the state is that before it.
        """
        arrays = self._check(feeds)
        with self._runner.turn.lock:
            outputs = self._steps.step(arrays, None, self._check_outputs)
        return {n: outputs[n] for n in self.outputs}

    def _check_numbers(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Refuse a step of which a number is NaN or infinite."""
        for n in self.outputs:
            if outputs[n].size == 1 and outputs[n].dtype.kind == "f" and not np.isfinite(outputs[n]).all():
                raise ConvergenceError(f"The output {n!r} of step {self.steps_taken + 1} is {outputs[n].item()}; the "
                                       f"state is that before it. Lower the learning rate, or scale the data.")

    def undo(self) -> None:
        """Go back to before the last step, once; changes since then are lost.

        Raises
        ------
        ModelError
            The step has overwritten the only copy of the state, as with ``engine="step"`` from 16 MiB on.
        """
        with self._runner.turn.lock:
            if not self._runner.can_undo:
                raise ModelError("The step has overwritten the only copy of the state, which is big: keep a copy of "
                                 "`state`, and go back to it by `set_state`.")
            self._runner.undo()

    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Compute the results of a step, without an update of the state.

        The algorithms are the training's, with its Dropout masks if it has any. Each reads the current state.

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
        with self._runner.turn.lock:
            if not self._evaluations:
                self._evaluations = [self._evaluation(part) for part in self._parts]
            for session in self._evaluations:
                state = {n: self._runner.get(n) for n in session.inputs if n in self._stored}
                outputs.update(session.run({**state, **{n: a for n, a in arrays.items() if n in session.inputs}}))
        return {n: outputs[n] for n in self.outputs}

    def _evaluation(self, part: GraphPart) -> Session:
        """A session for the outputs of an entry but its updates."""
        outputs = {n: v for n, v in part.model.outputs.items() if n in self.outputs}
        outputs = dict(rewrite_model(replace(part.model, outputs=outputs)).outputs)
        graph = build(find_inputs(list(outputs.values()), part.model.inputs), outputs, name="evaluation")
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
        if self._watch.watched:
            self._watch.look(feeds)
        if (shapes := tuple([a.shape for a in arrays.values()])) != self._shapes:
            for (name, v), shape in zip(self._types.items(), shapes, strict=True):
                if v.shape is not None and not fits(shape, v.shape):
                    raise DataError(f"The input {name!r} has shape {shape}, and the steps read {list(v.shape)}.")
            self._check_rows(arrays)
            self._shapes = shapes
        return arrays

    def _check_rows(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse inputs whose first axes share a name and differ in length."""
        first: dict[str, str] = {}
        for name, v in self._types.items():
            size = v.shape[0] if v.shape else None
            if isinstance(size, str) and len(arrays[other := first.setdefault(size, name)]) != len(arrays[name]):
                raise DataError(f"The input {other!r} has {len(arrays[other])} rows and {name!r} has "
                                f"{len(arrays[name])}; give as many of both.")

    def _is_unused_input(self, name: str) -> bool:
        """Whether the model has an input that no step reads."""
        return name in self._declared and name not in self._stored and name not in self.inputs

    def _convert(self, name: str, values: Any) -> np.ndarray:
        """Convert an input to the dtype that the steps read, which has to hold its numbers."""
        array, dtype = read_array(values, f"The input {name!r}"), self._types[name].dtype
        if array.dtype == dtype:
            return array
        return to_dtype(array, dtype, f"The input {name!r}", counts=name in self._indices)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the initializers that a binding changes, by name."""
        with self._runner.turn.lock:
            return {n: self._runner.get(n) for n in self._stored}

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

    def save(self, path: str | os.PathLike[str], *, with_training: bool = True) -> None:
        """Write the model with its current state, from which a new session goes on.

        Parameters
        ----------
        path : path
            The file. It holds either its former content or the whole model, even if the process is interrupted; the
            weights of a model of more than 2 GB stand beside it in ``<name>.data``.
        with_training : bool
            Whether the file holds the training; without, it is `inference_model`.

        Raises
        ------
        OSError
            The file cannot be written.
        ConvergenceError
            As for `check_finite`; the file remains as it is.
        """
        self.check_finite()
        write(self.training_model() if check_flag("with_training", with_training) else self.inference_model(), path)

    def __getstate__(self) -> State:
        # Programs are made again for the same shapes, since programs for any shape differ in their last bits.
        return {"model": self._model, "device": self._device, "state": self.state,
                "policy": self._runner.snapshot(copy=False)["shapes"], "libraries": find_libraries(self._model),
                **self._settings}

    def __setstate__(self, state: Entries) -> None:
        register_libraries(state["model"], state.get("libraries", ()))
        self._open(state["model"], state["device"], {}, **{n: state[n] for n in _SETTINGS if n in state})
        policy = state.get("policy") or self._list_former(state["shapes"])
        self._runner.restore({**self._runner.snapshot(), "shapes": policy})
        self._set(state["state"])

    def _list_former(self, listed: Sequence[Any]) -> tuple[Any, ...]:
        """The state of a `ShapePolicy` from the shapes that a session of version 0.2 has pickled."""
        shapes = [tuple(zip(self.inputs, each, strict=True)) for each in listed if each is not None]
        return (), [(each, 1) for each in shapes], len(shapes), shapes[0] if shapes else ()

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {v.type_name}" for n, v in self._types.items())
        size = sum(a.size for a in self._stored.values())
        return f"<TrainingSession {inputs} -> {', '.join(self.outputs)}; state: {len(self._stored)} ({size:,} numbers)>"


def draw_initialization(
    initial: Mapping[str, Value], seed: int | None, rng: np.random.Generator, device: DeviceName | Device = "cpu"
) -> dict[str, np.ndarray]:
    """Run an initialization, whose random numbers numpy draws, alike on every runtime.

    Parameters
    ----------
    initial : dict of str to Value
        The values that are drawn, which depend on no inputs.
    seed : int or None
        Without a seed, a node that has its own draws by that.
    rng : numpy.random.Generator
        Draws all other numbers.
    device : str
        Where it runs.

    Returns
    -------
    dict of str to numpy.ndarray
        The outputs by name.
    """
    values = rewrite(list(initial.values()), {}, lambda node, _: _draw(node, seed, rng))
    drawn = {n: v.array for n, v in zip(initial, values, strict=True)}
    computed = {n: v for n, v in zip(initial, values, strict=True) if v.array is None}
    numbers = Session(build([], computed), device=device).run({}) if computed else {}
    return {n: numbers[n] if a is None else np.array(a) for n, a in drawn.items()}


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
    # Attributes of a file are float32, and values that are not written have to draw the same numbers.
    low, high = (float(np.float32(node.attribute(n))) for n in (a, b))
    return [constant(np.asarray(draw(low, high, like.shape), like.dtype))]

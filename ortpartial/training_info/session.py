"""How is a training that stands in a model run? A `TrainingSession` executes its initialization and its steps."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from ortpartial.exceptions import DataError
from ortpartial.graph import Node, Value, build, constant, rewrite
from ortpartial.learning import descend
from ortpartial.model import load, match_names
from ortpartial.rewrites import apply_peepholes, simplify
from ortpartial.runtime import Binding, Buffer, Device, Session, as_numpy, choose_threads
from ortpartial.training import Names

from .checker import check_training_info, initialization
from .graphs import build_step, list_computed, mutable, pairs, read_training, strip_training_info

__all__ = ["TrainingSession"]

#: Programs, each for inputs of certain sizes, that are kept.
_PROGRAMS = 8


class TrainingSession:
    """Any model with training information, run as the ONNX standard says.

    The state are the initializers that some binding changes. It starts as the model has it; `initialize` sets it to
    what the initializations of all entries give. A step runs the algorithms of the entries one after the other, each
    with the state that the one before has left.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        A model with training information; it is not written to.
    device : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Attributes
    ----------
    inputs, outputs : list of str
        What a step reads and what it gives.

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

    def __init__(self, model: ModelProto | bytes | str | os.PathLike[str], *, device: str | Device = "cpu"):
        self._model = read_training(model)
        if self._model is model:
            self._model = ModelProto()
            self._model.CopyFrom(model)
        check_training_info(self._model)
        self._stored = {n: numpy_helper.to_array(t) for n, t in mutable(self._model).items()}
        self._device, infos = Device.parse(device), self._model.training_info
        self._updates = [pairs(info.update_binding) for info in infos]
        times = Counter(n for update in self._updates for n in update)
        # A step reads one buffer of the state and writes the next: one that fails has no effect.
        self._rings = {n: [Buffer(a.copy(), device) for _ in range(times[n] + 1)] for n, a in self._stored.items()}
        self._turn, self._turns = 0, math.lcm(*(len(ring) for ring in self._rings.values()))
        self._programs: dict[Any, _Program] = {}
        steps = [list_computed(build_step(self._model, i), info) for i, info in enumerate(infos)]
        self._types = {n: v for read, _ in steps for n, v in read.items() if n not in self._stored}
        self.inputs = list(self._types)
        bound = {v for update in self._updates for v in update.values()}
        self.outputs = list(dict.fromkeys(n for _, given in steps for n in given if n not in bound))
        self._declared = {i.name for g in (self._model.graph, *(t.algorithm for t in infos)) for i in g.input}

    @classmethod
    def from_model(cls, model: ModelProto | bytes | str | os.PathLike[str], **settings: Any) -> TrainingSession:
        """A session of a model; the same as the constructor.

        Parameters
        ----------
        model : onnx.ModelProto, bytes or path
            A model with training information.
        **settings : object
            As for the constructor.

        Returns
        -------
        TrainingSession
        """
        return cls(model, **settings)

    def initialize(self, seed: int | None = None) -> None:
        """Back to the first state: the initializers as they are stored, then what the initializations give.

        Parameters
        ----------
        seed : int, optional
            Where random numbers come from, on whatever runtime; without it, from the seeds that the nodes have, or
            from nowhere that could be repeated.
        """
        rng = np.random.default_rng(seed)
        self._set(self._stored)
        for info in self._model.training_info:
            binding = pairs(info.initialization_binding)
            if not binding:
                continue
            loaded = load(initialization(self._model, info))
            first = rewrite(list(loaded.outputs.values()), {}, lambda node, _: _drawn(node, seed, rng))
            graph = build(loaded.inputs, dict(zip(loaded.outputs, first, strict=True)))
            found = Session(graph, device=self._device).run({})
            self._set({key: found[value] for key, value in binding.items()})

    def _now(self, name: str) -> Buffer:
        """Where an initializer is: a step moves it on by as many buffers as there are but for one."""
        ring = self._rings[name]
        return ring[-self._turn % len(ring)]

    def _set(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite initializers."""
        for name, array in arrays.items():
            self._now(name).fill(array)

    def step(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Run the algorithm of every entry once, and update the state.

        Parameters
        ----------
        feeds : dict of str to array_like
            By the names of `inputs`; inputs of the model that no step reads may be given, too.

        Returns
        -------
        dict of str to numpy.ndarray
            What the steps give, without the new state; where several entries give a tensor of one name, the last.

        Raises
        ------
        DataError
            An input is missing or unknown, or does not fit.
        """
        if feeds.keys() != self._types.keys():
            match_names(self.inputs, [n for n in feeds if not self._is_unused_input(n)])
        given = {n: self._array(n, feeds[n]) for n in self.inputs}
        found = self._program(given)(self._turn, given)
        self._turn = (self._turn + 1) % self._turns
        return {n: found[n] for n in self.outputs}

    def _is_unused_input(self, name: str) -> bool:
        """Whether the model has an input that no step reads."""
        return name in self._declared and name not in self._stored and name not in self.inputs

    def _array(self, name: str, given: Any) -> np.ndarray:
        """An input as an array of the type that the steps read, where only its precision changes."""
        array, dtype = np.asarray(given), self._types[name].dtype
        if array.dtype == dtype:
            return array
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise DataError(f"The input {name!r} is {array.dtype}, and the steps read {dtype}.")
        return array.astype(dtype)

    def _program(self, given: Mapping[str, np.ndarray]) -> _Program:
        """The steps for inputs of these shapes alone, as long as there are few of them, else for all."""
        shapes = tuple([a.shape for a in given.values()])
        found = self._programs.get(shapes)
        if found is None:
            for (name, v), shape in zip(self._types.items(), shapes, strict=True):
                if v.shape is not None and not _fits(shape, v.shape):
                    raise DataError(f"The input {name!r} has shape {shape}, and the steps read {list(v.shape)}.")
            key = shapes if len(self._programs) < _PROGRAMS else None
            if key not in self._programs:
                sizes = None if key is None else dict(zip(given, shapes, strict=True))
                self._programs[key] = _Program(self._model, self._rings, sizes, self._device)
            found = self._programs[key]
        return found

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the initializers that change, by name."""
        return {n: self._now(n).numpy().copy() for n in self._rings}

    def training_model(self) -> ModelProto:
        """The model with the state of now, its training information included.

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
        """The model with the weights of now, without training information.

        Returns
        -------
        onnx.ModelProto
        """
        return strip_training_info(self.training_model())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model with the state of now; who opens it goes on from here.

        Parameters
        ----------
        path : path
            The file.
        """
        onnx.save(self.training_model(), path)

    def __repr__(self) -> str:
        return f"<TrainingSession {', '.join(self.inputs)} -> {', '.join(self.outputs)}; {', '.join(self._rings)}>"


class _Program:
    """The steps of all entries for inputs of certain sizes, bound once for every turn of the rings.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with training information.
    rings : dict of str to list of Buffer
        Where the state is read and written, of every initializer one buffer more than a step updates it.
    sizes : dict of str to sequence of int, optional
        The sizes of the inputs; all that they may have where left out.
    device : Device
        Where it runs.
    """

    def __init__(self, model: ModelProto, rings: Mapping[str, Sequence[Buffer]],
                 sizes: Mapping[str, Sequence[int]] | None, device: Device):
        self._rings = rings
        #: Of every entry that computes something: its session, new states by their names there, and where it writes.
        self._steps: list[tuple[Session, dict[str, str], dict[str, Buffer]]] = []
        self._turns: dict[int, list[tuple[Binding, list[str]]]] = {}
        for i, info in enumerate(model.training_info):
            step, update = build_step(model, i, sizes), pairs(info.update_binding)
            read, found = list_computed(step, info)
            if not found:
                continue
            names = Names.of(step)
            outputs = {n: v for n, v in found.items() if n not in update.values()}
            outputs |= {names.new(key): found[value] for key, value in update.items()}
            outputs = _shortened(simplify(replace(step, outputs=outputs)).outputs)
            graph = build(read, outputs, name="step")
            session = Session(graph, device=device, threads=choose_threads(list(outputs.values())))
            new = {names.new(key): key for key in update}
            fixed = {n: Buffer.empty(v.shape, v.dtype) for n, v in outputs.items()  # type: ignore[arg-type]
                     if n not in new and v.is_static}
            self._steps.append((session, new, fixed))

    def __call__(self, turn: int, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the steps of a turn and give copies of what they compute, without the new state."""
        outputs: dict[str, np.ndarray] = {}
        for (_, new, fixed), (binding, read) in zip(self._steps, self._bound(turn), strict=True):
            for name in read:
                binding.bind_input(name, given[name])
            binding.run()
            outputs.update({n: b.numpy().copy() for n, b in fixed.items()})
            if len(fixed) + len(new) < len(binding.session.outputs):
                outputs.update({n: as_numpy(v) for n, v in binding.ortvalues().items() if n not in fixed | new})
        return outputs

    def _bound(self, turn: int) -> list[tuple[Binding, list[str]]]:
        """For every step a binding, and which inputs are still to be bound."""
        if turn in self._turns:
            return self._turns[turn]
        at = {n: -turn % len(ring) for n, ring in self._rings.items()}
        found = self._turns[turn] = []
        for session, new, fixed in self._steps:
            binding = session.binding()
            for n in session.inputs:
                if n in at:
                    binding.bind_input(n, self._rings[n][at[n]])
            for n, key in new.items():
                at[key] = (at[key] + 1) % len(self._rings[key])
                binding.bind_output(n, self._rings[key][at[key]])
            for n, buffer in fixed.items():
                binding.bind_output(n, buffer)
            found.append((binding, [n for n in session.inputs if n not in at]))
        return found


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether an array has the sizes that are declared."""
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(m == n or not isinstance(n, int) for m, n in pairs)


def _shortened(outputs: Mapping[str, Value]) -> dict[str, Value]:
    """Outputs in the faster forms that `fit` has, with w - η · step written as `descend` writes it."""

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        if node.op_type != "Sub" or (scaled := inputs[1].node) is None or scaled.op_type != "Mul":
            return None
        eta, step = scaled.inputs
        like = inputs[0].shape is not None and inputs[0].shape == step.shape and inputs[0].is_static
        return [descend(inputs[0], eta, step)] if like and eta.array is not None and not eta.rank else None

    return dict(zip(outputs, apply_peepholes(rewrite(list(outputs.values()), {}, change)), strict=True))


def _drawn(node: Node, seed: int | None, rng: np.random.Generator) -> Sequence[Value] | None:
    """Random numbers in place of a node that draws them; by the runtime where their number is not known before."""
    kind, like = node.op_type.removesuffix("Like"), node.outputs[0]
    if node.domain or kind not in ("RandomNormal", "RandomUniform") or not like.is_static:
        return None
    own = node.attribute("seed")
    if seed is None and own is not None:
        rng = np.random.default_rng(int(np.float32(own).view(np.uint32)))
    a, b = ("mean", "scale") if kind == "RandomNormal" else ("low", "high")
    draw: Any = rng.normal if kind == "RandomNormal" else rng.uniform
    return [constant(np.asarray(draw(node.attribute(a), node.attribute(b), like.shape), like.dtype))]

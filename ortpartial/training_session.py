"""How is a training that stands in a model run? A `TrainingSession` executes its initialization and its steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

from .builder import build
from .exceptions import DataError
from .graph import Node, Value, constant
from .model import load
from .rewrite import rewritten
from .runtime import Device, Session
from .training_check import check_training_info, initialization
from .training_graph import lowered_step, mutable, pairs, read_training, strip_training_info

__all__ = ["TrainingSession"]


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
        self._state = dict(self._stored)
        self._device = device
        infos = self._model.training_info
        self._updates = [pairs(info.update_binding) for info in infos]
        steps = [lowered_step(self._model, i) if info.algorithm.output or info.update_binding else None
                 for i, info in enumerate(infos)]  # fmt: skip
        self._dtypes = {i.name: Value(i.type).dtype for step in steps if step for i in step.graph.input}
        self._sessions = [Session(step, device=device, threads=None) if step else None for step in steps]
        sessions = [s for s in self._sessions if s is not None]
        self.inputs = list(dict.fromkeys(n for s in sessions for n in s.inputs if n not in self._state))
        bound = {v for update in self._updates for v in update.values()}
        self.outputs = list(dict.fromkeys(n for s in sessions for n in s.outputs if n not in bound))
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
        self._state = dict(self._stored)
        for info in self._model.training_info:
            binding = pairs(info.initialization_binding)
            if not binding:
                continue
            loaded = load(initialization(self._model, info))
            first = rewritten(list(loaded.outputs.values()), {}, lambda node, _: _drawn(node, seed, rng))
            graph = build(loaded.inputs, dict(zip(loaded.outputs, first, strict=True)))
            found = Session(graph, device=self._device).run({})
            self._state |= {key: found[value] for key, value in binding.items()}

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
        if wrong := [n for n in feeds if n not in self.inputs and (n not in self._declared or n in self._state)]:
            raise DataError(f"The steps read no input {wrong[0]!r}; they read {', '.join(map(repr, self.inputs))}.")
        if missing := [n for n in self.inputs if n not in feeds]:
            raise DataError(f"The input {missing[0]!r} is missing; the steps read {', '.join(map(repr, self.inputs))}.")
        given = {n: self._array(n, feeds[n]) for n in self.inputs}
        outputs: dict[str, np.ndarray] = {}
        state = dict(self._state)  # A step that fails has no effect.
        for session, update in zip(self._sessions, self._updates, strict=True):
            if session is not None:
                found = session.run({n: state[n] if n in state else given[n] for n in session.inputs})
                state |= {key: found[value] for key, value in update.items()}
                outputs |= found
        self._state = state
        return {n: outputs[n] for n in self.outputs}

    def _array(self, name: str, given: Any) -> np.ndarray:
        """An input as an array of the type that the steps read, where only its precision changes."""
        array, dtype = np.asarray(given), self._dtypes[name]
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise DataError(f"The input {name!r} is {array.dtype}, and the steps read {dtype}.")
        return array.astype(dtype, copy=False)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Copies of the initializers that change, by name."""
        return {n: a.copy() for n, a in self._state.items()}

    def training_model(self) -> ModelProto:
        """The model with the state of now, its training information included.

        Returns
        -------
        onnx.ModelProto
        """
        model = ModelProto()
        model.CopyFrom(self._model)
        for graph in (model.graph, *(info.algorithm for info in model.training_info)):
            for t in graph.initializer:
                if t.name in self._state:
                    t.CopyFrom(numpy_helper.from_array(self._state[t.name], t.name))
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
        return f"<TrainingSession {', '.join(self.inputs)} -> {', '.join(self.outputs)}; {', '.join(self._state)}>"


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

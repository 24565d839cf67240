"""Forward and backward passes of a graph, for a training loop of the caller's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import WeightSelection, resolve_weights
from ortpartial.checks import check_names
from ortpartial.exceptions import DataError, DeviceError, ModelError
from ortpartial.graph import FLOATS, to_dtype
from ortpartial.learning import FormerAttributes, NamedSettings, accept_former_names
from ortpartial.model import (
    AliasDict,
    Model,
    check_empty,
    check_indices,
    find_indices,
    index_ranges,
    load,
    match_names,
    specialize,
)
from ortpartial.rewrites import to_dtype as change_dtype
from ortpartial.runtime import DeviceName, FairLock, Session, TrainingAgent

from .engine_selection import select_for_backward
from .gradient_cut import GradientCut, GraphFunction
from .rewrite_check import RewriteCheck, differentiate_written
from .split_graphs import forward_graph

__all__ = ["OrtGradientForwardBackward"]


#: Attributes that follow from the others and hold sessions.
_SESSIONS = ("_turn", "_agent", "_backward", "_cotangents", "_forward", "_gradient_cut", "_kept", "_selecting",
             "engine_", "engine_reason_", "graphs")


@dataclass(frozen=True)
class _Empty:
    """The state of a forward pass whose outputs have no elements: all gradients are 0.

    No graph is run for them: it would sum over the rows, and 1.19.2 has no products of none.
    """

    inputs: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, outputs: Sequence[np.ndarray], inputs: Mapping[str, np.ndarray]) -> _Empty | None:
        """The state, None where an output has elements."""
        return None if any(y.size for y in outputs) else cls(inputs)


def _resolve_inputs(model: Model, inputs: str | Sequence[str] | None) -> list[str]:
    """The inputs to differentiate by."""
    floats = [n for n, v in model.inputs.items() if v.is_float]
    if inputs is None:
        return floats
    names = list(dict.fromkeys(check_names("inputs", inputs, ModelError)))
    if unknown := [n for n in names if n not in floats]:
        raise ModelError(f"The model has no input {unknown[0]!r} of real numbers to differentiate by; it has "
                         f"{', '.join(map(repr, floats)) or 'none'}.")
    return names


class OrtGradientForwardBackward(FormerAttributes, NamedSettings):
    """Forward and backward passes of an ONNX graph, for a training loop of the caller's own, in any thread.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a loaded Model
        The model; it is not written to.
    weights_to_train : str, sequence of str, or callable, optional
        Initializers to differentiate by: names, aliases and patterns, or a function of a name, a shape and a `Node`, as
        in `OrtGradientForwardBackwardOptimizer`; by default the initializers on a differentiable path to an output.
    inputs : str or sequence of str, optional
        Inputs to differentiate by, all of real numbers by default. Leave out inputs before rounding or an operator that
        has no gradient, and inputs whose gradients nobody reads.
    device : str or tuple of str and dict
        ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or an execution provider, as in `OrtGradientForwardBackwardOptimizer`.
    engine : str
        ``"agent"`` (onnxruntime-training's TrainingAgent), ``"step"`` (our own gradient, on any onnxruntime) or
        ``"auto"``, the agent where it is installed and right about every operator of the graph.
    check : bool
        Whether the first forward pass compares outputs and gradients with the model as it is written, run without
        optimization: RewriteError names the difference, and the rewrite that causes it.

    Attributes
    ----------
    engine_, engine_reason_ : str
        The engine in use, and the reason.

    Raises
    ------
    ModelError, NoGradientError, DeviceError, RuntimeMissingError
        The model, a name, an operator, the device or the runtime does not allow it.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]], hint="w")
    >>> layer = OrtGradientForwardBackward(build([x], {"y": x @ w}))
    >>> (y,), state = layer.forward(np.array([[1, 1]], np.float32))
    >>> weights, inputs = layer.backward([np.ones_like(y)], state)
    >>> y.tolist(), weights["w"].tolist(), inputs["x"].tolist()
    ([[3.0]], [[1.0], [1.0]], [[1.0, 2.0]])
    """

    #: Whether the next forward pass compares the graph as it is run with the model as it is written.
    _check = False

    @accept_former_names
    def __init__(
        self,
        model: Model | ModelProto | bytes | str | os.PathLike[str],
        weights_to_train: WeightSelection | None = None,
        *,
        inputs: str | Sequence[str] | None = None,
        device: DeviceName = "cpu",
        engine: str = "auto",
        check: bool = False,
    ):
        self._model, self._check = load(model), check
        self.outputs = [n for n, v in self._model.outputs.items() if v.type.tensor_type.elem_type in FLOATS]
        self.weights_to_train = resolve_weights(self._model, weights_to_train, self.outputs)
        self.inputs = _resolve_inputs(self._model, inputs)
        self.device = device
        self._weights = {w: self._model.arrays[w].copy() for w in self.weights_to_train}
        self._model = specialize(self._model, variables=self.weights_to_train)
        self._ranges = index_ranges(self._model.inputs, self._model.outputs.values())
        self._engine = engine
        self._open()

    def _open(self) -> None:
        """Open the sessions of the engine that is asked for."""
        self._indices = find_indices(self._model.inputs, self._model.outputs.values())
        self._turn = FairLock()
        forward = forward_graph(self._model, self.weights_to_train, self.outputs)
        self.engine_, self.engine_reason_ = select_for_backward(self._engine, forward, self.weights_to_train,
                                                               self.inputs)
        if self.engine_ == "agent":
            try:
                self._agent = TrainingAgent(forward, self.weights_to_train, input_grads=self.inputs, device=self.device)
            except (ModelError, DeviceError) as e:
                if self._engine == "agent":
                    raise
                self.engine_, self.engine_reason_ = "step", str(e)
        if self.engine_ == "step":
            self._cut()

    def _cut(self) -> None:
        """Open two sessions; forward keeps the tensors that backward reads."""
        function = self._function(self._model)
        cut = GradientCut(function, [*self.weights_to_train, *self.inputs], with_zeros=True)
        gradient, _ = cut.gradient
        self._gradient_cut = cut
        self._selecting: tuple[Session, list[str]] | None = None
        self._cotangents = list(gradient.leaves)[len(cut.leaves) :]
        self.graphs = {"forward": function.graph(cut.saved, fast=False), "backward": gradient.graph(fast=False)}
        self._forward = Session(self.graphs["forward"], device=self.device)
        self._backward = Session(self.graphs["backward"], device=self.device)
        self._kept = [n for n in self._backward.inputs if n not in self._cotangents]

    def __getstate__(self) -> dict[str, Any]:
        # Sessions are opened again. A copy has a dict of weights of its own, whose arrays are never written to.
        state = {n: v for n, v in vars(self).items() if n not in _SESSIONS}
        return {**state, "_weights": dict(self._weights)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(f"{n} {self._model.values[n].type_name}" for n in names)
                           for names in (self._model.inputs, self.outputs))
        size = sum(w.size for w in self._weights.values())
        return (f"<{type(self).__name__} {inputs} -> {outputs}; weights: {len(self._weights)} ({size:,} numbers), "
                f"engine: {self.engine_}>")

    def _feeds(self, inputs: Any) -> dict[str, np.ndarray]:
        """Copy the inputs into a dict by name, in the dtypes that the graph declares."""
        declared = self._model.inputs
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(declared):
                names = ", ".join(map(repr, declared))
                raise DataError(f"The model has {len(declared)} inputs, {names}; {len(inputs)} given.")
            inputs = dict(zip(declared, inputs, strict=True))
        match_names(declared, inputs)
        # They are copied, since the caller may write to the arrays before backward reads them.
        feeds = {n: np.array(self._convert(n, inputs[n]), order="C") for n in declared}
        check_indices(self._ranges, feeds)
        check_empty(self._model.outputs.values(), feeds)
        return feeds

    def _convert(self, name: str, values: Any) -> np.ndarray:
        """An input in the dtype that the graph declares, which has to hold its numbers."""
        dtype = self._model.inputs[name].dtype
        return to_dtype(values, dtype, f"Input {name!r}", counts=name in self._indices)

    def forward(self, inputs: Any, training: bool = True) -> tuple[list[np.ndarray], Any]:
        """Run the graph, and keep the inputs of `backward`.

        Parameters
        ----------
        inputs : numpy.ndarray, sequence of them, or dict of str to them
            An array for each input of the graph.
        training : bool
            Whether `backward` will follow. Several forwards may be pending.

        Returns
        -------
        outputs : list of numpy.ndarray
        state : object
            For a call of `backward`; None if `training` is false.

        Raises
        ------
        DataError
            An input is missing or unknown, or holds numbers that its dtype cannot hold: 300 or -1 for uint8, floats for
            indices.
        """
        feeds = self._feeds(inputs)
        if self._check:
            self._check = False
            self._compare(feeds)
        return self._forward_pass(feeds, training)

    def _forward_pass(self, feeds: Mapping[str, np.ndarray], training: bool) -> tuple[list[np.ndarray], Any]:
        """Run the graph on inputs that were checked."""
        state: Any
        if self.engine_ == "agent":
            with self._turn.lock:
                ortvalues, state = self._agent.forward(feeds, self._weights, training=training)
                # The arrays are copied out: memory of the runtime may be used again by its next run.
                outputs = [np.array(y.numpy()) for y in ortvalues]
            return outputs, _Empty.of(outputs, feeds) or state if training else None
        tensors = {**feeds, **self._weights}
        tensors.update(self._forward.run({n: tensors[n] for n in self._forward.inputs}))
        # Weights are not copied: `set_state` replaces arrays and never writes to them.
        # Outputs are, since they belong to the caller.
        state = {n: tensors[n].copy() if n in self.outputs else tensors[n] for n in self._kept} if training else None
        outputs = [tensors[o] for o in self.outputs]
        return outputs, _Empty.of(outputs, feeds) or state if training else None

    def backward(
        self, output_gradients: Sequence[np.ndarray], state: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Compute the gradients by weights and inputs.

        Parameters
        ----------
        output_gradients : sequence of numpy.ndarray
            The gradient of the loss by each output, of its shape.
        state : object
            The state that `forward` returned.

        Returns
        -------
        weights, inputs : dict of str to numpy.ndarray
            By name, in the order of `weights_to_train` and of the `inputs` that were asked for; an alias finds the
            gradients of weights, too.

        Raises
        ------
        DataError
            There is no state, or the number of gradients is not that of the outputs.
        """
        if state is None:
            raise DataError("There is no state to go back from; call forward with training=True.")
        if len(output_gradients) != len(self.outputs):
            raise DataError(f"There are {len(self.outputs)} outputs and {len(output_gradients)} gradients.")
        pairs = zip(self.outputs, output_gradients, strict=True)
        dys = [np.asarray(to_dtype(d, self._model.outputs[o].dtype, f"The gradient of {o!r}"), order="C")
               for o, d in pairs]
        if isinstance(state, _Empty):
            like = {**self._weights, **state.inputs}
            gradients = {n: np.zeros_like(like[n]) for n in [*self.weights_to_train, *self.inputs]}
        elif self.engine_ == "agent":
            with self._turn.lock:
                gradients = {n: np.array(g.numpy()) for n, g in self._agent.backward(dys, state).items()}
        else:
            arrays = self._run_backward(state, dys)
            gradients = dict(zip([*self.weights_to_train, *self.inputs], arrays, strict=True))
        return (AliasDict({w: gradients[w] for w in self.weights_to_train}, self._model.aliases),
                {i: gradients[i] for i in self.inputs if i in gradients})

    def _compare(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Compare outputs and gradients with the model as it is written, at random cotangents."""
        outputs, _ = self._forward_pass(feeds, False)
        rng, wanted = np.random.default_rng(0), [*self.weights_to_train, *self.inputs]
        cotangents = {o: rng.normal(size=y.shape).astype(y.dtype) for o, y in zip(self.outputs, outputs, strict=True)}
        numbers, tolerances = differentiate_written(
            self._function(self._model), lambda: self._function(change_dtype(self._model, np.float64)), wanted,
            {**feeds, **self._weights}, cotangents)

        def run(engine: str) -> dict[str, np.ndarray]:
            trial = copy(self)
            trial._engine = engine
            trial._open()
            outputs, state = trial._forward_pass(feeds, True)
            weights, inputs = trial.backward(list(cotangents.values()), state)
            return {**{f"the output {o!r}": y for o, y in zip(self.outputs, outputs, strict=True)},
                    **{f"the gradient by {n!r}": g for n, g in {**weights, **inputs}.items()}}

        RewriteCheck(f"A pass by engine {self.engine_!r}", lambda: run(self._engine), numbers, tolerances,
                     lambda: run("step"))()

    def _function(self, model: Model) -> GraphFunction:
        """The outputs of a model as a function of inputs and weights."""
        leaves = {**model.inputs, **{w: model.initializers[w] for w in self.weights_to_train}}
        return GraphFunction(leaves, {o: model.outputs[o] for o in self.outputs})

    def _run_backward(self, state: Mapping[str, np.ndarray], dys: Sequence[np.ndarray]) -> Iterable[np.ndarray]:
        """The gradients by our own graph, whose masks select where a cotangent is not finite, as in torch."""
        session, cotangents = self._backward, self._cotangents
        if not all(np.isfinite(d).all() for d in dys):
            if self._selecting is None and (cut := self._gradient_cut.backward(self.outputs, finite=False)) is not None:
                names = list(cut[0].leaves)[len(self._gradient_cut.leaves) :]
                self._selecting = Session(cut[0].graph(fast=False), device=self.device), names
            session, cotangents = self._selecting or (session, cotangents)
        feeds = {**state, **dict(zip(cotangents, dys, strict=True))}
        return session.run({n: feeds[n] for n in session.inputs}).values()

    def get_state(self) -> list[np.ndarray]:
        """Copies of the weights, in the order of `weights_to_train`.

        Returns
        -------
        list of numpy.ndarray
        """
        weights = self._weights  # Another thread may replace them.
        return [weights[w].copy() for w in self.weights_to_train]

    def set_state(self, state: Sequence[np.ndarray]) -> None:
        """Overwrite the weights.

        Parameters
        ----------
        state : sequence of numpy.ndarray
            In the order of `weights_to_train`.

        Raises
        ------
        DataError
            The number of arrays or a shape is wrong.
        """
        if len(state) != len(self.weights_to_train):
            raise DataError(f"There are {len(self.weights_to_train)} weights and {len(state)} arrays.")
        weights = {}
        for name, array in zip(self.weights_to_train, state, strict=True):
            former = self._weights[name]
            if np.shape(array) != former.shape:
                raise DataError(f"Weight {name!r} has shape {former.shape}, the array {np.shape(array)}.")
            weights[name] = np.array(to_dtype(array, former.dtype, f"Weight {name!r}"))
        self._weights = weights  # New ones, since a pending forward, or another thread's, may read the old arrays.

"""Forward and backward by the TrainingAgent of onnxruntime-training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, ValueInfoProto, helper

from ortpartial.exceptions import DataError, ModelError, RuntimeMissingError

from .agent_nodes import read_shape
from .agent_support import TRUSTED, find_active, find_untrusted, prepare_for_agent
from .buffer import Buffer
from .device import CPU, C, Device, has_training, runtime_version
from .errors import clean_message, run_error
from .session import Session
from .session_options import session_options

__all__ = ["TRUSTED", "AgentState", "TrainingAgent", "TypedOrtValue", "find_untrusted", "prepare_for_agent"]


class TrainingAgent:
    """Forward and backward of a graph through the `TrainingAgent` of onnxruntime-training.

    Any number of forwards may wait for their backward, in any order. Tensors go in as buffers or arrays, whose memory
    is borrowed until the backward, and come out as OrtValues.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph, of opset 12 to 21.
    weights : sequence of str
        Initializers or inputs that are fed at each forward, and whose gradients a backward returns.
    input_grads : sequence of str
        Inputs whose gradients a backward returns as well.
    device : str
        "cpu", "cuda" or "cuda:1".
    threads : int or None
        Threads that one operator may use; None for as many as the process has cores.

    Attributes
    ----------
    inputs, outputs : list of str
        Names of what a forward takes beside the weights, and of what it returns.
    gradient_onnx : bytes
        The graph of forward and backward in one, as onnxruntime-training builds it.

    Raises
    ------
    RuntimeMissingError
        The installed onnxruntime is not a training build.
    ModelError
        The graph has no gradient there, or a wrong one: the message names the node.
    """

    def __init__(
        self,
        model: ModelProto,
        weights: Sequence[str],
        *,
        input_grads: Sequence[str] = (),
        device: str | Device = CPU,
        threads: int | None = 1,
    ):
        if not has_training():
            raise RuntimeMissingError(
                f"The agent needs onnxruntime-training, found onnxruntime {runtime_version()}: uninstall it and run "
                f"`pip install ortpartial[training]` (Python 3.12 at most), or use engine='step' instead."
            )
        self._model, self._weights = prepare_for_agent(model), list(dict.fromkeys(weights))
        self._device, self._threads = Device.parse(device), threads
        wanted = list(dict.fromkeys([*weights, *input_grads]))
        reached = find_active(self._model, wanted)
        self.inputs = [i.name for i in self._model.graph.input if i.name not in self._weights]
        self.outputs = [o.name for o in self._model.graph.output]
        self.gradient_onnx, info = _gradient(self._model, self._weights, [n for n in wanted if n in reached])
        gradient = onnx.load_from_string(self.gradient_onnx).graph
        self._order = [i.name for i in gradient.input]
        self._specs = {i.name: _spec(i) for i in gradient.input}
        # The gradients come back in an order of the builder's own; what no output depends on has a gradient of zeros.
        found = [o.name for o in gradient.output]
        self._gradients = [(n, found.index(f"{n}_grad") if n in reached else -1) for n in wanted]
        self._differentiated = [i not in info.output_grad_indices_non_differentiable for i in range(len(self.outputs))]
        options = session_options(threads)
        # As ORTModule does: a plan of memory made for a whole run need not hold for two halves of it.
        options.enable_mem_pattern = options.enable_mem_reuse = False
        # TrainingAgent 1.19.2 holds a bare pointer to its session, which therefore has to live as long.
        self._session = Session(self.gradient_onnx, device=self._device, options=options)
        device_of = [self._device.ort]
        self._agent = C.TrainingAgent(
            self._session._sess, self._order, device_of * len(self.outputs), found, device_of * len(found),
            self._device.index,
        )
        # Shapes and types that were fed last, how often they changed, and for which change a backward was checked.
        self._seen: dict[str, Any] = {}
        self._changes = self._checked = 0
        # Outputs that are an input handed through by an Identity: onnxruntime hands out the memory that it borrowed.
        self._borrowed: list[int] = []
        self._inference: Any = None

    def forward(
        self, inputs: Mapping[str, Any], weights: Mapping[str, Any], *, training: bool = True
    ) -> tuple[list[Any], AgentState | None]:
        """The outputs of the graph, and what a backward needs.

        Parameters
        ----------
        inputs : mapping of str to Buffer, Fed, numpy.ndarray or OrtValue
            The inputs that are not weights. Memory of buffers and arrays must stay as it is until the backward.
        weights : mapping of str to Buffer, Fed, numpy.ndarray or OrtValue
            The weights.
        training : bool
            Whether a backward may follow. If not, nothing is kept.

        Returns
        -------
        outputs : list of OrtValue
            In the order of `outputs`; they own their memory.
        state : State or None
            For `backward`; None if not `training`.

        Raises
        ------
        DataError
            An input is missing, or not of the type and shape that the graph declares.
        """
        if not training:
            return self._infer(inputs, weights), None
        feeds, kept, changes = C.OrtValueVector(), [], self._changes
        seen, push = self._seen, feeds.push_back
        try:
            for name in self._order:
                value = weights[name] if name in weights else inputs[name]
                if not isinstance(value, (Buffer, TypedOrtValue)):
                    value = TypedOrtValue(value) if isinstance(value, C.OrtValue) else Buffer(value, self._device)
                # onnxruntime 1.19.2 does not look at types and shapes here, and reads what is not there.
                key = value.shape, value.dtype
                if seen.get(name) != key:
                    self._check(name, value)
                    seen[name], self._changes = key, self._changes + 1
                kept.append(value)
                push(value.ortvalue)
        except KeyError as e:
            raise DataError(f"The agent is given no {e}; it needs: {', '.join(map(repr, self._order))}.") from None
        state, found = C.PartialGraphExecutionState(), C.OrtValueVector()
        try:
            self._agent.run_forward(feeds, found, state, None)
        except Exception as e:
            raise run_error(e) from None
        outputs = [found[i] for i in range(len(self._differentiated))]
        if changes != self._changes:
            borrowed = {v.ortvalue.data_ptr() for v in kept}
            self._borrowed = [i for i, y in enumerate(outputs) if y.data_ptr() in borrowed]
        for i in self._borrowed:
            outputs[i] = self._own(TypedOrtValue(outputs[i]), outputs[i].numpy())
        return outputs, AgentState(state, outputs, kept, self._changes)

    def backward(self, output_gradients: Sequence[Any], state: AgentState) -> dict[str, Any]:
        """The gradients of the weights, and of the inputs that were asked for.

        Parameters
        ----------
        output_gradients : sequence of OrtValue, Buffer, numpy.ndarray or None
            A cotangent for each output, of its shape; None for zeros.
        state : State
            What the forward returned. It serves once.

        Returns
        -------
        dict of str to OrtValue
            A gradient for each weight and each of `input_grads`; they own their memory.

        Raises
        ------
        DataError
            The cotangents are not as many as the outputs, or of other shapes or types, or the state has served.
        """
        if state.used:
            raise DataError("This state has served one backward; run forward again for another.")
        outputs, kept = state.outputs, state._kept
        if len(output_gradients) != len(outputs):
            raise DataError(f"{len(output_gradients)} cotangents are given for {len(outputs)} outputs.")
        feeds, found = C.OrtValueVector(), C.OrtValueVector()
        for i, differentiated in enumerate(self._differentiated):
            if not differentiated:
                continue
            given, output = output_gradients[i], outputs[i]
            shape = output.shape()
            if given is None:
                given = self._own(TypedOrtValue(output))
            elif not isinstance(given, (Buffer, C.OrtValue)):
                given = Buffer(given, self._device)
            kept.append(given)
            dy = given.ortvalue if isinstance(given, Buffer) else given
            if dy.shape() != shape or dy.element_type() != output.element_type():
                raise DataError(f"The cotangent of {self.outputs[i]!r} is {_typed(dy)}, it itself is {_typed(output)}.")
            feeds.push_back(dy)
        state.used = True
        try:
            self._agent.run_backward(feeds, found, state._state)
        except Exception as e:
            raise run_error(e) from None
        gradients = {n: found[i] if i >= 0 else self._own(kept[self._order.index(n)]) for n, i in self._gradients}
        if state._change != self._checked:
            self._check_gradients(gradients, kept)
            self._checked = state._change
        state.release()
        return gradients

    def _infer(self, inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> list[Any]:
        """The outputs, in a session that keeps nothing for a backward."""
        if self._inference is None:
            session = Session(_fed(self._model, self._weights), device=self._device, threads=self._threads)
            self._inference = session.binding()
        bound = self._inference
        for name in self._order:
            value = weights.get(name, inputs.get(name))
            if isinstance(value, C.OrtValue):
                bound.bind_ortvalue_input(name, value)
            elif value is not None:
                bound.bind_input(name, value)
            else:
                raise DataError(f"The agent is given no {name!r}; it needs: {', '.join(map(repr, self._order))}.")
        bound.run()
        return list(bound.ortvalues().values())

    def _check(self, name: str, value: Buffer | TypedOrtValue) -> None:
        """Is a tensor what the graph declares?"""
        dtype, shape = self._specs[name]
        fits = shape is None or (
            len(shape) == len(value.shape)
            and all(d is None or d == e for d, e in zip(shape, value.shape, strict=True))
        )
        if not fits or value.dtype != dtype:
            wanted = "of any shape" if shape is None else str(["?" if d is None else d for d in shape])
            raise DataError(f"{name!r} is {value.dtype}{list(value.shape)}, the graph takes {dtype}{wanted}.")

    def _check_gradients(self, gradients: Mapping[str, Any], kept: Sequence[Any]) -> None:
        """The builder sums over what was broadcast as far as it knows shapes; a sum that it missed shows here."""
        for name, gradient in gradients.items():
            shape = list(kept[self._order.index(name)].shape)
            if gradient.shape() != shape:
                raise ModelError(
                    f"The agent's gradient of {name!r} is {_typed(gradient)}, the tensor is {shape}: a dimension "
                    f"without a declared size was broadcast. Declare it, or use engine='step' instead."
                )

    def _own(self, like: Buffer | TypedOrtValue, array: np.ndarray | None = None) -> Any:
        """A tensor of some shape and type in memory of its own, of zeros or of what an array holds."""
        made = C.OrtValue.ortvalue_from_shape_and_type(list(like.shape), like.dtype, self._device.ort)
        made.update_inplace(np.zeros(like.shape, like.dtype) if array is None else np.asarray(array))
        return made

    def __repr__(self) -> str:
        return f"<Agent {', '.join(self.inputs)} -> {', '.join(self.outputs)}, trains {', '.join(self._weights)}>"


class AgentState:
    """What a forward leaves for its backward: activations, the outputs, and the memory that was borrowed.

    Attributes
    ----------
    outputs : list of OrtValue
        What the forward returned.
    used : bool
        Whether a backward has been run.
    """

    __slots__ = ("_change", "_kept", "_state", "outputs", "used")

    def __init__(self, state: Any, outputs: list[Any], kept: list[Any], change: int):
        self._state, self.outputs, self._kept, self._change = state, outputs, kept, change
        self.used = False

    def release(self) -> None:
        """Give the memory back."""
        self._state, self._kept = None, []


class TypedOrtValue:
    """An OrtValue with its shape and dtype, which who knows them need not ask onnxruntime for.

    Parameters
    ----------
    ortvalue : OrtValue
        A dense tensor.
    shape : tuple of int, optional
        Its sizes.
    dtype : numpy.dtype, optional
        The type of its elements.
    """

    __slots__ = ("dtype", "ortvalue", "shape")

    def __init__(self, ortvalue: Any, shape: tuple[int, ...] | None = None, dtype: np.dtype | None = None):
        self.ortvalue, self.shape = ortvalue, tuple(ortvalue.shape()) if shape is None else shape
        self.dtype = dtype or np.dtype(helper.tensor_dtype_to_np_dtype(ortvalue.element_type()))


def _typed(ortvalue: Any) -> str:
    """Type and shape of a tensor, for people."""
    return f"{ortvalue.data_type().removeprefix('tensor(').removesuffix(')')}{ortvalue.shape()}"


def _spec(info: ValueInfoProto) -> tuple[np.dtype, tuple[int | None, ...] | None]:
    """The dtype and the static sizes that an input declares."""
    tensor = info.type.tensor_type
    sizes = read_shape(tensor)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return dtype, None if sizes is None else tuple(d if isinstance(d, int) else None for d in sizes)


def _gradient(model: ModelProto, weights: Sequence[str], wanted: Sequence[str]) -> tuple[bytes, Any]:
    """The graph of forward and backward, and what the builder knows about it."""
    if not wanted:
        raise ModelError("No output of the graph depends on a weight in a way that has a gradient.")
    stored = {t.name for t in model.graph.initializer}
    config = C.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = [n for n in weights if n in stored]
    config.initializer_names_to_train = [n for n in wanted if n in stored]
    config.input_names_require_grad = [n for n in wanted if n not in stored]
    config.build_gradient_graph, config.loglevel = True, C.Severity.ERROR
    builder = C.OrtModuleGraphBuilder()
    try:
        builder.initialize(model.SerializeToString(), config)
        # The configuration of 1.19.2 has no graph_transformer_config any more; it goes to `build`.
        builder.build(C.TrainingGraphTransformerConfiguration())
    except Exception as e:  # of many classes, IndexError among them
        text = clean_message(e)
        if missing := re.search(r"has not been registered: (\w+)", text):
            text = f"it has no gradient for the operator {missing[1]}."
        raise ModelError(
            f"onnxruntime-training {runtime_version()} does not differentiate the graph: {text} Use engine='step' "
            f"instead."
        ) from None
    return builder.get_gradient_model(), builder.get_graph_info()


def _fed(model: ModelProto, weights: Sequence[str]) -> ModelProto:
    """The same graph with weights as inputs."""
    model = ModelProto.FromString(model.SerializeToString())
    for tensor in [t for t in model.graph.initializer if t.name in weights]:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    return model

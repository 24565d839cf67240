"""The TrainingAgent of onnxruntime-training: forward and backward of a graph as two runs of a session."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from ortpartial.exceptions import DataError, DeviceError, ModelError, RuntimeMissingError
from ortpartial.installation import install_command

from .agent_nodes import AgentGraph, read_shape
from .agent_support import TRUSTED, find_active, find_reread, find_untrusted, prepare_for_agent
from .buffer import Buffer
from .device import CPU, C, Device, DeviceName, has_training, runtime_version
from .errors import clean_message, find_refusals, run_error
from .fork import Inherited, keep_at_fork
from .ort_types import OrtValue
from .session import Binding, Session
from .session_options import session_options

__all__ = ["TRUSTED", "AgentState", "TrainingAgent", "TypedOrtValue", "find_untrusted", "prepare_for_agent"]


#: The slope by which a HardSigmoid is 1 at every positive number but the denormal.
_STEEP = 2.0**127


class TrainingAgent:
    """Forward and backward of a graph through the `TrainingAgent` of onnxruntime-training.

    Any number of forwards may wait for their backward, in any order. The memory of inputs, buffers or arrays, is
    borrowed until the backward; outputs are OrtValues that own theirs.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph, of opset 12 to 21.
    weights : sequence of str
        Initializers or inputs that each forward takes and whose gradients each backward returns.
    input_grads : sequence of str
        Other inputs whose gradients each backward returns.
    device : str
        "cpu", "cuda" or "cuda:1".
    threads : int or None
        Threads of an operator; None for as many as the process has cores.
    selects : bool
        Whether masks of Relu select, which takes longer, even where cotangents are finite. Else a backward of others
        runs the graph again, forward and backward, with masks that select.

    Attributes
    ----------
    inputs, outputs : list of str
        Names of the inputs that a forward takes beside the weights, and of the outputs that it returns.
    reread : list of int
        The places of the outputs that must not change until the backward, which may read them.
    gradient_onnx : bytes
        The graph of forward and backward together, as onnxruntime-training builds it.

    Raises
    ------
    RuntimeMissingError
        The installed onnxruntime is not a training build.
    ModelError
        onnxruntime-training has no gradient for a node, or a wrong gradient; the message names the node.
    """

    def __init__(self, model: ModelProto, weights: Sequence[str], *, input_grads: Sequence[str] = (),
                 device: DeviceName | Device = CPU, threads: int | None = 1, selects: bool = False):
        if not has_training():
            raise RuntimeMissingError(
                f"The agent needs onnxruntime-training, found onnxruntime {runtime_version()}: uninstall it and run "
                f"{install_command('training')} (Python 3.12 at most), or use engine='step' instead."
            )
        self._model, self._weights = prepare_for_agent(model), list(dict.fromkeys(weights))
        self._device, self._threads = Device.parse(device), threads
        if self._device.is_provider:
            raise DeviceError(f"The agent trains on the CPU or on CUDA, not on '{self._device}'; use engine='step'.")
        wrt = list(dict.fromkeys([*weights, *input_grads]))
        active = find_active(self._model, wrt)
        self.inputs = [i.name for i in self._model.graph.input if i.name not in self._weights]
        self.outputs = [o.name for o in self._model.graph.output]
        built, info = _build_gradient(self._model, self._weights, [n for n in wrt if n in active])
        self.gradient_onnx = built if selects else _multiply_masks(
            built, AgentGraph(self._model, wrt).poles)
        #: Makes the same agent with masks that select, where those of this agent are multiplied in.
        self._make_careful = None if self.gradient_onnx is built else partial(
            TrainingAgent, model, weights, input_grads=input_grads, device=device, threads=threads, selects=True)
        gradient = onnx.load_from_string(self.gradient_onnx).graph
        self._order, self.reread = [i.name for i in gradient.input], find_reread(gradient)
        self._specs = {i.name: _spec(i) for i in gradient.input}
        # The builder orders the gradients. A weight that no output depends on has no gradient: -1 stands for zeros.
        gradients = [o.name for o in gradient.output]
        self._gradients = [(n, gradients.index(f"{n}_grad") if n in active else -1) for n in wrt]
        self._differentiated = [i not in info.output_grad_indices_non_differentiable for i in range(len(self.outputs))]
        options = session_options(threads)
        # As in ORTModule: memory planned for a whole run may not fit two partial runs.
        options.enable_mem_pattern = options.enable_mem_reuse = False
        # TrainingAgent 1.19.2 holds a bare pointer to its session, which has to live as long.
        self._session = Session(self.gradient_onnx, device=self._device, options=options)
        self._refusals = find_refusals(self._model)
        devices = [self._device.ort]
        self._agent = C.TrainingAgent(
            self._session.handle, self._order, devices * len(self.outputs), gradients, devices * len(gradients),
            self._device.index,
        )
        # The last shape and dtype of each input, how often one changed, and after which change gradients were checked.
        self._signature: dict[str, Any] = {}
        self._changes = self._checked = 0
        # Outputs in the memory of an input, which onnxruntime has borrowed, or of an output before them.
        self._borrowed: list[int] = []
        self._inference: Binding | None = None
        keep_at_fork(self)

    def replace_inherited(self) -> list[object]:
        """Replace the agent of onnxruntime-training, which a child process must not use, and return it."""
        agent, self._agent = self._agent, Inherited()
        return [agent]

    def forward(self, inputs: Mapping[str, Any], weights: Mapping[str, Any], *,
                training: bool = True) -> tuple[list[Any], AgentState | None]:
        """Run the graph forward.

        Parameters
        ----------
        inputs : mapping of str to Buffer, TypedOrtValue, numpy.ndarray or OrtValue
            The inputs that are not weights. Buffers and arrays must not change until the backward.
        weights : mapping of str to Buffer, TypedOrtValue, numpy.ndarray or OrtValue
            The weights.
        training : bool
            Whether a backward may follow; otherwise no activation is kept.

        Returns
        -------
        outputs : list of OrtValue
            In the order of the attribute `outputs`; they own their memory.
        state : AgentState or None
            For `backward`; None if not `training`.

        Raises
        ------
        DataError
            An input is missing, or not of the type and shape that the graph declares.
        """
        if not training:
            return self._infer(inputs, weights), None
        feeds, tensors, changes = C.OrtValueVector(), [], self._changes
        signature, push = self._signature, feeds.push_back
        try:
            for name in self._order:
                value = weights[name] if name in weights else inputs[name]
                if not isinstance(value, (Buffer, TypedOrtValue)):
                    value = TypedOrtValue(value) if isinstance(value, C.OrtValue) else Buffer(value, self._device)
                # onnxruntime 1.19.2 checks neither types nor shapes here, and reads beyond the end of the memory.
                key = value.shape, value.dtype
                if signature.get(name) != key:
                    self._check_input(name, value)
                    signature[name], self._changes = key, self._changes + 1
                tensors.append(value)
                push(value.ortvalue)
        except KeyError as e:
            raise DataError(f"The input {e} is missing; the graph has: {', '.join(map(repr, self._order))}.") from None
        state, results = C.PartialGraphExecutionState(), C.OrtValueVector()
        try:
            self._agent.run_forward(feeds, results, state, None)
        except Exception as e:
            raise run_error(e, self._refusals) from None
        outputs = [results[i] for i in range(len(self._differentiated))]
        if changes != self._changes:
            self._borrowed = _find_shared([v.ortvalue for v in tensors], outputs)
        for i in self._borrowed:
            outputs[i] = self._new_tensor(TypedOrtValue(outputs[i]), outputs[i].numpy())
        return outputs, AgentState(state, outputs, tensors, self._changes)

    def backward(self, output_gradients: Sequence[Any], state: AgentState) -> dict[str, Any]:
        """Run the graph backward: the gradients of the weights and of `input_grads`.

        Parameters
        ----------
        output_gradients : sequence of OrtValue, Buffer, numpy.ndarray or None
            A cotangent for each output, of its shape; None for zeros.
        state : AgentState
            The state that the forward returned; each serves one backward.

        Returns
        -------
        dict of str to OrtValue
            A gradient for each weight and each of `input_grads`; they own their memory.

        Raises
        ------
        DataError
            The cotangents differ from the outputs in number, shape or type, or the state was used before.
        """
        if state.used:
            raise DataError("This state was used for a backward already; run forward again.")
        outputs, tensors = state.outputs, state._tensors
        if len(output_gradients) != len(outputs):
            raise DataError(f"Got {len(output_gradients)} cotangents for {len(outputs)} outputs.")
        feeds, results, finite = C.OrtValueVector(), C.OrtValueVector(), True
        for i, differentiated in enumerate(self._differentiated):
            if not differentiated:
                continue
            cotangent, output = output_gradients[i], outputs[i]
            if cotangent is None:
                cotangent = self._new_tensor(TypedOrtValue(output))
            elif not isinstance(cotangent, (Buffer, C.OrtValue)):
                cotangent = Buffer(cotangent, self._device)
            tensors.append(cotangent)
            dy = cotangent.ortvalue if isinstance(cotangent, Buffer) else cotangent
            if dy.shape() != output.shape() or dy.element_type() != output.element_type():
                raise DataError(f"The cotangent of {self.outputs[i]!r} is {_format_type(dy)}, the output is "
                                f"{_format_type(output)}.")
            feeds.push_back(dy)
            finite = finite and (self._make_careful is None or bool(np.isfinite(np.from_dlpack(dy)).all()))
        state.used = True
        if not finite:
            inputs = dict(zip(self._order, tensors, strict=False))  # Cotangents follow.
            return self._careful.backward(output_gradients, self._careful.forward(inputs, {})[1])  # type: ignore[arg-type]
        try:
            self._agent.run_backward(feeds, results, state._state)
        except Exception as e:
            raise run_error(e, self._refusals) from None
        gradients = {n: results[i] if i >= 0 else self._new_tensor(tensors[self._order.index(n)])
                     for n, i in self._gradients}
        if state._change != self._checked:
            self._check_gradients(gradients, tensors)
            self._checked = state._change
        state.release()
        return gradients

    @cached_property
    def _careful(self) -> TrainingAgent:
        """The same with masks that select, for cotangents that are not finite."""
        assert self._make_careful is not None
        return self._make_careful()

    def _infer(self, inputs: Mapping[str, object], weights: Mapping[str, object]) -> list[Any]:
        """Run the graph in a session of its own that keeps no activation for a backward."""
        if self._inference is None:
            model = _to_inputs(self._model, self._weights)
            self._inference = Session(model, device=self._device, threads=self._threads).binding()
        binding = self._inference
        for name in self._order:
            value = weights.get(name, inputs.get(name))
            if isinstance(value, C.OrtValue):
                binding.bind_ortvalue_input(name, value)
            elif value is not None:
                binding.bind_input(name, value)
            else:
                raise DataError(f"The input {name!r} is missing; the graph has: {', '.join(map(repr, self._order))}.")
        binding.run()
        return list(binding.ortvalues().values())

    def _check_input(self, name: str, value: Buffer | TypedOrtValue) -> None:
        """Refuse a tensor that is not of the type and shape that the graph declares."""
        dtype, shape = self._specs[name]
        fits = shape is None or (len(shape) == len(value.shape)
                                 and all(d in (None, e) for d, e in zip(shape, value.shape, strict=True)))
        if not fits or value.dtype != dtype:
            declared = " of any shape" if shape is None else str(["?" if d is None else d for d in shape])
            raise DataError(f"{name!r} is {value.dtype}{list(value.shape)}, the graph takes {dtype}{declared}.")

    def _check_gradients(self, gradients: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        """Refuse gradients of a wrong shape: the builder sums over broadcast axes only as far as it knows shapes."""
        for name, gradient in gradients.items():
            shape = list(tensors[self._order.index(name)].shape)
            if gradient.shape() != shape:
                raise ModelError(
                    f"The agent's gradient of {name!r} is {_format_type(gradient)}, the tensor is {shape}: a dimension "
                    f"without a declared size was broadcast. Declare it, or use engine='step' instead."
                )

    def _new_tensor(self, like: Buffer | TypedOrtValue, array: np.ndarray | None = None) -> Any:
        """A new tensor of the same shape and type that owns its memory: a copy of an array, or zeros."""
        ortvalue = C.OrtValue.ortvalue_from_shape_and_type(list(like.shape), like.dtype, self._device.ort)
        ortvalue.update_inplace(np.zeros(like.shape, like.dtype) if array is None else np.asarray(array))
        return ortvalue

    def __repr__(self) -> str:
        inputs, outputs, weights = map(", ".join, (self.inputs, self.outputs, self._weights))
        return f"<TrainingAgent {inputs} -> {outputs}, trains {weights}>"


class AgentState:
    """The state between a forward and its backward: activations, outputs, and the inputs whose memory is borrowed.

    Attributes
    ----------
    outputs : list of OrtValue
        The outputs of the forward.
    used : bool
        Whether a backward has used the state.
    """

    __slots__ = ("_change", "_state", "_tensors", "outputs", "used")

    def __init__(self, state: object, outputs: list[OrtValue], tensors: list[Buffer | TypedOrtValue], change: int):
        self._state, self.outputs, self._tensors, self._change = state, outputs, tensors, change
        self.used = False

    def release(self) -> None:
        """Free the activations and the borrowed memory."""
        self._state, self._tensors = None, []


class TypedOrtValue:
    """An OrtValue with its shape and dtype, which are slow to read from onnxruntime.

    Parameters
    ----------
    ortvalue : OrtValue
        A dense tensor.
    shape : tuple of int, optional
        Its shape; read from the tensor by default.
    dtype : numpy.dtype, optional
        The type of its elements; read from the tensor by default.
    """

    __slots__ = ("dtype", "ortvalue", "shape")

    def __init__(self, ortvalue: OrtValue, shape: tuple[int, ...] | None = None, dtype: np.dtype | None = None):
        self.ortvalue, self.shape = ortvalue, tuple(ortvalue.shape()) if shape is None else shape
        self.dtype = dtype or np.dtype(helper.tensor_dtype_to_np_dtype(ortvalue.element_type()))


def _find_shared(inputs: Sequence[OrtValue], outputs: Sequence[OrtValue]) -> list[int]:
    """The outputs in the memory of an input or of an output before them."""
    taken, shared = {v.data_ptr() for v in inputs}, []
    for i, place in enumerate(y.data_ptr() for y in outputs):
        if place in taken:
            shared.append(i)
        taken.add(place)
    return shared


def _format_type(ortvalue: OrtValue) -> str:
    """The type and shape of a tensor, such as float[2, 3]."""
    return f"{ortvalue.data_type().removeprefix('tensor(').removesuffix(')')}{ortvalue.shape()}"


def _spec(info: ValueInfoProto) -> tuple[np.dtype, tuple[int | None, ...] | None]:
    """The dtype and the shape that an input declares, with None for a dynamic size."""
    tensor = info.type.tensor_type
    sizes = read_shape(tensor)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return dtype, None if sizes is None else tuple(d if isinstance(d, int) else None for d in sizes)


def _build_gradient(model: ModelProto, weights: Sequence[str], wrt: Sequence[str]) -> tuple[bytes, Any]:
    """The graph of forward and backward, and the description of it by the gradient builder of onnxruntime-training."""
    if not wrt:
        raise ModelError("No output of the graph depends on a weight in a way that has a gradient.")
    initializers = {t.name for t in model.graph.initializer}
    config = C.OrtModuleGraphBuilderConfiguration()
    config.initializer_names = [n for n in weights if n in initializers]
    config.initializer_names_to_train = [n for n in wrt if n in initializers]
    config.input_names_require_grad = [n for n in wrt if n not in initializers]
    config.build_gradient_graph, config.loglevel = True, C.Severity.ERROR
    builder = C.OrtModuleGraphBuilder()
    try:
        builder.initialize(model.SerializeToString(), config)
        # In 1.19.2 the transformers are configured by an argument of `build` and no longer by a field of the config.
        builder.build(C.TrainingGraphTransformerConfiguration())
    except Exception as e:  # The builder raises errors of many classes, IndexError among them.
        text = clean_message(e)
        if missing := re.search(r"has not been registered: (\w+)", text):
            text = f"it has no gradient for the operator {missing[1]}."
        raise ModelError(
            f"onnxruntime-training {runtime_version()} does not differentiate the graph: {text} Use engine='step' "
            f"instead."
        ) from None
    return builder.get_gradient_model(), builder.get_graph_info()


def _multiply_masks(gradient: bytes, poles: Collection[str]) -> bytes:
    """Multiply masks of Relu in, but at poles, where a gradient may be infinite within the graph.

    The kernel of ReluGrad in 1.19.2 takes 4.8 ns an element, and a product 0.4.
    """
    model = onnx.load_from_string(gradient)
    floats = {t.data_type for t in model.graph.initializer} | {
        v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output, *model.graph.value_info]}
    nodes = list(model.graph.node)
    if floats & {TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16} or not any(
            n.op_type == "ReluGrad" and n.input[1] not in poles for n in nodes):
        return gradient
    del model.graph.node[:]
    for node in nodes:
        if node.op_type == "ReluGrad" and node.input[1] not in poles:
            dy, y, dx = node.input[0], node.input[1], node.output[0]
            model.graph.node.add().CopyFrom(helper.make_node("HardSigmoid", [y], [f"{dx}//mask"], f"{dx}//mask",
                                                             alpha=_STEEP, beta=0.0))
            model.graph.node.add().CopyFrom(helper.make_node("Mul", [dy, f"{dx}//mask"], [dx], node.name))
        else:
            model.graph.node.add().CopyFrom(node)
    return model.SerializeToString()


def _to_inputs(model: ModelProto, weights: Sequence[str]) -> ModelProto:
    """The same graph with weights as inputs instead of initializers."""
    model = ModelProto.FromString(model.SerializeToString())
    for tensor in [t for t in model.graph.initializer if t.name in weights]:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        model.graph.initializer.remove(tensor)
    return model

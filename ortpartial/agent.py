"""How does onnxruntime-training differentiate a graph? `Agent`: forward, then backward, in its `TrainingAgent`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner, numpy_helper

from .exceptions import DataError, ModelError, RuntimeMissingError
from .runtime import CPU, Buffer, C, Device, Session, _options, _run_error, _sentence, has_training, runtime_version

__all__ = ["TRUSTED", "Agent", "prepare", "untrusted"]

#: Operators whose gradient tests/test_agent.py holds against torch's; `untrusted` says where even they are not sure.
TRUSTED = frozenset("""
    Abs Add AveragePool Cast Clip Concat Conv Cos Div Dropout Erf Exp Expand Flatten Gather GatherElements GatherND Gelu
    Gemm GlobalAveragePool Identity LayerNormalization LeakyRelu Log LogSoftmax MatMul Max MaxPool Min Mul Neg Pad Pow
    Reciprocal ReduceL2 ReduceLogSumExp ReduceMean ReduceSum Relu Reshape ScatterElements ScatterND Sigmoid Sin Slice
    Softmax Split Sqrt Squeeze Sub Tanh Tile TopK Transpose Trilu Unsqueeze Where
""".split())  # fmt: skip

#: Opsets that onnxruntime-training 1.19.2 differentiates, and the oldest that the tests cover.
_OPSETS, _TESTED_OPSET, _IR = range(12, 22), 13, 10

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Agent:
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
        Threads that one operator may use; None for as many as there are cores.

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
                f"The agent needs onnxruntime-training, found onnxruntime {runtime_version()}: uninstall it and run `pip "
                f"install ortpartial[training]` (Python 3.12 at most), or use engine='step'."
            )  # fmt: skip
        self._model, self._weights = prepare(model), list(weights)
        self._device, self._threads = Device.parse(device), threads
        graph = _Graph(self._model, [*weights, *input_grads])
        for name in dict.fromkeys([*weights, *input_grads]):
            graph.check_wanted(name)
        for site in graph.sites():
            if reason := _refused(site):
                raise ModelError(f"The agent cannot differentiate {site}: {reason}. Use engine='step' instead.")
        self.inputs = [i.name for i in self._model.graph.input if i.name not in self._weights]
        self.outputs = [o.name for o in self._model.graph.output]
        stored = {t.name for t in self._model.graph.initializer}
        trained = [n for n in self._weights if n in stored]
        fed = [n for n in self._weights if n not in stored]
        self.gradient_onnx, info = _gradient(self._model, trained, [*fed, *input_grads])
        gradient = onnx.load_from_string(self.gradient_onnx).graph
        self._order = [i.name for i in gradient.input]
        self._specs = {i.name: _spec(i) for i in gradient.input}
        # The gradients come back in an order of the builder's own.
        found = [o.name for o in gradient.output]
        self._gradients = [(n, found.index(f"{n}_grad")) for n in dict.fromkeys([*weights, *input_grads])]
        self._differentiated = [i not in info.output_grad_indices_non_differentiable for i in range(len(self.outputs))]
        options = _options(threads)
        # As ORTModule does: a plan of memory made for a whole run need not hold for two halves of it.
        options.enable_mem_pattern = options.enable_mem_reuse = False
        # TrainingAgent 1.19.2 holds a bare pointer to its session, which therefore has to live as long.
        self._session = Session(self.gradient_onnx, device=self._device, options=options)
        device_of = [self._device.ort]
        self._agent = C.TrainingAgent(
            self._session._sess, self._order, device_of * len(self.outputs), found, device_of * len(found),
            self._device.index,
        )  # fmt: skip
        self._seen: dict[str, Any] = {}
        self._inference: Any = None

    def forward(
        self, inputs: Mapping[str, Any], weights: Mapping[str, Any], *, training: bool = True
    ) -> tuple[list[Any], State | None]:
        """The outputs of the graph, and what a backward needs.

        Parameters
        ----------
        inputs : mapping of str to Buffer, numpy.ndarray or OrtValue
            The inputs that are not weights. Memory of buffers and arrays must stay as it is until the backward.
        weights : mapping of str to Buffer, numpy.ndarray or OrtValue
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
        feeds, kept, fresh = C.OrtValueVector(), [], False
        seen, push = self._seen, feeds.push_back
        try:
            for name in self._order:
                value = weights[name] if name in weights else inputs[name]
                if not isinstance(value, Buffer):
                    value = _Fed(value) if isinstance(value, C.OrtValue) else Buffer(value, self._device)
                # onnxruntime 1.19.2 does not look at types and shapes here, and reads what is not there.
                key = value.shape, value.dtype
                if seen.get(name) != key:
                    self._check(name, value)
                    seen[name], fresh = key, True
                kept.append(value)
                push(value.ortvalue)
        except KeyError as e:
            raise DataError(f"The agent is given no {e}; it needs: {', '.join(map(repr, self._order))}.") from None
        state, found = C.PartialGraphExecutionState(), C.OrtValueVector()
        try:
            self._agent.run_forward(feeds, found, state, None)
        except Exception as e:
            raise _run_error(e) from None
        outputs = [found[i] for i in range(len(self._differentiated))]
        return outputs, State(state, outputs, kept, fresh)

    def backward(self, output_gradients: Sequence[Any], state: State) -> dict[str, Any]:
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
                given = Buffer(np.zeros(shape, output.numpy().dtype), self._device)
            elif isinstance(given, np.ndarray):
                given = Buffer(given, self._device)
            kept.append(given)
            dy = given.ortvalue if isinstance(given, Buffer) else given
            if dy.shape() != shape or dy.element_type() != output.element_type():
                raise DataError(f"The cotangent of {self.outputs[i]!r} is {_typed(dy)}, the output is {_typed(output)}.")
            feeds.push_back(dy)
        state.used = True
        try:
            self._agent.run_backward(feeds, found, state._state)
        except Exception as e:
            raise _run_error(e) from None
        gradients = {name: found[i] for name, i in self._gradients}
        if state._fresh:
            self._check_gradients(gradients, dict(zip(self._order, kept, strict=False)))
        state._state = state._kept = None
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

    def _check(self, name: str, value: Buffer | _Fed) -> None:
        """Is a tensor what the graph declares?"""
        dtype, shape = self._specs[name]
        fits = shape is None or (
            len(shape) == len(value.shape)
            and all(d is None or d == e for d, e in zip(shape, value.shape, strict=True))
        )  # fmt: skip
        if not fits or value.dtype != dtype:
            wanted = "of any shape" if shape is None else str(["?" if d is None else d for d in shape])
            raise DataError(f"{name!r} is {value.dtype}{list(value.shape)}, the graph takes {dtype}{wanted}.")

    def _check_gradients(self, gradients: Mapping[str, Any], fed: Mapping[str, Any]) -> None:
        """The builder sums over what was broadcast as far as it knows shapes; a sum that it missed shows here."""
        for name, g in gradients.items():
            if tuple(g.shape()) != tuple(fed[name].shape):
                raise ModelError(
                    f"The agent's gradient of {name!r} is {_typed(g)}, the tensor is {list(fed[name].shape)}: a dimension "
                    f"declared by a name was broadcast. Declare its size, or use engine='step'."
                )  # fmt: skip
        for name in fed:
            if name not in gradients:
                self._seen.pop(name, None) if gradients is None else None

    def __repr__(self) -> str:
        return f"<Agent {', '.join(self.inputs)} -> {', '.join(self.outputs)}, trains {', '.join(self._weights)}>"

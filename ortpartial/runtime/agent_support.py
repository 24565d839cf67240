"""Operator support of the TrainingAgent: which graphs it differentiates rightly, and how to prepare them for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from ortpartial.exceptions import ModelError

from .agent_nodes import FLOATS, AgentGraph, AgentNode

__all__ = ["TRUSTED", "find_needed", "find_untrusted", "prepare_for_agent"]

#: Operators whose gradient tests/runtime/test_training_agent.py holds against torch's; see `find_untrusted` for limits.
TRUSTED = frozenset({
    "Abs", "Add", "AveragePool", "Cast", "Clip", "Concat", "Conv", "Cos", "Div", "Erf", "Exp", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "Identity", "LayerNormalization",
    "LeakyRelu", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Pad", "Pow", "Reciprocal",
    "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "Relu", "Reshape", "ScatterElements", "ScatterND",
    "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "TopK", "Transpose",
    "Trilu", "Unsqueeze", "Where",
})

#: Opsets that onnxruntime-training 1.19.2 differentiates, and the oldest that the tests cover.
_OPSETS, _TESTED_OPSET, _IR = range(12, 22), 18, 10

def prepare_for_agent(model: ModelProto) -> ModelProto:
    """The same function, written so that onnxruntime-training 1.19.2 can differentiate it.

    Functions are inlined, Transpose is given its perm, LayerNormalization and SoftmaxCrossEntropyLoss all their
    outputs, an input requested twice an Identity, and Dropout and Cast that do nothing become one: the builder fails
    or is wrong otherwise.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph, of opset 12 to 21.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The opset or the IR version is not one that the agent takes.
    """
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset not in _OPSETS or model.ir_version > _IR:
        raise ModelError(
            f"The agent takes opsets {_OPSETS[0]} to {_OPSETS[-1]} and IR versions up to {_IR}, which is what "
            f"onnxruntime-training 1.19.2 knows; the model has opset {opset} and IR version {model.ir_version}. Use "
            f"engine='step', or convert it with onnx.version_converter."
        )
    copy = ModelProto.FromString(model.SerializeToString())
    model = inliner.inline_local_functions(copy) if model.functions else copy
    model.ir_version = max(model.ir_version, 4)  # before it, every initializer had to be an input as well
    graph, stored = model.graph, {t.name for t in model.graph.initializer}
    inputs = [i for i in graph.input if i.name not in stored]
    del graph.input[:]
    graph.input.extend(inputs)
    types = AgentGraph(model, ())
    taken = {n for node in graph.node for n in [*node.input, *node.output]} | stored | {i.name for i in inputs}
    if given := [o.name for o in graph.output if o.name in stored or o.name in {i.name for i in inputs}]:
        # The builder of 1.19.2 ends the process.
        raise ModelError(f"The output {given[0]!r} is an input or a weight itself; put an Identity between them.")
    if grads := [n for n in taken if n.endswith("_grad") and n.removesuffix("_grad") in taken]:
        raise ModelError(f"The agent would name a gradient {grads[0]!r}, which is a tensor of the model; rename that.")

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    nodes: list[NodeProto] = []
    for node in graph.node:
        site = AgentNode(node, types)
        for i, name in enumerate(node.input):
            if name and name in list(node.input)[:i]:
                node.input[i] = free(f"{name}_again")
                nodes.append(helper.make_node("Identity", [name], [node.input[i]]))
        if node.op_type == "Transpose" and not node.attribute and (shape := site.shape(0)) is not None:
            node.attribute.append(helper.make_attribute("perm", list(range(len(shape)))[::-1]))
        elif node.op_type == "LayerNormalization":
            node.output.extend(free(f"{node.output[0]}_{part}") for part in ("mean", "inv")[len(node.output) - 1 :])
            shape = site.shape(1)
            sizes = [d for d in shape or () if isinstance(d, int)]
            if len(node.input) == 2 and shape is not None and len(sizes) == len(shape):
                zeros = np.zeros(sizes, helper.tensor_dtype_to_np_dtype(types.types[node.input[1]].elem_type))
                node.input.append(free(f"{node.output[0]}_bias"))
                graph.initializer.append(numpy_helper.from_array(zeros, node.input[2]))
        elif node.op_type == "SoftmaxCrossEntropyLoss" and len(node.output) == 1:
            node.output.append(free(f"{node.output[0]}_log_prob"))
        elif site.idle:
            node = helper.make_node("Identity", node.input[:1], node.output[:1], name=node.name)
        nodes.append(node)
    kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return model


def _same(s: AgentNode) -> bool:
    return s.attribute("auto_pad", "NOTSET").startswith("SAME")


def _pooled(s: AgentNode) -> str | None:
    shape = s.shape(0)
    if s.op_type == "MaxPool":
        if s.attribute("storage_order", 0):
            return "storage_order=1 gives a wrong gradient"
        if shape is None or not all(isinstance(d, int) for d in shape[1:]):
            return f"its input is {_sizes(shape)}, and a size beside the batch that is not declared ends the process"
        return None
    if any(d != 1 for d in s.attribute("dilations", ())) or _same(s):
        return "dilations and auto_pad SAME give a wrong gradient"
    if shape is None or len(shape) == 5:
        return "its gradient is wrong in three dimensions of space"
    if not all(isinstance(d, int) for d in shape):
        return f"its input is {_sizes(shape)}, and a size that is not declared, even the batch, makes it wrong"
    return None


def _sizes(shape: Sequence[int | str | None] | None) -> str:
    """A shape for people."""
    return "of unknown rank" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _where(s: AgentNode) -> str | None:
    shapes = [s.shape(i) for i in range(3)]
    for i in (1, 2):
        for other in shapes:
            own = shapes[i]
            if s.needed(i) and own is not None and other is not None and _broadcast(own, other):
                return f"a branch {_sizes(own)} is broadcast to {_sizes(other)}, which its gradient does not undo"
    return None


def _broadcast(own: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether a shape is certainly smaller than another, or than what they give together."""
    return len(own) < len(other) or any(d == 1 and isinstance(e, int) and e > 1 for d, e in _aligned(own, other))


def _aligned(own: Sequence[Any], other: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Sizes that meet when two shapes are broadcast, from the last backwards."""
    return zip(reversed(own), reversed(other), strict=False)


def _normalized(s: AgentNode) -> str | None:
    if s.read(1) or s.read(2):
        return "the gradient of its outputs after the first is wrong"
    return None if s.given(2) else "it has no bias, and the shape of its scale is not declared"


def _matmul(s: AgentNode) -> str | None:
    shapes = s.shape(0), s.shape(1)
    one = any(shape is not None and len(shape) == 1 for shape in shapes)
    return "the gradient of operands with one axis is wrong" if one else None


def _reduced_l2(s: AgentNode) -> str | None:
    axes = s.attribute("axes") or s.array(1)
    several = (axes is None or len(axes) != 1) and not s.attribute("keepdims", 1)
    return "keepdims=0 over several axes gives a gradient of a wrong shape" if several else None


def _scattered(s: AgentNode) -> str | None:
    return _when(s.attribute("reduction", "none") != "none", "a reduction gives a wrong gradient")


def _when(found: bool, reason: str) -> str | None:
    return reason if found else None


#: Where the agent of onnxruntime-training 1.19.2 is wrong without saying so, or ends the process.
_REFUSED: dict[str, Callable[[AgentNode], str | None]] = {
    "AveragePool": _pooled,
    "BatchNormalization": lambda s: _when(
        not s.attribute("training_mode", 0), "it is differentiated, and even computed, as if training_mode were 1"
    ),
    "Conv": lambda s: _when(_same(s), "auto_pad SAME gives a wrong gradient; write the pads out"),
    "Dropout": lambda s: "its random numbers and its mask are out of reach",
    "GRU": lambda s: "its gradient ends the process unless W and R are both trained",
    "Gelu": lambda s: _when(
        s.attribute("approximate", "none") == "tanh", "approximate='tanh' is given the gradient of 'none'"
    ),
    "Gemm": lambda s: _when(s.needed(2) and s.shape(2) == (), "the gradient of a scalar C has a wrong shape"),
    "LSTM": lambda s: "its gradient ends the process unless W and R are both trained",
    "LayerNormalization": _normalized,
    "MatMul": _matmul,
    "MaxPool": _pooled,
    "ReduceL2": _reduced_l2,
    "ScatterElements": _scattered,
    "ScatterND": _scattered,
    "SoftmaxCrossEntropyLoss": lambda s: _when(s.read(1), "the gradient of its second output is wrong"),
    "Split": lambda s: _when(
        any(o not in s.graph.needed for o in s.node.output), "an output that is not used makes the gradient too small"
    ),
    "Transpose": lambda s: _when(s.attribute("perm") is None, "it has no perm, and the rank of its input is not known"),
    "Where": _where,
}


def find_needed(model: ModelProto, wanted: Sequence[str]) -> set[str]:
    """The tensors whose gradient is needed on the way from the outputs to those that are wanted.

    Parameters
    ----------
    model : onnx.ModelProto
        A graph that `prepare_for_agent` has returned.
    wanted : sequence of str
        Initializers and inputs.

    Returns
    -------
    set of str
        A wanted tensor that is missing has no influence on a differentiable output.

    Raises
    ------
    ModelError
        onnxruntime-training is wrong about a node on the way; the message names it.
    """
    graph = AgentGraph(model, wanted)
    for site in graph.sites:
        if reason := _refused(site):
            raise ModelError(f"The agent cannot differentiate {site}: {reason}. Use engine='step' instead.")
    return graph.needed


def _refused(s: AgentNode) -> str | None:
    """Why the agent must not differentiate a node."""
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in s.node.attribute):
        return "graphs inside nodes have no gradient"
    if s.node.domain not in ("", "ai.onnx"):
        return f"it is an operator of {s.node.domain}, which no test covers"
    return _REFUSED[s.op_type](s) if s.op_type in _REFUSED else None


def _unsure(s: AgentNode) -> str | None:
    """Why a node is beyond what the tests cover."""
    if s.op_type not in TRUSTED or s.node.domain not in ("", "ai.onnx"):
        return "no test covers its gradient"
    kinds = {s.graph.types[n].elem_type if n in s.graph.types else 0 for n in [*s.node.input, *s.node.output]
             if n in s.graph.needed}
    if kinds != {TensorProto.FLOAT}:
        return "the tests cover float32 alone"
    if s.op_type in ("Add", "Div", "Gemm", "MatMul", "Max", "Min", "Mul", "Pow", "Sub", "Where"):
        shapes = [s.shape(i) for i in range(len(s.node.input))]
        asked = [i for i in range(len(shapes)) if s.needed(i)]
        if s.op_type == "Gemm":
            shapes, asked = [shapes[2], s.made()] if s.needed(2) else [], [0] if s.needed(2) else []
        if any(shape is None for shape in shapes):
            return "the rank of an input is not known"
        known = [shape[:-2] if s.op_type == "MatMul" else shape for shape in shapes if shape is not None]
        for own, other in itertools.product((known[i] for i in asked), known):
            if not _certain(own, other, strict=s.op_type == "Where"):
                return f"it may broadcast {_sizes(own)} to {_sizes(other)} in a dimension without a declared size"
    return _untested(s)


def _untested(s: AgentNode) -> str | None:
    """Attributes and inputs that the tests do not cover, most of which the builder refuses."""
    if s.op_type in ("Clip", "Pow") and (s.needed(1) or s.needed(2)):
        return "the tests cover the gradient of its first input alone"
    if s.op_type == "Pow" and (exponent := s.graph.types.get(s.node.input[1])) and exponent.elem_type not in FLOATS:
        return "its exponent is not of the type of its base"
    if s.op_type == "Slice" and s.given(4) and ((steps := s.array(4)) is None or (steps < 0).any()):
        return "its steps may be negative"
    if s.op_type == "Pad" and (s.attribute("mode", "constant") != "constant" or s.given(3)):
        return "the tests cover mode='constant' without axes alone"
    if s.op_type == "AveragePool" and s.attribute("ceil_mode", 0) and s.attribute("count_include_pad", 0):
        return "onnxruntime-training 1.19.2 counts pads wrongly in windows that ceil_mode adds"
    if s.op_type.startswith("Reduce"):
        axes = s.given(1) or s.attribute("axes")
        if s.attribute("noop_with_empty_axes", 0) or (s.op_type == "ReduceLogSumExp" and not axes):
            return "the tests cover axes that are given alone"
    if s.op_type == "Expand":
        own, other = s.shape(0), s.made()
        if own is None or other is None or (len(own) != len(other) and not all(isinstance(d, int) for d in own)):
            return "it adds axes to a shape that is not declared"
    return None


def _certain(own: Sequence[Any], other: Sequence[Any], strict: bool) -> bool:
    """Whether it is known in which dimensions a shape is broadcast; if strict, that it is in none."""
    if strict and len(own) < len(other):
        return False
    return all((d == 1 and not strict) or e == 1 or (d is not None and d == e) for d, e in _aligned(own, other))


def find_untrusted(
    model: ModelProto, weights: Sequence[str] | None = None, *, input_grads: Sequence[str] | None = None
) -> list[str]:
    """Why the agent had better not differentiate a graph; empty if tests vouch for every node on the way.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph.
    weights : sequence of str, optional
        As for `TrainingAgent`; None for all initializers of a floating-point type and of rank one or more.
    input_grads : sequence of str, optional
        As for `TrainingAgent`; None for all inputs of a floating-point type.

    Returns
    -------
    list of str
        A sentence for each reason.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> find_untrusted(build([x], {"y": op.Relu(x)})), find_untrusted(build([x], {"y": op.Elu(x)}))
    ([], ["Elu (node 'Elu_node_0'): no test covers its gradient."])
    """
    try:
        model = prepare_for_agent(model)
        if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < _TESTED_OPSET:
            return [f"The tests cover opsets {_TESTED_OPSET} to {_OPSETS[-1]} alone."]
        types = AgentGraph(model, ())
        if weights is None:
            weights = [t.name for t in model.graph.initializer if t.dims and types.is_float(t.name)]
        if input_grads is None:
            input_grads = [i.name for i in model.graph.input if types.is_float(i.name) and i.name not in weights]
        graph = AgentGraph(model, [*weights, *input_grads])
    except ModelError as e:
        return [str(e)]
    reasons = ((s, _refused(s) or _unsure(s)) for s in graph.sites)
    return [f"{s}: {reason}." for s, reason in reasons if reason]

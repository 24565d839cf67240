"""Operator support of the TrainingAgent: which nodes it differentiates correctly, and how to prepare a graph for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.graph import is_gradient_stop
from ortpartial.model import QUANTIZERS
from ortpartial.texts import reserve_name

from .agent_nodes import FLOATS, AgentGraph, AgentNode, Shape

__all__ = ["TRUSTED", "find_active", "find_reread", "find_untrusted", "prepare_for_agent"]

#: Operators whose gradient tests/runtime/test_training_agent.py compares with torch's; `find_untrusted` has the limits.
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

_ONNX = ("", "ai.onnx")

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

#: None, or the reason why a node must not be differentiated.
_Check = Callable[[AgentNode], "str | None"]


def prepare_for_agent(model: ModelProto) -> ModelProto:
    """Rewrite a model, in a copy, so that onnxruntime-training 1.19.2 can differentiate it; it computes the same.

    The gradient builder fails or is wrong without these changes: functions are inlined; Transpose gets its perm,
    LayerNormalization and SoftmaxCrossEntropyLoss all their outputs; an input that a node reads twice goes through an
    Identity, and so does an output that is an input or a weight, under another name; Dropout and Cast without effect
    become an Identity; LessOrEqual and GreaterOrEqual become an Or.

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
        The agent does not support the opset or the IR version, or would fail on the name of a tensor.
    """
    _check_versions(model)
    copy = ModelProto.FromString(model.SerializeToString())
    model = inliner.inline_local_functions(copy) if model.functions else copy
    model.ir_version = max(model.ir_version, 4)  # Before IR version 4, every initializer had to be an input as well.
    graph, initializers = model.graph, {t.name for t in model.graph.initializer}
    inputs = [i for i in graph.input if i.name not in initializers]
    del graph.input[:]
    graph.input.extend(inputs)
    context = AgentGraph(model, ())
    sources = initializers | {i.name for i in inputs}
    names = sources.union(*(n.input for n in graph.node), *(n.output for n in graph.node))
    _check_names(names)
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes += _separate_inputs(node, names)
        nodes += _split_comparison(node, names)
        nodes.append(_complete(AgentNode(node, context), graph, names))
    copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    copies += _separate_outputs(graph, sources, names)
    del graph.node[:]
    graph.node.extend(copies)
    return model


def _opset(model: ModelProto) -> int:
    return next((o.version for o in model.opset_import if o.domain in _ONNX), 0)


def _check_versions(model: ModelProto) -> None:
    if _opset(model) not in _OPSETS or model.ir_version > _IR:
        raise ModelError(
            f"The agent takes opsets {_OPSETS[0]} to {_OPSETS[-1]} and IR versions up to {_IR}, which is what "
            f"onnxruntime-training 1.19.2 knows; the model has opset {_opset(model)} and IR version "
            f"{model.ir_version}. Use engine='step', or convert it with onnx.version_converter."
        )


def _check_names(names: set[str]) -> None:
    """Refuse names that the agent gives to gradients."""
    if gradients := [n for n in names if n.endswith("_grad") and n.removesuffix("_grad") in names]:
        raise ModelError(f"The agent would name a gradient {gradients[0]!r}, which is a tensor of the model; rename "
                         f"that.")


def _separate_outputs(graph: GraphProto, sources: set[str], names: set[str]) -> Iterator[NodeProto]:
    """An Identity for each output that is an input or a weight, on which the builder of 1.19.2 ends the process."""
    for o in graph.output:
        if o.name in sources:
            source, o.name = o.name, reserve_name(f"{o.name}_output", names)
            yield helper.make_node("Identity", [source], [o.name])


def _separate_inputs(node: NodeProto, names: set[str]) -> Iterator[NodeProto]:
    """An Identity for each further use of a tensor that a node reads several times."""
    for i, name in enumerate(node.input):
        if name and name in list(node.input)[:i]:
            node.input[i] = reserve_name(f"{name}_again", names)
            yield helper.make_node("Identity", [name], [node.input[i]])


def _split_comparison(node: NodeProto, names: set[str]) -> Iterator[NodeProto]:
    """The two comparisons of LessOrEqual or GreaterOrEqual, of which the node itself becomes the Or.

    Where 1.19.2 does so, after it has built the gradient, the types of the gradients of pools are lost, and loading the
    graph ends the process.
    """
    if node.op_type in ("LessOrEqual", "GreaterOrEqual") and node.domain in _ONNX:
        sides = [reserve_name(f"{node.output[0]}_{suffix}", names) for suffix in ("strict", "equal")]
        for op_type, side in zip((node.op_type.removesuffix("OrEqual"), "Equal"), sides, strict=True):
            yield helper.make_node(op_type, list(node.input), [side])
        node.op_type, node.input[:] = "Or", sides


def _complete(node: AgentNode, graph: GraphProto, names: set[str]) -> NodeProto:
    """Give a node the attributes and outputs that the builder does not fill in, or replace it by an Identity."""
    proto = node.node
    if node.op_type == "Transpose" and not proto.attribute and (shape := node.shape(0)) is not None:
        proto.attribute.append(helper.make_attribute("perm", list(range(len(shape)))[::-1]))
    elif node.op_type == "LayerNormalization":
        _complete_layer_normalization(node, graph, names)
    elif node.op_type == "SoftmaxCrossEntropyLoss" and len(proto.output) == 1:
        proto.output.append(reserve_name(f"{proto.output[0]}_log_prob", names))
    elif node.is_identity:
        return helper.make_node("Identity", proto.input[:1], proto.output[:1], name=proto.name)
    return proto


def _complete_layer_normalization(node: AgentNode, graph: GraphProto, names: set[str]) -> None:
    """Add the outputs mean and inverse deviation, and a bias of zeros where the scale has a declared shape."""
    proto = node.node
    proto.output.extend(reserve_name(f"{proto.output[0]}_{suffix}", names)
                        for suffix in ("mean", "inv")[len(proto.output) - 1 :])
    shape = node.shape(1)
    sizes = [d for d in shape or () if isinstance(d, int)]
    if len(proto.input) == 2 and shape is not None and len(sizes) == len(shape):
        dtype = helper.tensor_dtype_to_np_dtype(node.graph.types[proto.input[1]].elem_type)
        proto.input.append(reserve_name(f"{proto.output[0]}_bias", names))
        graph.initializer.append(numpy_helper.from_array(np.zeros(sizes, dtype), proto.input[2]))


def _check_mask(node: AgentNode) -> str | None:
    pole = node.graph.poles.get(node.node.output[0])
    return _when(pole, f"its gradient is a product with a mask, which is NaN where that of {pole} behind it is "
                       f"infinite")


def _when(is_wrong: object, reason: str) -> str | None:
    return reason if is_wrong else None


def _format_shape(shape: Shape | None) -> str:
    return "of unknown rank" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def _pads_same(node: AgentNode) -> bool:
    return node.attribute("auto_pad", "NOTSET").startswith("SAME")


def _check_max_pool(node: AgentNode) -> str | None:
    if node.attribute("storage_order", 0):
        return "storage_order=1 gives a wrong gradient"
    shape = node.shape(0)
    if shape is None or not all(isinstance(d, int) for d in shape[1:]):
        return f"its input is {_format_shape(shape)}, and a size beside the batch that is not declared ends the process"
    return None


def _check_average_pool(node: AgentNode) -> str | None:
    if _pads_same(node) or any(d != 1 for d in node.attribute("dilations", ())):
        return "dilations and auto_pad SAME give a wrong gradient"
    shape = node.shape(0)
    if shape is None or len(shape) == 5:
        return "its gradient is wrong in three dimensions of space"
    if not all(isinstance(d, int) for d in shape):
        return f"its input is {_format_shape(shape)}, and a size that is not declared, even the batch, makes it wrong"
    return None


def _check_where(node: AgentNode) -> str | None:
    shapes = [node.shape(i) for i in range(3)]
    for branch in (shapes[i] for i in (1, 2) if node.is_active(i)):
        for other in shapes:
            if branch is not None and other is not None and _is_smaller(branch, other):
                return (f"a branch {_format_shape(branch)} is broadcast to {_format_shape(other)}, which its gradient "
                        f"does not undo")
    return None


def _is_smaller(shape: Shape, other: Shape) -> bool:
    """Whether a shape is certainly broadcast, to another shape or to their common one."""
    return len(shape) < len(other) or any(d == 1 and isinstance(e, int) and e > 1 for d, e in _align(shape, other))


def _align(shape: Shape, other: Shape) -> Iterator[tuple[int | str | None, int | str | None]]:
    """Pairs of the sizes that meet when two shapes are broadcast, from the last axis backwards."""
    return zip(reversed(shape), reversed(other), strict=False)


def _check_layer_normalization(node: AgentNode) -> str | None:
    if node.is_used(1) or node.is_used(2):
        return "the gradient of its outputs after the first is wrong"
    return None if node.has_input(2) else "it has no bias, and the shape of its scale is not declared"


def _check_matmul(node: AgentNode) -> str | None:
    ranks = {len(shape) for shape in (node.shape(0), node.shape(1)) if shape is not None}
    return _when(1 in ranks, "the gradient of operands with one axis is wrong")


def _check_reduce_l2(node: AgentNode) -> str | None:
    axes = node.attribute("axes") or node.constant(1)
    several = (axes is None or len(axes) != 1) and not node.attribute("keepdims", 1)
    return _when(several, "keepdims=0 over several axes gives a gradient of a wrong shape")


def _check_scatter(node: AgentNode) -> str | None:
    return _when(node.attribute("reduction", "none") != "none", "a reduction gives a wrong gradient")


#: Operators whose gradient is a product with a mask; the gradients of Relu and Where select.
_MASKS = ("Clip", "Max", "Min")

#: Where the agent of onnxruntime-training 1.19.2 returns a wrong gradient without an error, or ends the process.
_REFUSED: dict[str, _Check] = {
    "AveragePool": _check_average_pool,
    "BatchNormalization": lambda n: _when(not n.attribute("training_mode", 0),
                                          "it is differentiated, and even computed, as if training_mode were 1"),
    "Conv": lambda n: _when(_pads_same(n), "auto_pad SAME gives a wrong gradient; write the pads out"),
    "Dropout": lambda n: "its random numbers and its mask are out of reach",
    "GRU": lambda n: "its gradient ends the process unless W and R are both trained",
    "Gelu": lambda n: _when(n.attribute("approximate", "none") == "tanh",
                            "approximate='tanh' is given the gradient of 'none'"),
    "Gemm": lambda n: _when(n.is_active(2) and n.shape(2) == (), "the gradient of a scalar C has a wrong shape"),
    "LSTM": lambda n: "its gradient ends the process unless W and R are both trained",
    "LayerNormalization": _check_layer_normalization,
    "MatMul": _check_matmul,
    "MaxPool": _check_max_pool,
    "ReduceL2": _check_reduce_l2,
    "ScatterElements": _check_scatter,
    "ScatterND": _check_scatter,
    "SoftmaxCrossEntropyLoss": lambda n: _when(n.is_used(1), "the gradient of its second output is wrong"),
    "Split": lambda n: _when(not n.graph.active.issuperset(n.node.output),
                             "an output that is not used makes the gradient too small"),
    "Transpose": lambda n: _when(n.attribute("perm") is None, "it has no perm, and the rank of its input is not known"),
    "Where": _check_where,
    **dict.fromkeys(_MASKS, _check_mask),
}


def find_active(model: ModelProto, wrt: Sequence[str]) -> set[str]:
    """The tensors that need a gradient: they depend on `wrt`, and an output depends on them.

    Parameters
    ----------
    model : onnx.ModelProto
        A graph that `prepare_for_agent` has returned.
    wrt : sequence of str
        Initializers and inputs to differentiate with respect to.

    Returns
    -------
    set of str
        A name of `wrt` that is missing influences no differentiable output.

    Raises
    ------
    ModelError
        onnxruntime-training differentiates a node wrongly; the message names it.
    """
    graph = AgentGraph(model, wrt)
    for node in [*graph.roundings, *graph.active_nodes]:
        if reason := _check_refused(node):
            raise ModelError(f"The agent cannot differentiate {node}: {reason}. Use engine='step' instead.")
    return graph.active


def find_reread(gradient: GraphProto) -> list[int]:
    """Find the outputs whose memory the backward pass reads, or may read.

    Parameters
    ----------
    gradient : onnx.GraphProto
        The graph of forward and backward, as onnxruntime-training builds it.

    Returns
    -------
    list of int
        The places of these outputs. The others may be written to before the backward pass.
    """
    (end,) = [node for node in gradient.node if node.op_type == "YieldOp"]
    needed = set(end.input)
    backward: set[str] = set()
    shared: dict[str, set[str]] = {n: {n} for n in end.input}
    # A factor of 1, or a summand of 0.
    constants = {t.name for t in gradient.initializer if np.isin(numpy_helper.to_array(t), (0, 1)).all()}
    for node in reversed(gradient.node):  # Nodes are sorted.
        if needed.isdisjoint(node.output):
            backward.update(() if node.op_type in ("Shape", "YieldOp") else node.input)
            continue
        needed.update(node.input)
        if node.op_type in _PASSING or (node.op_type in _NEUTRAL and not constants.isdisjoint(node.input)):
            group = set(node.output).union(*(shared.get(n, {n}) for n in (*node.input, *node.output)), node.input)
            shared.update(dict.fromkeys(group, group))
    return [i for i, n in enumerate(end.input) if not backward.isdisjoint(shared[n])]


def _check_refused(node: AgentNode) -> str | None:
    """Why the agent must not differentiate a node."""
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.node.attribute):
        return "graphs inside nodes have no gradient"
    if node.node.domain not in _ONNX:
        return f"it is an operator of {node.node.domain}, which no test covers"
    if node.op_type in QUANTIZERS:
        return "it rounds, and the agent loses the gradient"
    if is_gradient_stop(node.node):
        return "it stops the gradient, and the agent lets it through"
    types = node.graph.types
    if any(types[n].elem_type in _HALF for n in (*node.node.input, *node.node.output) if n in types):
        return "onnxruntime-training 1.19.2 fails in half precision, and MaxPool ends the process"
    return _REFUSED[node.op_type](node) if node.op_type in _REFUSED else None


def _check_pow(node: AgentNode) -> str | None:
    if node.is_active(1):
        return "the tests cover the gradient of its first input alone"
    exponent = node.graph.types.get(node.node.input[1])
    return _when(exponent is not None and exponent.elem_type not in FLOATS,
                 "its exponent is not of the type of its base")


def _check_slice(node: AgentNode) -> str | None:
    steps = node.constant(4)
    return _when(node.has_input(4) and (steps is None or (steps < 0).any()), "its steps may be negative")


def _check_reduction(node: AgentNode) -> str | None:
    implicit = node.op_type == "ReduceLogSumExp" and not (node.has_input(1) or node.attribute("axes"))
    return _when(implicit or node.attribute("noop_with_empty_axes", 0), "the tests cover axes that are given alone")


def _check_expand(node: AgentNode) -> str | None:
    shape, output = node.shape(0), node.output_shape()
    unknown = shape is None or output is None or (
        len(shape) != len(output) and not all(isinstance(d, int) for d in shape)
    )
    return _when(unknown, "it adds axes to a shape that is not declared")


#: Operators whose output onnxruntime may leave in the memory of an input, as they move no element or have no effect.
_PASSING = frozenset({"Cast", "Clip", "Concat", "Dropout", "Expand", "Flatten", "Identity", "Pad", "Reshape", "Slice",
                      "Split", "Squeeze", "Sum", "Transpose", "Unsqueeze"})
#: Operators that have no effect beside a constant of 0 or 1.
_NEUTRAL = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})

#: Cases that the tests of a trusted operator do not cover; the gradient builder refuses most of it.
_UNTESTED: dict[str, _Check] = {
    "AveragePool": lambda n: _when(n.attribute("ceil_mode", 0) and n.attribute("count_include_pad", 0),
                                   "onnxruntime-training 1.19.2 counts pads wrongly in windows that ceil_mode adds"),
    "Clip": lambda n: _when(n.is_active(1) or n.is_active(2), "the tests cover the gradient of its first input alone"),
    "Expand": _check_expand,
    "Pad": lambda n: _when(n.attribute("mode", "constant") != "constant" or n.has_input(3),
                           "the tests cover mode='constant' without axes alone"),
    "Pow": _check_pow,
    "Slice": _check_slice,
    **dict.fromkeys(("ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum"), _check_reduction),
}

_BROADCASTING = frozenset({"Add", "Div", "Gemm", "MatMul", "Max", "Min", "Mul", "Pow", "Sub", "Where"})


def _check_untested(node: AgentNode) -> str | None:
    """Why the tests do not cover a node."""
    if node.op_type not in TRUSTED or node.node.domain not in _ONNX:
        return "no test covers its gradient"
    types, active = node.graph.types, node.graph.active.intersection([*node.node.input, *node.node.output])
    if {types[name].elem_type if name in types else 0 for name in active} != {TensorProto.FLOAT}:
        return "the tests cover float32 alone"
    if node.op_type in _BROADCASTING and (reason := _check_broadcast(node)):
        return reason
    return _UNTESTED[node.op_type](node) if node.op_type in _UNTESTED else None


def _check_broadcast(node: AgentNode) -> str | None:
    """The gradient of a broadcast input is summed over the axes that the builder knows to be broadcast."""
    shapes = [node.shape(i) for i in range(len(node.node.input))]
    active = [i for i in range(len(shapes)) if node.is_active(i)]
    if node.op_type == "Gemm":  # C alone is broadcast, to the output.
        shapes, active = ([node.shape(2), node.output_shape()], [0]) if node.is_active(2) else ([], [])
    if any(shape is None for shape in shapes):
        return "the rank of an input is not known"
    operands = [shape[:-2] if node.op_type == "MatMul" else shape for shape in shapes if shape is not None]
    for shape, other in itertools.product((operands[i] for i in active), operands):
        if not _is_certain(shape, other, is_where=node.op_type == "Where"):
            return (f"it may broadcast {_format_shape(shape)} to {_format_shape(other)} in a dimension without a "
                    f"declared size")
    return None


def _is_certain(shape: Shape, other: Shape, is_where: bool) -> bool:
    """Whether the axes along which a shape is broadcast are certain; for Where, whether there certainly are none."""
    if is_where and len(shape) < len(other):
        return False
    return all((d == 1 and not is_where) or e == 1 or (d is not None and d == e) for d, e in _align(shape, other))


def find_untrusted(
    model: ModelProto, weights: Sequence[str] | None = None, *, input_grads: Sequence[str] | None = None
) -> list[str]:
    """Why the agent should not differentiate a graph; empty if tests cover every active node.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph.
    weights : sequence of str, optional
        As for `TrainingAgent`; None for all initializers of a floating-point type and of rank 1 or more.
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
        if _opset(model) < _TESTED_OPSET:
            return [f"The tests cover opsets {_TESTED_OPSET} to {_OPSETS[-1]} alone."]
        context = AgentGraph(model, ())
        if weights is None:
            weights = [t.name for t in model.graph.initializer if t.dims and context.is_float(t.name)]
        if input_grads is None:
            input_grads = [i.name for i in model.graph.input if context.is_float(i.name) and i.name not in weights]
        graph = AgentGraph(model, [*weights, *input_grads])
    except ModelError as e:
        return [str(e)]
    nodes = [*graph.roundings, *graph.active_nodes]
    reasons = ((node, _check_refused(node) or _check_untested(node)) for node in nodes)
    return [f"{node}: {reason}." for node, reason in reasons if reason]

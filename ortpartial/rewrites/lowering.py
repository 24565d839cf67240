"""Lowering: operators without a kernel, in float64 or at all, in other operators."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

from ortpartial.annotations import Inputs
from ortpartial.autodiff import expand_composition
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph import (
    Node,
    Value,
    attribute_value,
    build,
    cast,
    constant,
    defaults,
    op,
    rewrite,
    topological,
    walk_nodes,
)
from ortpartial.model import Model, bodies, by_row, is_misread, load, walk_graphs

from .float64 import LOWERINGS, WITHOUT_FLOAT64, Formula
from .protocol import count_case, numbered

__all__ = ["clear_padding", "drop_default", "lower", "lower_quantized", "make_portable", "multiply_bytes",
           "needs_lowering"]


@numbered("float64", "wrong", "layout", "composition", "padding")
def lower(model: ModelProto, wrong: Collection[str] = ()) -> ModelProto:
    """The model with operators that have no float64 kernel rewritten in others.

    1. `float64`: An operator that has no float64 kernel becomes its formula in `LOWERINGS`.
    2. `wrong`: So does an operator that the runtime computes wrongly in any dtype.
    3. `layout`: So does a recurrent operator with the batch first, which has no kernel in any dtype.
    4. `composition`: An operator of com.microsoft in float64 becomes standard operators.
    5. `padding`: Reading the model has written the pads of auto_pad SAME out, which onnxruntime 1.19 to 1.32 computes
       wrongly: `is_misread`.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.
    wrong : collection of str
        Operators of `LOWERINGS` to rewrite in any dtype, as the runtime computes them wrongly.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to lower.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float64", ["N"])
    >>> [node.op_type for node in lower(build([x], {"y": op.Mean(x, x)})).graph.node]
    ['Sum', 'Div']
    """
    is_wrong = wrong and any(node.op_type in wrong for g in walk_graphs(model.graph) for node in g.node)
    if not (is_wrong or needs_lowering(model)):
        return model
    try:
        loaded = load(model)
    except ModelError:  # The runtime may read models that we do not; if not, its error says why.
        return model
    lowered: list[Node] = []

    def change(node: Node, inputs: Sequence[Value | None]) -> list[Value] | None:
        if (values := _lower_node(node, inputs, wrong)) is not None:
            lowered.append(node)
        return values

    outputs, count = list(loaded.outputs.values()), -1
    while len(lowered) != count:  # A lowered operator may have no kernel itself.
        count = len(lowered)
        outputs = rewrite(outputs, {}, change)
    if is_misread(model):
        count_case("padding")
    elif not lowered:
        return model
    return _build_like(model, loaded, outputs)


def needs_lowering(model: ModelProto) -> bool:
    """Whether `lower` reads a model, as it may have something to lower.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.

    Returns
    -------
    bool
    """
    nodes = [node for graph in walk_graphs(model.graph) for node in graph.node if _may_lack_kernel(node)]
    is_batchwise = any(a.name == "layout" and a.i for node in nodes for a in node.attribute)
    reads_float64 = is_batchwise or (_has_float64(model) and _reads_float64(model))
    return (bool(nodes) and reads_float64) or is_misread(model)


def _may_lack_kernel(node: NodeProto) -> bool:
    """Whether an operator is rewritten in float64."""
    return (node.op_type in LOWERINGS and not node.domain) or node.domain == "com.microsoft"


def _reads_float64(model: ModelProto) -> bool:
    """Whether float64 may reach an operator without a kernel: a step counts in it, in a corner of its own.

    Where not all types are plain, it may.
    """
    declared = [*model.graph.input, *model.graph.value_info, *model.graph.output]
    if model.functions or any(node.domain not in ("", "com.microsoft") for g in walk_graphs(model.graph)
                              for node in g.node) or not all(v.type.tensor_type.elem_type for v in declared):
        return True
    return _spread_float64(model.graph, set())[0]


def _spread_float64(graph: GraphProto, doubles: set[str]) -> tuple[bool, bool]:
    """Whether float64 may reach an operator without a kernel, and an output of a graph that reads such values.

    A Cast alone ends it; all other operators are taken to hand it on.
    """
    doubles = doubles | set(_list_declared_doubles(graph))
    for node in graph.node:
        is_double = not doubles.isdisjoint(node.input) or _names_double(node)
        for body in bodies(node):
            reaches, leaves = _spread_float64(body, doubles | {i.name for i in body.input} if is_double else doubles)
            if leaves and not is_double:  # A loop may hand it to its next iteration.
                is_double, (again, _) = True, _spread_float64(body, doubles | {i.name for i in body.input})
                reaches |= again
            if reaches:
                return True, True
        if is_double and _may_lack_kernel(node):
            return True, True
        if is_double and (node.op_type != "Cast" or any(a.i == TensorProto.DOUBLE for a in node.attribute)):
            doubles.update(node.output)
    return False, any(v.name in doubles for v in graph.output)


def _list_declared_doubles(graph: GraphProto) -> Iterator[str]:
    """The values and initializers that a graph declares to be of float64."""
    declared = [*graph.input, *graph.value_info, *graph.output]
    yield from (v.name for v in declared if v.type.tensor_type.elem_type == TensorProto.DOUBLE)
    stored = [*graph.initializer, *(t.values for t in graph.sparse_initializer)]
    yield from (t.name for t in stored if t.data_type == TensorProto.DOUBLE)


def _names_double(node: NodeProto) -> bool:
    """Whether an attribute of a node is of float64, or says so of an output."""
    return any(a.t.data_type == TensorProto.DOUBLE or (a.name in _DTYPES and a.i == TensorProto.DOUBLE)
               for a in node.attribute)


@numbered("keep_dequantized")
def make_portable(model: ModelProto) -> ModelProto:
    """The model in operators that onnxruntime 1.19.2 and 1.32.0 have kernels for, and whose own optimizers keep it.

    `Session` does the same, and more, for the runtime that is installed; this is for models that users run themselves.
    `lower` and `lower_quantized` come first.

    1. `keep_dequantized`: A Max of a single tensor follows DequantizeLinear, so that the runtime quantizes none of it.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to change.

    Raises
    ------
    ModelError
        An operator has no float64 kernel in these versions, and is none of `LOWERINGS`; the message names the node.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float64", ["N"])
    >>> [node.op_type for node in make_portable(build([x], {"y": op.Cosh(x)})).graph.node]
    ['Mul', 'Exp', 'Mul', 'Mul', 'Neg', 'Mul', 'Exp', 'Mul', 'Mul', 'Add']
    """
    model = lower(model)
    nodes = [node for graph in walk_graphs(model.graph) for node in graph.node]
    suspects = {node.op_type for node in nodes} & {n.rpartition(".")[2] for n in (*LOWERINGS, *WITHOUT_FLOAT64)}
    if suspects and _has_float64(model):
        _check_kernels(load(model))
    if any(node.op_type == "QLinearMatMul" and not node.domain for node in nodes):
        model = lower_quantized(model)
    return _keep_dequantized(model)


def _check_kernels(model: Model) -> None:
    """Raise for a node that has no float64 kernel in any of the runtimes."""
    for node in walk_nodes(topological(list(model.outputs.values()))):
        name = ".".join(filter(None, (node.domain, node.op_type)))
        if (name in LOWERINGS or name in WITHOUT_FLOAT64) and any(
                v is not None and v.dtype == np.float64 for v in (*node.inputs, *node.outputs)):
            raise ModelError(f"{node!r} is of float64, and no onnxruntime from 1.19.2 to 1.32.0 has such a kernel for "
                             f"{name}" + " of these attributes and sizes" * (name in LOWERINGS) +
                             "; make the model one of float32, or its sizes static.")


#: Attributes that name a dtype.
_DTYPES = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")

#: Operators through which onnxruntime moves a quantization.
_MOVED_THROUGH = frozenset({"Flatten", "Gather", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


def _keep_dequantized(model: ModelProto) -> ModelProto:
    """The model with a Max of a single tensor behind a dequantization of int8 that more than a quantization reads.

    onnxruntime 1.32.0 quantizes operators that move dequantized elements, such as the gradient of MaxPool, to move
    bytes instead (QDQPropagationTransformer), then turns int8 into uint8 (QDQS8ToU8Transformer) but for the attribute
    of the nodes that it has just written: "output_dtype INT8 does not match y_zero_point type UINT8".
    """
    graph = model.graph
    signed = {t.name for t in graph.initializer if t.data_type == TensorProto.INT8}
    if not any(n.op_type == "QuantizeLinear" and signed & {*n.input[2:]} for n in graph.node):
        return model
    dequantized = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    quantized = {n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    moved = {n.input[0] for n in graph.node if n.op_type in _MOVED_THROUGH and n.output[0] not in quantized}
    moved &= dequantized
    copy = ModelProto()
    copy.CopyFrom(model)
    nodes = []
    for node in copy.graph.node:
        if node.op_type in _MOVED_THROUGH and node.input[0] in moved and node.output[0] not in quantized:
            node.input[0] = f"{node.input[0]}/kept"
        nodes.append(NodeProto.FromString(node.SerializeToString()))
        if node.op_type == "DequantizeLinear" and node.output[0] in moved:
            count_case("keep_dequantized")
            nodes.append(helper.make_node("Max", [node.output[0]], [f"{node.output[0]}/kept"]))
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


@numbered("qlinear_matmul")
def lower_quantized(model: ModelProto) -> ModelProto:
    """The model with QLinearMatMul, of which onnxruntime 1.19.2 has no kernel for opset 21, in other operators.

    1. `qlinear_matmul`: QLinearMatMul becomes MatMulInteger of its operands, and QuantizeLinear of their product.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.

    Returns
    -------
    onnx.ModelProto

    Examples
    --------
    >>> from ortpartial.graph import constant, variable
    >>> a, zero = variable("a", "int8", [2, 2]), constant(0, np.int8)
    >>> y = op.QLinearMatMul(a, 0.5, zero, a, 0.5, zero, 0.5, zero)
    >>> [node.op_type for node in lower_quantized(build([a], {"y": y})).graph.node]
    ['MatMulInteger', 'Cast', 'Mul', 'Div', 'Mul', 'QuantizeLinear']
    """

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        if node.op_type != "QLinearMatMul" or node.domain:
            return None
        count_case("qlinear_matmul")
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
        product = cast(op.MatMulInteger(a, b, a_zero, b_zero), a_scale)
        # In the order of the kernel's own arithmetic, which the last bit depends on.
        real = product * ((by_row(a_scale) * b_scale) / by_row(y_scale))
        return [op.QuantizeLinear(real, constant(np.ones((), real.dtype)), y_zero)]

    loaded = load(model)
    return _build_like(model, loaded, rewrite(list(loaded.outputs.values()), {}, change))


def drop_default(model: ModelProto, op_type: str, attribute: str) -> bool:
    """Remove an attribute where it has its default, which an older runtime does not know.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed.
    op_type : str
        An operator of com.microsoft.
    attribute : str
        The attribute.

    Returns
    -------
    bool
        Whether all such nodes had the default.

    Examples
    --------
    >>> from onnx import helper
    >>> node = helper.make_node("QuickGelu", ["x"], ["y"], domain="com.microsoft", alpha=1.702)
    >>> model = helper.make_model(helper.make_graph([node], "g", [], []))
    >>> drop_default(model, "QuickGelu", "alpha"), list(model.graph.node[0].attribute)
    (True, [])
    """
    if not defs.has(op_type, "com.microsoft"):
        return False
    usual = defaults(defs.get_schema(op_type, "com.microsoft")).get(attribute)
    found = [(node, a) for graph in walk_graphs(model.graph) for node in graph.node for a in node.attribute
             if (node.domain, node.op_type, a.name) == ("com.microsoft", op_type, attribute)]
    if not found or any(attribute_value(a) != usual for _, a in found):
        return False
    for node, a in found:
        node.attribute.remove(a)
    return True


@numbered("attention")
def clear_padding(model: ModelProto) -> ModelProto:
    """The model with zeros where GroupQueryAttention computes the places after the last token of a row.

    1. `attention`: Where and the nodes of its condition follow GroupQueryAttention.

    onnxruntime 1.19.2 reads memory there that nothing has written: a NaN in it would make gradients of weights NaN, as
    0 · NaN is. 1.32.0 does not.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.

    Returns
    -------
    onnx.ModelProto
        The same object where there is no such node.

    Examples
    --------
    >>> clear_padding(model := ModelProto()) is model
    True
    """
    if not any(map(_is_attention, (node for graph in walk_graphs(model.graph) for node in graph.node))):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for graph in walk_graphs(copy.graph):
        nodes = [n for node in graph.node for n in ((node, *_clear_padding(node)) if _is_attention(node) else (node,))]
        nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(nodes)
    return copy


def multiply_bytes(model: ModelProto) -> ModelProto:
    """The model with products by powers of two, modulo 256, in place of shifts of bytes to the left.

    onnxruntime 1.32.0 multiplies bytes with vector instructions, in a tenth of the time of a shift; 1.19.2 has no such
    kernel.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.

    Returns
    -------
    onnx.ModelProto
        The same object where no byte is shifted by a constant.

    Examples
    --------
    >>> multiply_bytes(model := ModelProto()) is model
    True
    """
    amounts = {t.name: numpy_helper.to_array(t) for g in walk_graphs(model.graph) for t in g.initializer
               if t.data_type == TensorProto.UINT8 and not t.dims}
    shifted = {node.input[1] for g in walk_graphs(model.graph) for node in g.node if _is_byte_shift(node, amounts)}
    if not shifted:
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for node in (node for g in walk_graphs(copy.graph) for node in g.node if _is_byte_shift(node, amounts)):
        node.op_type, node.input[1] = "Mul", f"{node.input[1]}/factor"
        del node.attribute[:]
    copy.graph.initializer.extend(numpy_helper.from_array(np.uint8(1) << amounts[n], f"{n}/factor") for n in shifted)
    return copy


def _is_byte_shift(node: NodeProto, amounts: Mapping[str, np.ndarray]) -> bool:
    """Whether a node shifts bytes to the left by a constant."""
    if node.op_type != "BitShift" or node.input[1] not in amounts:
        return False
    return int(amounts[node.input[1]]) < 8 and node.attribute[0].s == b"LEFT"


def _is_attention(node: NodeProto) -> bool:
    return (node.domain, node.op_type) == ("com.microsoft", "GroupQueryAttention")


def _clear_padding(node: NodeProto) -> list[NodeProto]:
    """The nodes that compute the first output of a node of attention, which gets another name."""
    count_case("attention")
    y, last = node.output[0], node.input[5]
    node.output[0] = f"{y}/padded"
    nodes: list[NodeProto] = []

    def add(op_type: str, *inputs: str | np.ndarray | int | float, **attributes: Any) -> str:
        names = [i if isinstance(i, str) else add("Constant", value=numpy_helper.from_array(np.asarray(i)))
                 for i in inputs]
        nodes.append(helper.make_node(op_type, names, [f"{y}/padding_{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    count = add("Gather", add("Shape", node.output[0]), 1)
    ends = add("Reshape", add("Cast", last, to=TensorProto.INT64), np.array([-1, 1]))
    # The queries of a row end with it, unless its prompt is shorter than others.
    first = add("Max", add("Sub", add("Add", ends, 1), count), 0)
    is_padding = add("Greater", add("Add", first, add("Range", 0, count, 1)), ends)
    zero = add("CastLike", np.float32(0), node.output[0])
    add("Where", add("Reshape", is_padding, np.array([0, 0, 1])), zero, node.output[0])
    nodes[-1].output[0] = y
    return nodes


def _build_like(model: ModelProto, loaded: Model, outputs: Sequence[Value]) -> ModelProto:
    """The model with other values for its outputs."""
    return build(loaded.inputs, dict(zip(loaded.outputs, outputs, strict=True)), name=model.graph.name)


def _lower_node(node: Node, inputs: Sequence[Value | None], wrong: Collection[str]) -> list[Value] | None:
    """The outputs of a node in other operators; None where it is left as it is."""
    is_double = any(v is not None and v.dtype == np.float64 for v in (*node.inputs, *node.outputs))
    if node.domain == "com.microsoft" and is_double:
        if (values := expand_composition(node, inputs)) is not None:
            count_case("composition")
        return values
    if node.op_type not in LOWERINGS or node.domain:
        return None
    if not (is_double or node.op_type in wrong or node.attributes.get("layout")):
        return None
    try:
        outputs = _apply(LOWERINGS[node.op_type], node, inputs)
    except NoGradientError:  # Its padding depends on unknown sizes: the runtime names the kernel that it lacks.
        return None
    count_case("float64" if is_double else "wrong" if node.op_type in wrong else "layout")
    return [outputs] if isinstance(outputs, Value) else list(outputs)


def _apply(formula: Formula, node: Node, inputs: Inputs) -> Value | Sequence[Value]:
    """The formula with the node's inputs, and with the attributes and the node itself where it has such a keyword."""
    names = [p.name for p in inspect.signature(formula).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return formula(*inputs, **{k: node if k == "node" else node.attribute(k) for k in names})


def _has_float64(model: ModelProto) -> bool:
    """Whether any declared value is float64, or any Cast is to it."""
    types: set[int] = set()
    for graph in walk_graphs(model.graph):
        types |= {v.type.tensor_type.elem_type for v in [*graph.input, *graph.output, *graph.value_info]}
        types |= {a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
        types |= {t.data_type for t in graph.initializer}
    return TensorProto.DOUBLE in types

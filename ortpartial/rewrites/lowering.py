"""Lowering of operators without a float64 kernel to operators that have one, and opset downgrade."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper

from ortpartial.annotations import Inputs
from ortpartial.autodiff import broadcast_channels, expand_lrn, expand_recurrent
from ortpartial.exceptions import GraphError, ModelError, NoGradientError
from ortpartial.graph import (
    Node,
    Value,
    attribute_value,
    build,
    cast,
    constant,
    defaults,
    make_node,
    op,
    rewrite,
    schema_of,
    topological,
    walk_nodes,
)
from ortpartial.model import Model, by_row, expand_body, is_misread, load, walk_graphs

from .im2col import lower_average_pool, lower_col2im, lower_conv, lower_conv_transpose

__all__ = ["LOWERINGS", "clear_padding", "downgrade_opset", "drop_default", "lower", "lower_quantized",
           "needs_lowering"]


def spatial_axes(x: Value) -> list[int]:
    """All axes but batch and channel."""
    return list(range(2, x.rank))


def lower_gelu(x: Value, *, approximate: str) -> Value:
    """x Φ(x)."""
    if approximate == "tanh":
        return 0.5 * x * (1 + op.Tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1 + op.Erf(math.sqrt(0.5) * x))


def lower_instance_normalization(x: Value, scale: Value, b: Value, *, epsilon: float) -> Value:
    """(x - mean) / √(variance + ε) · scale + b, by channel."""
    centered = x - op.ReduceMean(x, spatial_axes(x))
    k = broadcast_channels(scale, x) / op.Sqrt(op.ReduceMean(centered * centered, spatial_axes(x)) + epsilon)
    return centered * k + broadcast_channels(b, x)


Formula = Callable[..., "Value | Sequence[Value]"]

#: The Taylor series of erf(x) / x in x², for |x| < 1 to the last bit of float64.
_NEAR = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(18)]


def _scaled_erfc(t: float) -> float:
    """e^(x²) (1 - erf x) at the x from 1 to 6 for which t = (48 / (x + 2) - 11) / 5."""
    x = 48 / (5 * t + 11) - 2
    return math.exp(x * x) * math.erfc(x)


#: The polynomial in t that interpolates it at the Chebyshev points.
_FAR = chebyshev.cheb2poly(chebyshev.chebinterpolate(np.vectorize(_scaled_erfc), 14)).tolist()


def _evaluate_polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """Horner's scheme."""
    *others, first = coefficients
    return reduce(lambda y, c: y * x + c, reversed(others), first)  # type: ignore[arg-type, return-value]


def lower_erf(x: Value) -> Value:
    """erf x with a relative error below 1e-15; it is 1 from 6 on."""
    a = op.Abs(x)
    clipped = op.Clip(a, 1.0, 6.0)
    near = x * _evaluate_polynomial(_NEAR, op.Min(a, 1.0) * op.Min(a, 1.0))
    far = op.Sign(x) * (1 - op.Exp(-(clipped * clipped)) * _evaluate_polynomial(_FAR, (48 / (clipped + 2) - 11) / 5))
    return op.Where(a < 1, near, far)


#: Operators without a float64 kernel in onnxruntime 1.19.2 and 1.31.1: the same function in operators that have one.
LOWERINGS: dict[str, Formula] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), expand_recurrent),
    "AveragePool": lower_average_pool,
    "Col2Im": lower_col2im,
    "Conv": lower_conv,
    "ConvTranspose": lower_conv_transpose,
    "Elu": lambda x, *, alpha: op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1),
    "Erf": lower_erf,
    "Gelu": lower_gelu,
    "GlobalAveragePool": lambda x: op.ReduceMean(x, spatial_axes(x)),
    "GlobalMaxPool": lambda x: op.ReduceMax(x, spatial_axes(x)),
    "HardSigmoid": lambda x, *, alpha, beta: op.Min(op.Max(alpha * x + beta, 0), 1),
    "HardSwish": lambda x: x * op.Min(op.Max(x / 6 + 0.5, 0), 1),
    "InstanceNormalization": lower_instance_normalization,
    "LRN": expand_lrn,
    "LeakyRelu": lambda x, *, alpha: op.Max(x, 0) + alpha * op.Min(x, 0),
    "Mean": lambda *x: op.Sum(*x) / len(x),
    "Mish": lambda x: x * op.Tanh(op.Softplus(x)),
    "PRelu": lambda x, slope: op.Max(x, 0) + slope * op.Min(x, 0),
    "Selu": lambda x, *, alpha, gamma: gamma * (op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1)),
    "Softplus": lambda x: op.Max(x, 0) + op.Log(1 + op.Exp(-op.Abs(x))),
    "Softsign": lambda x: x / (1 + op.Abs(x)),
    "ThresholdedRelu": lambda x, *, alpha: op.Where(x > alpha, x, 0),
}


def lower(model: ModelProto, wrong: Collection[str] = ()) -> ModelProto:
    """The model with operators that have no float64 kernel rewritten in operators that have one.

    Reading it has written the pads of auto_pad SAME out, which onnxruntime 1.19 to 1.32 computes wrongly: `is_misread`.

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
    return _build_like(model, loaded, outputs) if lowered or is_misread(model) else model


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
    nodes = [node for graph in walk_graphs(model.graph) for node in graph.node
             if node.op_type in LOWERINGS and not node.domain]
    is_batchwise = any(a.name == "layout" and a.i for node in nodes for a in node.attribute)
    return (bool(nodes) and (is_batchwise or _has_float64(model))) or is_misread(model)


def lower_quantized(model: ModelProto) -> ModelProto:
    """The model with QLinearMatMul, of which onnxruntime 1.19.2 has no kernel for opset 21, in other operators.

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


def clear_padding(model: ModelProto) -> ModelProto:
    """The model with zeros where GroupQueryAttention computes what follows the last token of a row.

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


def _is_attention(node: NodeProto) -> bool:
    return (node.domain, node.op_type) == ("com.microsoft", "GroupQueryAttention")


def _clear_padding(node: NodeProto) -> list[NodeProto]:
    """The nodes that compute the first output of a node of attention, which gets another name."""
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
    if node.op_type not in LOWERINGS or node.domain:
        return None
    # A layout of recurrent operators with the batch first has no kernel in any dtype.
    is_right = node.outputs[0].dtype != np.float64 and node.op_type not in wrong
    if is_right and not node.attributes.get("layout"):
        return None
    try:
        outputs = _apply(LOWERINGS[node.op_type], node, inputs)
    except NoGradientError:  # Its padding depends on unknown sizes: the runtime names the kernel that it lacks.
        return None
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


def downgrade_opset(model: ModelProto, newest: int) -> ModelProto:
    """The model in operators of an older opset, each in its older form or expanded into its function body.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.
    newest : int
        The opset, 21 or later.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An operator is newer and has no function body; the message names the node.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> [node.op_type for node in downgrade_opset(build([x], {"y": op.Swish(x)}), 21).graph.node]
    ['CastLike', 'Mul', 'Sigmoid', 'Mul']
    """
    loaded = load(model)
    outputs = list(loaded.outputs.values())
    while any(_is_newer(node, newest) for node in walk_nodes(topological(outputs))):
        outputs = rewrite(outputs, {}, lambda node, inputs: _downgrade_node(node, inputs, newest))
    return _build_like(model, loaded, outputs)


def _is_newer(node: Node, newest: int) -> bool:
    """Whether the form of an operator is newer than an opset."""
    return not node.domain and node.schema.since_version > newest


def _downgrade_node(node: Node, inputs: Sequence[Value | None], newest: int) -> list[Value] | None:
    """The outputs of a node in an older form of the operator, or its function body, which may hold newer ones again."""
    if not _is_newer(node, newest):
        return None
    make = partial(make_node, arguments=inputs, n_outputs=len(node.outputs), name=node.name)
    if defs.has(node.op_type, newest, ""):
        old = schema_of(node.op_type, "", newest)
        attributes = {k: v for k, v in node.attributes.items()
                      if k in old.attributes or v != defaults(node.schema).get(k)}
        try:
            return list(make(old, attributes=attributes).outputs)
        except GraphError as e:
            raise ModelError(f"{node!r} cannot be written for opset {newest}, the runtime's newest: {e}") from None
    body = expand_body(make(node.schema, attributes=node.attributes))
    if body is None:
        raise ModelError(
            f"{node!r} is of opset {node.schema.since_version}, this runtime knows opsets up to {newest}, and ONNX has "
            f"no body for it in older operators; install a newer onnxruntime."
        )
    return body

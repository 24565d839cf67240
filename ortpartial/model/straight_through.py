"""The straight-through estimator: gradients pass through the rounding of a quantization as through the identity.

An integer of a quantized graph stands for a real number. The formula of an operator computes it in the unit of the
integer, before it is rounded to it; its gradient becomes the gradient of the integer, and at last of the float that a
dequantization makes of it. Computed values stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, MutableMapping, Sequence

from onnx import ModelProto, TensorProto

from ortpartial.annotations import Inputs
from ortpartial.exceptions import GraphError, NoGradientError
from ortpartial.graph import (
    OPSET,
    Node,
    Value,
    accepted_types,
    cast,
    make_node,
    op,
    parameter,
    replace_gradient,
    schema_of,
)

__all__ = ["QUANTIZERS", "can_pass_straight_through", "is_marked", "is_quantized", "mark_straight_through",
           "pass_straight_through", "stands_for", "to_real"]

#: From the real numbers that the inputs of an operator stand for to the real numbers of its outputs.
Formula = Callable[..., "Value | Sequence[Value | None] | None"]

#: The formulas by domain and name of an operator.
FORMULAS: dict[tuple[str, str], Formula] = {}

#: The key of the metadata of a file whose gradients pass straight through.
_MARK = "ortpartial.straight_through"

#: Operators that round real numbers to a quantization.
QUANTIZERS = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QuantizeLinear"})

#: Element types of quantizations, and further integers: Cast of onnxruntime 1.19.2 takes no integers of 4 bits.
_WHOLE = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32})
_NARROW = frozenset(TensorProto.DataType.Value(t[len("tensor(") : -1].upper())
                    for t in accepted_types(schema_of("DequantizeLinear", "", OPSET), 0)) - _WHOLE


def stands_for(*op_types: str, domain: str = "") -> Callable[[Formula], Formula]:
    """Register the formula of real numbers that operators stand for.

    The function takes the inputs as positional parameters, and attributes, ``node`` or ``y``, the first output, as
    keyword-only parameters.
    """

    def register(formula: Formula) -> Formula:
        FORMULAS.update({(domain, o): formula for o in op_types})
        return formula

    return register


def pass_straight_through(node: Node, reals: MutableMapping[Value, Value]) -> list[Value]:
    """The outputs of a node with gradients that pass through rounding where nothing is clipped, and are 0 beyond.

    Parameters
    ----------
    node : Node
        A node of a quantized graph, or any other.
    reals : dict of Value to Value
        The real numbers that the integers of the nodes before it stand for; its own outputs are added.

    Returns
    -------
    list of Value

    Examples
    --------
    >>> from ortpartial.autodiff import grad
    >>> from ortpartial.graph import variable
    >>> x, reals = variable("x", "float32", ["N"]), {}
    >>> [q] = pass_straight_through(op.QuantizeLinear(x, 0.5).node, reals)
    >>> [y] = pass_straight_through(op.DequantizeLinear(q, 0.5).node, reals)
    >>> (dx,) = grad(y, [x])
    """
    ys = list(node.outputs)
    if node.op_type not in QUANTIZERS and not any(x in reals for x in node.inputs):
        return ys
    inputs = [v if v is None else reals[v] if v in reals else to_real(v) for v in node.inputs]
    try:
        xs = list(apply_formula(node, inputs))
    except (GraphError, NoGradientError):
        return ys  # It is not defined for real numbers, and no gradient passes.
    for i, x in enumerate(xs):
        if x is not None and ys[i].is_float:
            ys[i] = replace_gradient(ys[i], cast(x, ys[i]))
        elif x is not None:
            reals[ys[i]] = replace_gradient(to_real(ys[i]), x)
    return ys


def apply_formula(node: Node, inputs: Inputs) -> Sequence[Value | None]:
    """The values that the outputs of a node stand for, from the values of its inputs."""
    formula = FORMULAS.get((node.domain, node.op_type))
    if formula is None:
        return _apply_same(node, inputs)
    values = {"node": node, "y": node.outputs[0]}
    names = [p.name for p in inspect.signature(formula).parameters.values() if p.kind is p.KEYWORD_ONLY]
    result = formula(*inputs, **{n: values[n] if n in values else node.attribute(n) for n in names})
    return [result] if result is None or isinstance(result, Value) else result


def _apply_same(node: Node, inputs: Inputs) -> Sequence[Value | None]:
    """The operator itself, of real numbers: it moves, selects or adds up integers, as MaxPool and Reshape do."""
    schema = node.schema
    kinds = [schema.outputs[min(i, len(schema.outputs) - 1)].type_str for i in range(len(node.outputs))]
    same = [parameter(schema, i).type_str == kinds[0] for i in range(len(inputs))]
    if node.bodies or node.is_opaque or not any(same):
        return []
    arguments = [x if s else v for x, v, s in zip(inputs, node.inputs, same, strict=True)]
    xs = make_node(schema, arguments, node.attributes, n_outputs=len(node.outputs)).outputs
    return [x if kind == kinds[0] else None for x, kind in zip(xs, kinds, strict=True)]


def mark_straight_through(proto: ModelProto) -> None:
    """Let gradients of a model pass straight through rounding wherever it is loaded from its file.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; an entry is added to its metadata.

    Examples
    --------
    >>> proto = ModelProto()
    >>> mark_straight_through(proto)
    >>> is_marked(proto)
    True
    """
    if not is_marked(proto):
        proto.metadata_props.add(key=_MARK, value="1")


def is_marked(proto: ModelProto) -> bool:
    """Whether a model is marked by `mark_straight_through`."""
    return any(p.key == _MARK for p in proto.metadata_props)


def can_pass_straight_through(node: Node) -> bool:
    """Whether gradients pass through the rounding that a node makes or reads, if the model is loaded so.

    Parameters
    ----------
    node : Node
        A node of a quantized graph.

    Returns
    -------
    bool

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> can_pass_straight_through(op.QuantizeLinear(variable("x", "float32", ["N"]), 0.5).node)
    True
    """
    reals = {x: to_real(x) for x in node.reads if not x.is_float}
    n = len(reals)
    return pass_straight_through(node, reals) != list(node.outputs) or len(reals) > n


def is_quantized(node: Node) -> bool:
    """Whether a node is of an operator that has scales or integers of a quantization.

    Parameters
    ----------
    node : Node
        Any node.

    Returns
    -------
    bool

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> is_quantized(op.Relu(variable("x", "float32", ["N"])).node)
    False
    """
    return (node.domain, node.op_type) in FORMULAS and node.op_type != "Cast"


def to_real(v: Value) -> Value:
    """Numbers of a quantization in float32; other numbers stay as they are."""
    kind = v.type.tensor_type.elem_type
    if kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16) or kind in _WHOLE:
        return op.Cast(v, to=TensorProto.FLOAT)
    return op.DequantizeLinear(v, 1.0) if kind in _NARROW else v

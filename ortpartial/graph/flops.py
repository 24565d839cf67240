"""Floating-point operations of expressions, counted from the shapes of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

from .traits import VIEWS
from .values import Node, Value

__all__ = ["count_flops", "count_runs"]


def count_flops(nodes: Iterable[Node]) -> int:
    """How many floating-point operations nodes take, with 1 for every size that is not known.

    An element of an elementwise operator counts 1, whatever its function, an element that is reduced 1, a product that
    is summed 2, as in torch, and moves or selections of numbers nothing. Operators of whole numbers do not count. A
    body counts as often as it runs, as far as that is known; of If counts the dearer branch.

    Parameters
    ----------
    nodes : iterable of Node
        Nodes, such as `topological` yields.

    Returns
    -------
    int

    Examples
    --------
    >>> from ortpartial.graph import op, topological, variable
    >>> x, w = variable("x", "float32", [4, 10]), variable("w", "float32", [10, 3])
    >>> count_flops(topological([x @ w])), count_flops(topological([op.Softmax(x @ w)]))
    (240, 300)
    """
    return sum(map(_count, nodes))


def count_runs(node: Node) -> int:
    """How often a body of a node runs: as a Loop says, or by the length of the inputs of a Scan.

    Parameters
    ----------
    node : Node
        A node with bodies.

    Returns
    -------
    int
        1 where it is not known.
    """
    if node.op_type == "Scan":
        axis = (node.attributes.get("scan_input_axes") or [0])[0]
        return _shape(node.inputs[-node.attributes["num_scan_inputs"]])[axis]
    trips = node.inputs[0]
    return int(trips.array) if node.op_type == "Loop" and trips is not None and trips.array is not None else 1


def _count(node: Node) -> int:
    """The operations of a node."""
    if node.bodies:
        flops = [count_flops(body.nodes) for body in node.bodies]
        return max(flops) if node.op_type == "If" else sum(flops) * count_runs(node)
    if node.op_type in _FREE or not any(map(_is_float, (*node.reads, *node.outputs))):
        return 0
    if node.op_type in _FORMULAS:
        return _FORMULAS[node.op_type](node)
    if node.op_type in _PER_INPUT or node.op_type.startswith(("Arg", "Global", "Reduce")):
        return _PER_INPUT.get(node.op_type, 1) * _size(node.inputs[0])
    return _size(node.outputs[0])


def _is_float(v: Value) -> bool:
    return v.type.HasField("tensor_type") and v.is_float


def _shape(v: Value | None) -> list[int]:
    """A shape with 1 for sizes that are not known."""
    return [d if isinstance(d, int) else 1 for d in (v.shape if v is not None else None) or ()]


def _size(v: Value | None) -> int:
    return prod(_shape(v))


def _count_matmul(node: Node) -> int:
    return 2 * _size(node.outputs[0]) * _shape(node.inputs[0])[-1]


def _count_gemm(node: Node) -> int:
    inner = _shape(node.inputs[0])[0 if node.attribute("transA") else 1]
    return (2 * inner + (len(node.inputs) > 2)) * _size(node.outputs[0])


def _count_einsum(node: Node) -> int:
    """A product of the sizes of all labels for each operand, the axes of an ellipsis among them."""
    sizes: dict[str, int] = {}
    terms = node.attribute("equation").replace(" ", "").split("->")[0].split(",")
    for term, x in zip(terms, node.inputs, strict=True):
        shape = _shape(x)
        before, dots, after = term.partition("...")
        hidden = [f"...{i}" for i in range(len(shape) - len(before) - len(after), 0, -1)] if dots else []
        for label, size in zip([*before, *hidden, *after], shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    return len(terms) * prod(sizes.values())


def _count_conv(node: Node) -> int:
    window = _size(node.inputs[1]) // _shape(node.inputs[1])[0]
    return (2 * window + (len(node.inputs) > 2)) * _size(node.outputs[0])


def _count_conv_transpose(node: Node) -> int:
    window = _size(node.inputs[1]) // _shape(node.inputs[1])[0]
    return 2 * window * _size(node.inputs[0]) + (len(node.inputs) > 2) * _size(node.outputs[0])


def _count_pool(node: Node) -> int:
    return prod(node.attribute("kernel_shape")) * _size(node.outputs[0])


#: Of recurrent operators the number of gates, and the operations for each unit that are no products: activations and
#: the joining of the gates.
_GATES = {"RNN": (1, 1), "GRU": (3, 8), "LSTM": (4, 9)}


def _count_recurrent(node: Node) -> int:
    gates, others = _GATES[node.op_type]
    directions, _, n_in = _shape(node.inputs[1])
    units, has_bias = _shape(node.inputs[2])[-1], len(node.inputs) > 3 and node.inputs[3] is not None
    rows = _size(node.inputs[0]) // n_in
    return directions * rows * units * (gates * (2 * n_in + 2 * units + 1 + has_bias) + others)


def _count_attention(node: Node) -> int:
    """Scores, scaled and softmaxed, and the mean of values that they weigh."""
    q, k, v = map(_shape, node.inputs[:3])
    if len(q) == 3:  # (batch, length, heads · size)
        heads = node.attribute("q_num_heads")
        rows, n_q, d_v = q[0], q[1], v[2] // node.attribute("kv_num_heads")
        d, n_k = q[2] // heads, k[1]
    else:
        (rows, heads, n_q, d), n_k, d_v = q, k[2], v[3]
    optional = [*node.inputs[3:], None, None]
    n_k += _shape(optional[1])[2] if optional[1] is not None else 0
    return rows * heads * n_q * n_k * (2 * d + 2 * d_v + 1 + _PER_INPUT["Softmax"] + (optional[0] is not None))


#: Operators that move or select numbers, or return their number.
_FREE = VIEWS | {
    "Bernoulli", "Cast", "CastLike", "CenterCropPad", "Compress", "Concat", "Constant", "ConstantOfShape",
    "DepthToSpace", "Dropout", "Expand", "EyeLike", "Gather", "GatherElements", "GatherND", "MaxUnpool", "NonZero",
    "OneHot", "Pad", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "ReverseSequence",
    "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "TensorScatter", "Tile",
    "Transpose", "Trilu",
}

_FORMULAS: dict[str, Callable[[Node], int]] = {
    "Attention": _count_attention, "AveragePool": _count_pool, "Conv": _count_conv,
    "ConvTranspose": _count_conv_transpose, "Einsum": _count_einsum, "GRU": _count_recurrent, "Gemm": _count_gemm,
    "LSTM": _count_recurrent, "LpPool": _count_pool, "MatMul": _count_matmul, "MaxPool": _count_pool,
    "RNN": _count_recurrent,
}

#: Operations for each element that is read: a mean, a difference, a square, their mean, and three steps that scale and
#: shift, for example. A BatchNormalization that does not train scales and shifts.
_PER_INPUT = {
    "BatchNormalization": 2, "CumSum": 1, "GroupNormalization": 7, "InstanceNormalization": 7, "LayerNormalization": 7,
    "LogSoftmax": 5, "LpNormalization": 3, "MeanVarianceNormalization": 5, "NegativeLogLikelihoodLoss": 1,
    "RMSNormalization": 4, "Softmax": 5, "SoftmaxCrossEntropyLoss": 5, "TopK": 1,
}

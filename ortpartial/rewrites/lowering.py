"""Lowering: operators without a float64 kernel, or younger than the runtime, in operators that it has."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from onnx import ModelProto, TensorProto, defs

from ortpartial.autodiff import forwards, lrn
from ortpartial.exceptions import GraphError, ModelError, NoGradientError
from ortpartial.graph import (
    Node,
    Value,
    build,
    cast,
    defaults,
    make_node,
    op,
    rewrite,
    schema_of,
    topological,
    walk_nodes,
)
from ortpartial.model import expand_body, load, walk_graphs

from .im2col import average, convolution, joined, transposed_convolution

__all__ = ["LOWERED", "downgrade_opset", "lower"]


def spatial(x: Value) -> list[int]:
    """The axes behind batch and channel."""
    return list(range(2, x.rank))


Formula = Callable[..., "Value | Sequence[Value]"]

#: erf x = x · (its series in x²) where |x| < 1; as many terms as float64 has use for.
_NEAR = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(18)]


def _scaled(t: float) -> float:
    """e^(x²) (1 - erf x) at the x from 1 to 6 of which t = (48 / (x + 2) - 11) / 5."""
    x = 48 / (5 * t + 11) - 2
    return math.exp(x * x) * math.erfc(x)


#: The polynomial in t that agrees with it at Chebyshev's points.
_FAR = chebyshev.cheb2poly(chebyshev.chebinterpolate(np.vectorize(_scaled), 14)).tolist()


def _polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """By Horner's scheme."""
    *others, b, a = coefficients
    y = a * x + b
    for c in reversed(others):
        y = y * x + c
    return y


def erf(x: Value) -> Value:
    """erf x with an error below 1e-15 of it; beyond 6 it is 1."""
    a = op.Abs(x)
    far = op.Clip(a, 1.0, 6.0)
    near = x * _polynomial(_NEAR, op.Min(a, 1.0) * op.Min(a, 1.0))
    beyond = op.Sign(x) * (1 - op.Exp(-(far * far)) * _polynomial(_FAR, (48 / (far + 2) - 11) / 5))
    return op.Where(a < 1, near, beyond)


#: Operators without a float64 kernel in onnxruntime 1.19.2 and 1.31.1, each in operators that have one, exactly.
LOWERED: dict[str, Formula] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), forwards),
    "AveragePool": average,
    "Col2Im": joined,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "Elu": lambda x, *, alpha: op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1),
    "Erf": erf,
    "GlobalAveragePool": lambda x: op.ReduceMean(x, spatial(x)),
    "GlobalMaxPool": lambda x: op.ReduceMax(x, spatial(x)),
    "HardSigmoid": lambda x, *, alpha, beta: op.Min(op.Max(alpha * x + beta, 0), 1),
    "LRN": lrn,
    "LeakyRelu": lambda x, *, alpha: op.Max(x, 0) + alpha * op.Min(x, 0),
    "Mean": lambda *x: op.Sum(*x) / len(x),
    "Selu": lambda x, *, alpha, gamma: gamma * (op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1)),
    "Softplus": lambda x: op.Max(x, 0) + op.Log(1 + op.Exp(-op.Abs(x))),
    "Softsign": lambda x: x / (1 + op.Abs(x)),
    "ThresholdedRelu": lambda x, *, alpha: x * cast(x > alpha, x),
}


def lower(model: ModelProto) -> ModelProto:
    """The model with operators that have no float64 kernel written in operators that have one.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; it is not written to.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to do.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float64", ["N"])
    >>> [node.op_type for node in lower(build([x], {"y": op.Mean(x, x)})).graph.node]
    ['Sum', 'Div']
    """
    nodes = (node for graph in walk_graphs(model.graph) for node in graph.node)
    if not any(node.op_type in LOWERED and not node.domain for node in nodes) or not _has_float64(model):
        return model
    try:
        loaded = load(model)
    except ModelError:  # The runtime may read what we do not; if not, it says why.
        return model
    outputs = list(loaded.outputs.values())
    written: list[Node] = []
    before = -1
    while len(written) != before:  # What is written in place of a node may lack a kernel as well.
        before = len(written)
        outputs = rewrite(outputs, {}, lambda node, inputs: _lowered(node, inputs, written))
    if not written:
        return model
    return build(loaded.inputs, dict(zip(loaded.outputs, outputs, strict=True)), name=model.graph.name)


def _lowered(node: Node, inputs: Sequence[Value | None], written: list[Node]) -> list[Value] | None:
    """The outputs of a node in other operators; None where it is left as it is."""
    if node.op_type not in LOWERED or node.domain or node.outputs[0].dtype != np.float64:
        return None
    try:
        found = _apply(LOWERED[node.op_type], node, inputs)
    except NoGradientError:  # Its padding depends on sizes that are not known: the runtime names what it lacks.
        return None
    written.append(node)
    return [found] if isinstance(found, Value) else list(found)


def _apply(formula: Formula, node: Node, inputs: Sequence[Any]) -> Value | Sequence[Value]:
    """The formula of the node's inputs, of itself, and of those attributes that it asks for."""
    asked = [p.name for p in inspect.signature(formula).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return formula(*inputs, **{k: node if k == "node" else node.attribute(k) for k in asked})


def _has_float64(model: ModelProto) -> bool:
    """Whether anything that is declared is float64, or something is cast to it."""
    found: set[int] = set()
    for graph in walk_graphs(model.graph):
        found |= {v.type.tensor_type.elem_type for v in [*graph.input, *graph.output, *graph.value_info]}
        found |= {a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
        found |= {t.data_type for t in graph.initializer}
    return TensorProto.DOUBLE in found


def downgrade_opset(model: ModelProto, newest: int) -> ModelProto:
    """The model in the operators that there were at an opset: in their form of then, or by their bodies.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; it is not written to.
    newest : int
        The opset, 21 or later.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An operator is younger and has no body; the message names the node.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> [node.op_type for node in downgrade_opset(build([x], {"y": op.Swish(x)}), 21).graph.node]
    ['CastLike', 'Mul', 'Sigmoid', 'Mul']
    """
    loaded = load(model)
    outputs = list(loaded.outputs.values())
    while any(_is_young(node, newest) for node in walk_nodes(topological(outputs))):
        outputs = rewrite(outputs, {}, lambda node, inputs: _older(node, inputs, newest))
    return build(loaded.inputs, dict(zip(loaded.outputs, outputs, strict=True)), name=model.graph.name)


def _is_young(node: Node, newest: int) -> bool:
    """Whether the form of an operator is younger than an opset."""
    return not node.domain and node.schema.since_version > newest


def _older(node: Node, inputs: Sequence[Value | None], newest: int) -> list[Value] | None:
    """The outputs of a node in an older form of the operator, or by its body, which may need another look."""
    if not _is_young(node, newest):
        return None
    make = partial(make_node, arguments=inputs, n_outputs=len(node.outputs), name=node.name)
    if defs.has(node.op_type, newest, ""):
        old = schema_of(node.op_type, "", newest)
        given = {k: v for k, v in node.attributes.items() if k in old.attributes or v != defaults(node.schema).get(k)}
        try:
            return list(make(old, attributes=given).outputs)
        except GraphError as e:
            raise ModelError(f"{node!r} cannot be written for opset {newest}, the runtime's newest: {e}") from None
    body = expand_body(make(node.schema, attributes=node.attributes))
    if body is None:
        raise ModelError(
            f"{node!r} is of opset {node.schema.since_version}, this runtime knows opsets up to {newest}, and ONNX has "
            f"no body for it in older operators; install a newer onnxruntime."
        )
    return body

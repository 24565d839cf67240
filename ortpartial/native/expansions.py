"""Operators that are written out in simpler operators before a step is translated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ortpartial.autodiff import expand_recurrent
from ortpartial.exceptions import GraphError, UntranslatableError
from ortpartial.graph import REFUSING, Node, Value, cast, constant, make_node, op, rewrite
from ortpartial.limits import limits
from ortpartial.model import expand_body, guard_bound
from ortpartial.runtime import compute_node

from .einsum import expand_einsum
from .translation import TRANSLATORS
from .types import BFLOAT16

__all__ = ["expand"]


def expand(outputs: Mapping[str, Value]) -> dict[str, Value]:
    """The outputs of a step in operators that have translators, as far as there are such.

    Parameters
    ----------
    outputs : dict of str to Value
        The step.

    Returns
    -------
    dict of str to Value

    Raises
    ------
    UntranslatableError
        Sizes that are known now do not fit an operator.
    """
    try:
        return dict(zip(outputs, rewrite(list(outputs.values()), {}, _expand), strict=True))
    except GraphError as e:  # The runtime takes a single element for a scalar; shape inference does not.
        raise UntranslatableError(f"With known sizes, an operator is refused: {e}") from e


def _expand(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    """A node in simpler operators, with these inputs; None to keep it."""
    if (results := _fold(node, inputs)) is not None:
        return results
    formula = _FORMULAS.get(node.op_type) if not node.domain else None
    is_simple = formula is None and ((node.domain, node.op_type) in TRANSLATORS or node.bodies)
    if is_simple and (node.bodies or node.outputs[0].is_static):
        return None
    # Sizes that are known now give the outputs shapes.
    twin = make_node(node.schema, inputs, node.attributes, n_outputs=len(node.outputs), name=node.name)
    if not is_simple and node.op_type in REFUSING:  # Its kernel checks, and its expansion does not.
        twin = make_node(node.schema, guard_bound(node, twin.inputs), node.attributes, n_outputs=len(node.outputs),
                         name=node.name)
    if is_simple:
        return twin.outputs if twin.outputs[0].is_static else None
    results = expand_body(twin) if formula is None else formula(twin)
    if results is None:
        return None
    results = [results] if isinstance(results, Value) else list(results)
    cut = [v for v in twin.inputs if v is not None]
    return rewrite(results, {}, _expand, cut)


def _fold(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
    """The outputs of a node that depends on constants alone, or on shapes, as constants."""
    if not _may_fold(node):
        return None
    if node.op_type in ("Shape", "Size") and not node.domain and (x := inputs[0]) is not None and x.is_static:
        shape = x.shape or ()
        part = shape[slice(node.attribute("start") or 0, node.attribute("end"))]
        return [constant(np.array(prod(shape) if node.op_type == "Size" else part, np.int64))]  # type: ignore[arg-type]
    reads = [v for v in inputs if v is not None]
    if not all(v.array is not None for v in reads):
        return None
    twin = make_node(node.schema, inputs, node.attributes, n_outputs=len(node.outputs), name=node.name)
    if not all(y.is_static and prod(y.shape or ()) <= limits().translated_constant for y in twin.outputs):  # type: ignore[arg-type]
        return None
    numbers = {v: v.array for v in reads}
    return [constant(a) for a in compute_node(twin, twin.outputs, numbers, 0)]


def _may_fold(node: Node) -> bool:
    """Whether the runtime computes the outputs of a node of constants: no array of bfloat16 is read back from it."""
    return not (node.is_random or node.bodies or any(y.dtype == BFLOAT16 for y in node.outputs))


def _log_softmax(node: Node) -> Value:
    x, axis = node.reads[0], [node.attribute("axis")]
    centered = x - op.ReduceMax(x, axis)
    return centered - op.Log(op.ReduceSum(op.Exp(centered), axis))


def _softmax(node: Node) -> Value:
    x, axis = node.reads[0], [node.attribute("axis")]
    powers = op.Exp(x - op.ReduceMax(x, axis))
    return powers / op.ReduceSum(powers, axis)


def _layer_normalization(node: Node) -> list[Value]:
    x, scale, *bias = (v for v in node.inputs if v is not None)
    axes = list(range(node.attribute("axis") % x.rank, x.rank))
    mean = op.ReduceMean(x, axes)
    centered = x - mean
    factor = 1 / op.Sqrt(op.ReduceMean(centered * centered, axes) + constant(node.attribute("epsilon"), x.dtype))
    y = centered * factor * scale
    return [y + bias[0] if bias else y, mean, factor]


def _batch_normalization(node: Node) -> list[Value] | None:
    x, scale, bias, mean, variance = node.reads
    if node.attribute("training_mode"):
        return None
    shape = [-1, *[1] * (x.rank - 2)]
    factor = scale / op.Sqrt(variance + constant(node.attribute("epsilon"), variance.dtype))
    return [x * op.Reshape(factor, shape) + op.Reshape(bias - mean * factor, shape)]


def _reduce_log_sum(node: Node) -> Value:
    x, *axes = node.inputs
    settings = {n: node.attribute(n) for n in ("keepdims", "noop_with_empty_axes")}
    return op.Log(op.ReduceSum(x if node.op_type == "ReduceLogSum" else op.Exp(x), *axes, **settings))


def _elu(node: Node) -> Value:
    (x,) = node.reads
    return op.Where(x < 0, constant(node.attribute("alpha"), x.dtype) * (op.Exp(op.Min(x, zero(x))) - 1), x)


def _gelu(node: Node) -> Value:
    (x,) = node.reads
    if node.attribute("approximate") == "tanh":
        return 0.5 * x * (1 + op.Tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + op.Erf(x * np.sqrt(0.5)))


def _pad(node: Node) -> Value | None:
    """Padding that repeats elements, or cuts them off, as a choice of places; None for other padding."""
    x, pads, value, axes = (*node.inputs, None, None)[:4]
    if x is None or pads is None or pads.array is None or (axes is not None and axes.array is None):
        return None
    counts, mode = pads.array, node.attribute("mode")
    numbers = range(x.rank) if axes is None or axes.array is None else [int(a) % x.rank for a in axes.array]
    cut, added = np.minimum(counts, 0).reshape(2, -1), np.maximum(counts, 0)
    if mode == "constant" and not cut.any():
        return None
    for i, axis in enumerate(numbers):
        size, pair = int(x.shape[axis]), counts.reshape(2, -1)[:, i]  # type: ignore[index, arg-type]
        kept = np.arange(-cut[0, i], size + cut[1, i])
        places = kept if mode == "constant" else np.pad(kept, np.maximum(pair, 0), mode=mode)
        x = op.Gather(x, constant(places), axis=axis)
    return op.Pad(x, constant(added), value, axes) if mode == "constant" else x


def _dropout(node: Node) -> list[Value] | None:
    """Dropout in evaluation; a step's random numbers have been written out."""
    x, _, training = (*node.inputs, None, None)[:3]
    if x is None or (training is not None and (training.array is None or training.array.any())):
        return None
    return [op.Identity(x), op.ConstantOfShape(op.Shape(x), value=np.array([True]))]


def _hardmax(node: Node) -> Value:
    (x,), axis = node.reads, node.attribute("axis")
    depth = op.Slice(op.Shape(x), [axis], [axis + 1 or x.rank])
    return op.OneHot(op.ArgMax(x, axis=axis, keepdims=0), depth, constant(np.array([0, 1], x.dtype)), axis=axis)


def _lp_normalization(node: Node) -> Value:
    (x,), norm = node.reads, op.ReduceL1 if node.attribute("p") == 1 else op.ReduceL2
    length = norm(x, [node.attribute("axis")])
    return op.Where(op.Equal(length, zero(x)), zero(x), x / length)


def _instance_normalization(node: Node) -> Value:
    x, scale, bias = node.reads
    axes = list(range(2, x.rank))
    centered = x - op.ReduceMean(x, axes)
    variance = op.ReduceMean(centered * centered, axes) + constant(node.attribute("epsilon"), x.dtype)
    scale, bias = (op.Unsqueeze(v, [n - 1 for n in axes]) for v in (scale, bias))
    return centered / op.Sqrt(variance) * scale + bias


def zero(x: Value) -> Value:
    """0 in the dtype of x."""
    return cast(constant(0.0, np.float32), x)


#: By operator, its form in simpler operators; function bodies serve the others.
_FORMULAS: dict[str, Callable[[Node], Any]] = {
    "BatchNormalization": _batch_normalization, "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax, "Softmax": _softmax,
    "ReduceLogSum": _reduce_log_sum, "ReduceLogSumExp": _reduce_log_sum, "Elu": _elu, "Gelu": _gelu,
    "Dropout": _dropout, "Einsum": expand_einsum, "Pad": _pad, "Hardmax": _hardmax,
    "LpNormalization": _lp_normalization, "InstanceNormalization": _instance_normalization,
    **{name: lambda node: expand_recurrent(*node.inputs, node=node) for name in ("RNN", "GRU", "LSTM")}}

"""The weight update w - η · step, fused into the operators of the step; decay of states; bias correction 1 - βᵏ."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeGuard

import ml_dtypes
import numpy as np

from ortpartial.graph import (
    OPSET,
    Node,
    Subgraph,
    Value,
    cast,
    constant,
    make_node,
    op,
    rewrite,
    schema_of,
    topological,
)
from ortpartial.limits import limits

__all__ = ["apply_step", "count_from", "decay", "drop_flushes", "one_minus_power", "share_flushes"]

#: Batches between flushes: a flush takes as long as some products, with denormals as long as ten or more.
_FLUSH_EVERY = 32

#: The name of an If that flushes.
_FLUSH = "flush_denormals"


def count_from(start: int, k: Value) -> Value:
    """The number of the batch since an optimizer replaced another; k itself in a training from the start.

    Parameters
    ----------
    start : int
        The last batch of the former optimizer.
    k : Value
        The number of the batch, an int64 scalar.

    Returns
    -------
    Value
    """
    # A training that starts again with this graph counts from its own start.
    return op.Where(k > start, k - start, k) if start else k


def decay(beta: float | Value, s: Value, k: Value) -> Value:
    """βs, where every 32nd batch turns the denormal numbers of s, in float32 numbers below 1.2e-38, into 0.

    Once gradients are 0, a state that decays becomes denormal and stays so, as 0.9 n rounds to n where n is less than
    five units in the last place; processors take ten to a hundred times as long for such numbers. A flush in every
    batch would slow down all trainings. The time of a flush follows from k alone, so that all engines compute the same.

    float16 is left alone: its denormals, below 6.1e-5, occur in any training, and onnxruntime computes it in float32.

    Parameters
    ----------
    beta : float or Value
        β, a number or a scalar of the dtype of s.
    s : Value
        The state of an optimizer.
    k : Value
        The number of the batch, an int64 scalar.

    Returns
    -------
    Value

    Examples
    --------
    >>> from ortpartial.graph import build, variable
    >>> k, m = variable("k", "int64", []), variable("m", "float32", [3])
    >>> [node.op_type for node in build([k, m], {"decayed": decay(0.9, m, k)}).graph.node]
    ['Mod', 'Equal', 'If']
    """
    if s.dtype == np.float16:
        return beta * s
    tiny = float(ml_dtypes.finfo(s.dtype).tiny)
    flushed = Subgraph.of(lambda: beta * op.Where(op.Abs(s) < tiny, 0.0, s))
    return _flush_if(op.Equal(op.Mod(k, _FLUSH_EVERY), 0), flushed, Subgraph.of(lambda: beta * s))[0]


def _flush_if(due: Value, flushed: Subgraph, plain: Subgraph) -> tuple[Value, ...]:
    """The values of either branch."""
    branches = {"then_branch": flushed, "else_branch": plain}
    return make_node(schema_of("If", "", OPSET), [due], branches, name=_FLUSH).outputs


def share_flushes(values: Sequence[Value]) -> list[Value]:
    """The updates of several weights, in which small weights flush in a common If: each takes most of a microsecond.

    Parameters
    ----------
    values : sequence of Value
        Weights and states after a step.

    Returns
    -------
    list of Value
    """
    small = [node for node in _find_flushes(values) if all(_is_small(y) for y in node.outputs)]
    if len(small) < 2:
        return list(values)
    branches = [Subgraph((), [y for body in bodies for y in body.outputs],
                         frozenset(node for body in bodies for node in body.own))
                for bodies in ([node.attributes[name] for node in small] for name in ("then_branch", "else_branch"))]
    shared = _flush_if(small[0].reads[0], *branches)
    return rewrite(values, dict(zip([y for node in small for y in node.outputs], shared, strict=True)))


def drop_flushes(values: Sequence[Value]) -> list[Value]:
    """The updates of several weights without flushes, for devices: denormals do not slow them, and an If stops them.

    Parameters
    ----------
    values : sequence of Value
        Weights and states after a step.

    Returns
    -------
    list of Value
    """
    plain = {y: x for node in _find_flushes(values)
             for y, x in zip(node.outputs, node.attributes["else_branch"].outputs, strict=True)}
    return rewrite(values, plain)


def _find_flushes(values: Sequence[Value]) -> list[Node]:
    """The nodes that flush."""
    return [node for node in topological(values) if node.name == _FLUSH]


def _is_small(v: Value) -> bool:
    """Whether a tensor has few elements."""
    sizes = [n for n in v.shape or (None,) if isinstance(n, int)]
    return len(sizes) == v.rank and prod(sizes) < limits().flush_elements


def apply_step(w: Value, eta: Value, step: Value) -> Value:
    """w - η · step, fused into the node that computes the step where possible.

    * s·a with a scalar s: w - (η·s)·a, where η·s is computed once for all weights.
    * The gradient of a Gather: scattered into the table itself, and not into zeros of its size.
    * A Gemm: η is its alpha, and w its addend where the product is added to it at once.
    * A sum of rows: a product with a row of η.

    Parameters
    ----------
    w : Value
        The weight.
    eta : Value
        η, a scalar.
    step : Value
        The step, of the shape of the weight.

    Returns
    -------
    Value
    """
    node = step.node
    if node is not None and node.op_type == "Mul" and node.inputs[0] is not None and node.inputs[0].rank == 0:
        return w - (eta * node.reads[0]) * node.reads[1]
    if node is not None and node.op_type == "ScatterElements" and _adds_to_zeros(node):
        settings = {name: node.attribute(name) for name in ("axis", "reduction")}
        return op.ScatterElements(w, node.inputs[1], -eta * node.reads[2], **settings)
    # The alpha of Gemm is a float32 in the specification, too coarse for float64.
    if eta.array is None or w.dtype != np.float32 or node is None:
        return w - eta * step
    if (rows := _match_sum_of_rows(node)) is not None:
        # Not the sum with -η: as an addend of the product, w would swallow small terms singly.
        return w - op.MatMul(constant(np.full((rows.shape or ())[:1], eta.array, w.dtype)), rows)
    if _is_plain_gemm(node):
        if _adds_at_once(node):
            return _scale_gemm(node, -float(eta.array), w)
        return w - _scale_gemm(node, float(eta.array))
    if node.op_type == "Reshape" and (inner := node.inputs[0]) is not None and _is_plain_gemm(inner.node):
        return w + op.Reshape(_scale_gemm(inner.node, -float(eta.array)), node.inputs[1]).stated(step.shape)
    return w - eta * step


def _is_plain_gemm(node: Node | None) -> TypeGuard[Node]:
    """Whether a node is a Gemm without an addend."""
    return node is not None and node.op_type == "Gemm" and len(node.inputs) == 2


def _adds_at_once(node: Node) -> bool:
    """Whether a Gemm computes its product before it adds it to its addend, so that this is rounded once.

    onnxruntime 1.19 to 1.32 adds a product of a single row in parts of two terms, and others in parts of 128 or more:
    an update of some units in the last place of a weight would be lost.
    """
    a, rows, depth = node.inputs[0], *((1, 0) if node.attribute("transA") else (0, 1))
    shape = (None, None) if a is None or a.shape is None else a.shape
    return isinstance(m := shape[rows], int) and isinstance(k := shape[depth], int) and (k == 1 or m > 1) and k <= 128


def _adds_to_zeros(node: Node) -> bool:
    """Whether a ScatterElements adds its updates to zeros."""
    zeros = node.inputs[0]
    if zeros is not None and zeros.node is not None and zeros.node.op_type == "Expand":
        zeros = zeros.node.inputs[0]
    is_zero = zeros is not None and zeros.array is not None and not zeros.array.any()
    return is_zero and node.attribute("reduction") == "add"


def _scale_gemm(node: Node, factor: float, *addend: Value) -> Value:
    """The product of a Gemm times a factor, plus an addend, if any."""
    settings = {name: node.attribute(name) for name in ("transA", "transB")}
    return op.Gemm(*node.inputs, *addend, alpha=factor * node.attribute("alpha"), **settings)


def _match_sum_of_rows(node: Node) -> Value | None:
    """The matrix whose rows, of a known number, a node sums; None for other nodes."""
    x, axes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type != "ReduceSum" or x is None or axes is None or axes.array is None or node.attribute("keepdims"):
        return None
    is_matrix = x.shape is not None and len(x.shape) == 2 and isinstance(x.shape[0], int)
    return x if is_matrix and axes.array.tolist() == [0] else None


def one_minus_power(beta: float, k: Value, like: Value) -> Value:
    """1 - βᵏ, computed in float64: in float32 1 - 0.999 has a relative error of 1e-5.

    Parameters
    ----------
    beta : float
        β.
    k : Value
        The number of the batch, an int64 scalar.
    like : Value
        A value of the dtype of the result.

    Returns
    -------
    Value
    """
    return cast(1 - op.Pow(constant(beta, np.float64), k), like)

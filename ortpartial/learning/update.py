"""The weight update w - η · step, fused into the operators of the step, and the bias correction 1 - βᵏ."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortpartial.graph import Node, Value, cast, constant, op

__all__ = ["count_from", "descend", "one_minus_power"]


def count_from(start: int, k: Value) -> Value:
    """The number of the batch since an optimizer took the place of another one; k itself in a training from the start.

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


def descend(w: Value, eta: Value, step: Value) -> Value:
    """w - η · step, fused into the node that computes the step where possible.

    * s·a with a scalar s: w - (η·s)·a, where η·s is computed once for all weights.
    * The gradient of a Gather: scattered into the table itself, and not into zeros of its size.
    * A Gemm: η is its alpha, w its addend.
    * A sum of rows: a product with a row of -η.

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
        return w - (eta * node.inputs[0]) * node.inputs[1]
    if node is not None and node.op_type == "ScatterElements" and _adds_to_zeros(node):
        settings = {name: node.attribute(name) for name in ("axis", "reduction")}
        return op.ScatterElements(w, node.inputs[1], -eta * node.inputs[2], **settings)
    # The alpha of Gemm is a float32 in the specification, too coarse for float64.
    if eta.array is None or w.dtype != np.float32 or node is None:
        return w - eta * step
    if (rows := _match_sum_of_rows(node)) is not None:
        return w + op.MatMul(constant(np.full((rows.shape or ())[:1], -eta.array, w.dtype)), rows)
    if _is_plain_gemm(node):
        return _scale_gemm(node, -float(eta.array), w)
    if node.op_type == "Reshape" and (inner := node.inputs[0]) is not None and _is_plain_gemm(inner.node):
        return w + op.Reshape(_scale_gemm(inner.node, -float(eta.array)), node.inputs[1]).stated(step.shape)
    return w - eta * step


def _is_plain_gemm(node: Node | None) -> bool:
    """Whether a node is a Gemm without an addend."""
    return node is not None and node.op_type == "Gemm" and len(node.inputs) == 2


def _adds_to_zeros(node: Node) -> bool:
    """Whether a ScatterElements adds its updates to zeros."""
    zeros = node.inputs[0]
    if zeros is not None and zeros.node is not None and zeros.node.op_type == "Expand":
        zeros = zeros.node.inputs[0]
    is_zero = zeros is not None and zeros.array is not None and not zeros.array.any()
    return is_zero and node.attribute("reduction") == "add"


def _scale_gemm(node: Any, factor: float, *addend: Value) -> Value:
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

"""How is w - η · step written in as few operators as there are, and 1 - βᵏ without losing digits?"""

from __future__ import annotations

from typing import Any

import numpy as np

from ortpartial.graph import Node, Value, cast, constant, op

__all__ = ["descend", "one_minus_power"]


def descend(w: Value, eta: Value, step: Value) -> Value:
    """w - η · step in fewer nodes where the step is a product of matrices, or the sum of rows, which is one as well.

    A Gemm has a factor and an addend itself; a sum of rows is the product with a vector that has the factor in it.
    Rows of a table that were picked are put back into the table, and not into zeros of its size.
    A factor of the step that is a number is multiplied by η, once for all weights.
    """
    node = step.node
    if node is not None and node.op_type == "Mul" and node.inputs[0] is not None and node.inputs[0].rank == 0:
        return w - (eta * node.inputs[0]) * node.inputs[1]
    if node is not None and node.op_type == "ScatterElements" and _is_sum_of_picked(node):
        settings = {name: node.attribute(name) for name in ("axis", "reduction")}
        return op.ScatterElements(w, node.inputs[1], -eta * node.inputs[2], **settings)
    # The factor is a float32 in the specification, too coarse for float64.
    if eta.array is None or w.dtype != np.float32 or node is None:
        return w - eta * step
    if (rows := _summed_rows(node)) is not None:
        return w + op.MatMul(constant(np.full((rows.shape or ())[:1], -eta.array, w.dtype)), rows)
    if _is_product(node):
        return _scaled(node, -float(eta.array), w)
    if node.op_type == "Reshape" and (inner := node.inputs[0]) is not None and _is_product(inner.node):
        return w + op.Reshape(_scaled(inner.node, -float(eta.array)), node.inputs[1]).stated(step.shape)
    return w - eta * step


def _is_product(node: Node | None) -> bool:
    """Whether a node is a Gemm without an addend."""
    return node is not None and node.op_type == "Gemm" and len(node.inputs) == 2


def _is_sum_of_picked(node: Node) -> bool:
    """Whether a node adds elements up where they belong, all others being 0."""
    zeros = node.inputs[0]
    if zeros is not None and zeros.node is not None and zeros.node.op_type == "Expand":
        zeros = zeros.node.inputs[0]
    zero = zeros is not None and zeros.array is not None and not zeros.array.any()
    return zero and node.attribute("reduction") == "add"


def _scaled(node: Any, factor: float, *addend: Value) -> Value:
    """A product times a factor, plus an addend where there is one."""
    settings = {name: node.attribute(name) for name in ("transA", "transB")}
    return op.Gemm(*node.inputs, *addend, alpha=factor * node.attribute("alpha"), **settings)


def _summed_rows(node: Node) -> Value | None:
    """The matrix, of a known number of rows, whose rows a node adds up."""
    x, axes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if node.op_type != "ReduceSum" or x is None or axes is None or axes.array is None or node.attribute("keepdims"):
        return None
    matrix = x.shape is not None and len(x.shape) == 2 and isinstance(x.shape[0], int)
    return x if matrix and axes.array.tolist() == [0] else None


def one_minus_power(beta: float, k: Value, like: Value) -> Value:
    """1 - βᵏ, in double precision as it is a small difference: 1 - 0.999 in float32 is off by 1e-5 of itself."""
    return cast(1 - op.Pow(constant(beta, np.float64), k), like)

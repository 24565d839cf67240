"""The straight-through estimator of quantization: gradients pass through rounding unchanged."""

from __future__ import annotations

import numpy as np

from ortpartial.graph import Node, Value, constant, op, stop_gradient

__all__ = ["pass_straight_through"]


def pass_straight_through(quantize: Node, y: Value) -> Value:
    """y with the gradient of x where x is in the range of its quantization, and 0 beyond.

    Parameters
    ----------
    quantize : Node
        QuantizeLinear of x.
    y : Value
        DequantizeLinear of that.

    Returns
    -------
    Value

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> q = op.QuantizeLinear(x, 0.5, constant(0, np.int8))
    >>> pass_straight_through(q.node, op.DequantizeLinear(q, 0.5, constant(0, np.int8)))
    <Value Add float32[N]>
    """
    x, scale, *zero = quantize.inputs
    q = quantize.outputs[0]
    if x is None or scale is None or quantize.attributes.get("block_size") or q.dtype.kind not in "iu":
        return y
    # The least and the largest number of q, dequantized, are the range of x.
    ends = (np.iinfo(q.dtype).min, np.iinfo(q.dtype).max)
    around, axis = (lambda v: v), quantize.attribute("axis")
    if scale.rank:
        sizes = [1] * x.rank
        sizes[axis] = -1
        around = lambda v: op.Reshape(v, constant(sizes, np.int64))  # noqa: E731 - one line of two branches
    point = around(op.Cast(zero[0], to=x.type.tensor_type.elem_type)) if zero and zero[0] is not None else 0.0
    low, high = ((constant(float(end), x.dtype) - point) * around(scale) for end in ends)
    inside = x * op.Cast(op.And(x >= low, x <= high), to=x.type.tensor_type.elem_type)
    return stop_gradient(y) + (inside - stop_gradient(inside))

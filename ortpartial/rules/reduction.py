"""How do gradients flow through sums, means and extremes over axes?"""

import math

from ..gradient import cast, no_gradient, shape_of, vjp
from ..graph import Value, op


def kept(v: Value, axes: Value | None, keepdims: int) -> Value:
    """What was reduced, with axes of size one where it was, so that it broadcasts against what it was reduced from."""
    if keepdims or axes is None or (axes.array is not None and axes.array.size == 0):
        return v
    return op.Unsqueeze(v, axes)


def spread(v: Value, x: Value) -> Value:
    """v repeated to the shape of x."""
    if v.shape is not None and v.shape == x.shape and None not in v.shape:
        return v
    return op.Expand(v, shape_of(x)).stated(x.shape)


def elements(x: Value) -> int | None:
    """How many elements x has, where all its sizes are known."""
    sizes = [n for n in x.shape or () if isinstance(n, int)]
    return math.prod(sizes) if x.is_static else None


def count(x: Value, y: Value, axes: Value | None) -> Value | int:
    """How many elements of x there are for each of y, which x was reduced to along axes."""
    if x.shape is not None and axes is not None and axes.array is not None:
        sizes = [n for i in axes.array.ravel() if isinstance(n := x.shape[i], int)]
        if len(sizes) == axes.array.size > 0:
            return math.prod(sizes)
    if (n := elements(x)) is not None and (m := elements(y)):
        return n // m
    # Not a division of integers, which kills onnxruntime 1.19.2 where y is empty.
    return op.Div(*(op.Cast(op.Size(v), to=x.type.tensor_type.elem_type) for v in (x, y)))


@vjp("ReduceSum")
def _(x, axes=None, *, dy, keepdims):
    return spread(kept(dy, axes, keepdims), x)


@vjp("ReduceMean")
def _(x, axes=None, *, y, dy, keepdims):
    return spread(kept(dy / count(x, y, axes), axes, keepdims), x)


@vjp("ReduceSumSquare")
def _(x, axes=None, *, dy, keepdims):
    return x * kept(2 * dy, axes, keepdims)


@vjp("ReduceL1")
def _(x, axes=None, *, dy, keepdims):
    return op.Sign(x) * kept(dy, axes, keepdims)


@vjp("ReduceL2")
def _(x, axes=None, *, y, dy, keepdims):
    # The norm of 0 has no gradient; 0 is what everybody takes.
    return x * kept(dy / (y + cast(op.Equal(y, 0), y)), axes, keepdims)


@vjp("ReduceLogSum")
def _(x, axes=None, *, y, dy, keepdims):
    return spread(kept(dy * op.Exp(-y), axes, keepdims), x)


@vjp("ReduceLogSumExp")
def _(x, axes=None, *, y, dy, keepdims):
    return op.Exp(x - kept(y, axes, keepdims)) * kept(dy, axes, keepdims)


@vjp("ReduceMax")
def _(x, axes=None, *, y, dy, keepdims, noop_with_empty_axes):
    return shared(x, axes, y, dy, keepdims, noop_with_empty_axes)


@vjp("ReduceMin")
def _(x, axes=None, *, y, dy, keepdims, noop_with_empty_axes):
    return shared(x, axes, y, dy, keepdims, noop_with_empty_axes)


def shared(x: Value, axes: Value | None, y: Value, dy: Value, keepdims: int, noop_with_empty_axes: int) -> Value:
    """dy to the elements that are equal to the extreme y, in equal shares."""
    mask = cast(op.Equal(x, kept(y, axes, keepdims)), dy)
    ties = op.ReduceSum(mask, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
    return mask * kept(dy / ties, axes, keepdims)


@vjp("CumSum")
def _(x, axis, *, dy, exclusive, reverse):
    return op.CumSum(dy, axis, exclusive=exclusive, reverse=1 - reverse)


no_gradient("ArgMax", "ArgMin", "Hardmax")

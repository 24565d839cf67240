"""Gradients of reductions: sums, means, extremes and products over axes, also cumulative."""

import math
from collections.abc import Callable

from ortpartial.graph import Value, cast, op, shape_of

from ..masks import gate, guard, scale
from ..ranges import at_least
from ..registry import no_gradient, vjp

Combine = Callable[[Value], Value]


def restore_axes(v: Value, axes: Value | None, keepdims: int) -> Value:
    """v with the reduced axes as axes of size 1, so that it broadcasts against the operand."""
    if keepdims or axes is None or (axes.array is not None and axes.array.size == 0):
        return v
    return op.Unsqueeze(v, axes)


def expand_to(v: Value, x: Value) -> Value:
    """v expanded to the shape of x."""
    if v.shape is not None and v.shape == x.shape and None not in v.shape:
        return v
    return op.Expand(v, shape_of(x)).stated(x.shape)


def count_elements(x: Value) -> int | None:
    """The number of elements of x, None where a size is unknown."""
    sizes = [n for n in x.shape or () if isinstance(n, int)]
    return math.prod(sizes) if x.is_static else None


def count_reduced(x: Value, y: Value, axes: Value | None) -> Value | int:
    """The number of elements of x per element of y, the result of a reduction of x along axes."""
    if x.shape is not None and axes is not None and axes.array is not None:
        sizes = [n for i in axes.array.ravel() if isinstance(n := x.shape[i], int)]
        if len(sizes) == axes.array.size > 0:
            return math.prod(sizes)
    if (n := count_elements(x)) is not None and (m := count_elements(y)):
        return n // m
    # Not a division of integers, which kills onnxruntime 1.19.2 where y is empty.
    return at_least(op.Div(*(op.Cast(op.Size(v), to=x.type.tensor_type.elem_type) for v in (x, y))), 1)


@vjp("ReduceSum")
def _(x, axes=None, *, dy, keepdims):
    return expand_to(restore_axes(dy, axes, keepdims), x)


@vjp("ReduceMean")
def _(x, axes=None, *, y, dy, keepdims):
    return expand_to(restore_axes(dy / count_reduced(x, y, axes), axes, keepdims), x)


@vjp("ReduceSumSquare")
def _(x, axes=None, *, dy, keepdims):
    return x * restore_axes(2 * dy, axes, keepdims)


@vjp("ReduceL1")
def _(x, axes=None, *, dy, keepdims):
    return scale(restore_axes(dy, axes, keepdims), op.Sign(x))


@vjp("ReduceL2")
def _(x, axes=None, *, y, dy, keepdims):
    # The norm of 0 has no gradient; everybody takes 0.
    zero = op.Equal(y, 0)
    return x * restore_axes(guard(dy / (y + cast(zero, y)), op.Not(zero)), axes, keepdims)


@vjp("ReduceLogSum")
def _(x, axes=None, *, y, dy, keepdims):
    return expand_to(restore_axes(dy * op.Exp(-y), axes, keepdims), x)


@vjp("ReduceLogSumExp")
def _(x, axes=None, *, y, dy, keepdims):
    return op.Exp(x - restore_axes(y, axes, keepdims)) * restore_axes(dy, axes, keepdims)


@vjp("ReduceMax")
def _(x, axes=None, *, y, dy, keepdims, noop_with_empty_axes):
    return share_among_ties(x, axes, y, dy, keepdims, noop_with_empty_axes)


@vjp("ReduceMin")
def _(x, axes=None, *, y, dy, keepdims, noop_with_empty_axes):
    return share_among_ties(x, axes, y, dy, keepdims, noop_with_empty_axes)


def share_among_ties(
    x: Value, axes: Value | None, y: Value, dy: Value, keepdims: int, noop_with_empty_axes: int
) -> Value:
    """dy shared equally among the elements that are equal to the extreme y."""
    mask = op.Equal(x, restore_axes(y, axes, keepdims))
    ties = op.ReduceSum(cast(mask, dy), axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)
    return gate(restore_axes(dy / at_least(ties, 1), axes, keepdims), mask)


@vjp("CumSum")
def _(x, axis, *, dy, exclusive, reverse):
    return op.CumSum(dy, axis, exclusive=exclusive, reverse=1 - reverse)


# Products.


@vjp("ReduceProd")
def _(x, axes=None, *, dy, keepdims, noop_with_empty_axes):
    settings = {"keepdims": 1, "noop_with_empty_axes": noop_with_empty_axes}

    def product(v):
        return op.ReduceProd(v, axes, **settings)

    def total(v):
        return op.ReduceSum(v, axes, **settings)

    return factors_vjp(x, restore_axes(dy, axes, keepdims), product, total, lambda v: v)


@vjp("CumProd")
def _(x, axis, *, dy, exclusive, reverse):
    def product(v):
        return op.CumProd(v, axis, exclusive=exclusive, reverse=reverse)

    def total(v, reverse=reverse):
        return op.CumSum(v, axis, exclusive=exclusive, reverse=reverse)

    return factors_vjp(x, dy, product, total, lambda v: total(v, reverse=1 - reverse))


def factors_vjp(x: Value, dy: Value, product: Combine, total: Combine, back: Combine) -> Value:
    """Σ dy · (the product of the other factors), over all products that contain a factor x.

    Zero factors are kept apart, z: without them a product is divided by x, whatever x is. A product with a zero too
    many is s, the sum of its zeros: 0, but with the derivative of the product.
    """
    z = cast(op.Equal(x, 0), x)
    n, s = total(z), total(z * x)
    w = dy * product(x * (1 - z) + z)
    one, two = gate(w, op.Equal(n, 1)), gate(w, op.Equal(n, 2))
    of_others = back(gate(w, op.Equal(n, 0)) + scale(one, s)) / (x + z)
    return scale(of_others, 1 - z) + scale(back(one + scale(two, s)) - x * back(two), z)


no_gradient("ArgMax", "ArgMin", "Hardmax")

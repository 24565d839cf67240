"""Gradients of normalization and Dropout."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Value, cast, constant, op

from ..grad import composed
from ..masks import gate
from ..registry import vjp
from .linear import multiply_along
from .reduction import count_reduced, expand_to
from .shape import concat_sizes, slice_shape
from .window import signed_power


@vjp("Softmax")
def _(x, *, y, dy, axis):
    return y * (dy - op.ReduceSum(y * dy, [axis]))


@vjp("LogSoftmax")
def _(x, *, y, dy, axis):
    return dy - op.Exp(y) * op.ReduceSum(dy, [axis])


@vjp("LayerNormalization")
def _(x, scale, bias=None, *, ys, dys, axis, epsilon):
    axes = constant(list(range(axis % x.rank, x.rank)))

    def mean(v):
        return op.ReduceMean(v, axes)

    xc, r = center(x, ys, mean, epsilon)
    xn, n = xc * r, count_reduced(x, r, axes)
    dy, d_mean, d_r = (None if d is None else cast(d, x) for d in (*dys, None, None)[:3])
    dx, d_scale = [], None
    if dy is not None:
        dxn, d_scale = dy * scale, dy * xn
        dx.append(r * (dxn - mean(dxn) - xn * mean(d_scale * scale)))
    # The second and the third output are the mean and r.
    if d_mean is not None:
        dx.append(expand_to(d_mean / n, x))
    if d_r is not None:
        dx.append(-xn * (d_r * r * r / n))
    return reduce(add, dx), d_scale, dy


def center(x: Value, ys: Sequence[Value], mean: Callable[[Value], Value], epsilon: float) -> tuple[Value, Value]:
    """x - mean(x) and 1 / √(variance + ε): from the operator's outputs, unless these have less precision than x."""
    if len(ys) > 1 and ys[1].dtype == x.dtype:
        return x - ys[1], ys[2]
    xc = x - mean(x)
    return xc, 1 / op.Sqrt(mean(xc * xc) + epsilon)


@vjp("RMSNormalization")
def _(x, scale, *, dy, axis, epsilon):
    axes = constant(list(range(axis % x.rank, x.rank)))
    r = 1 / op.Sqrt(op.ReduceMean(x * x, axes) + epsilon)
    xn, dy = x * r, cast(dy, x)
    dxn = dy * cast(scale, x)
    return r * (dxn - xn * op.ReduceMean(dxn * xn, axes)), cast(dy * xn, scale)


@composed("MeanVarianceNormalization")
def _(x, *, axes):
    mean, square = (op.ReduceMean(v, axes) for v in (x, x * x))
    return (x - mean) / (op.Sqrt(square - mean * mean) + 1e-9)


@vjp("LpNormalization")
def _(x, *, y, dy, axis, p):
    n = op.ReduceL1(x, [axis]) if p == 1 else op.ReduceL2(x, [axis])
    dx = (dy - signed_power(y, p - 1) * op.ReduceSum(dy * y, [axis])) / (n + cast(op.Equal(n, 0), n))
    # Zero, which has no direction, stays zero, and its gradient is 0.
    return gate(dx, n > 0)


@composed("LRN")
def expand_lrn(x, *, size, alpha, beta, bias):
    """Local response normalization, x / (bias + α/size Σx²)^β, with the sum over a band of channels.

    Parameters
    ----------
    x : Value
        Images, (N, C, ...).
    size, alpha, beta, bias : number
        The attributes of LRN.

    Returns
    -------
    Value
        Of the shape of x.
    """
    total = multiply_along(band_matrix(x, size, alpha / size), x * x, 1, x.rank)
    return x / (bias + total.stated(x.shape)) ** beta


def band_matrix(x: Value, width: int, weight: float) -> Value:
    """The matrix that sums a band of channels around each, with an element more after than before if the width is even.

    The weight is in it: onnxruntime 1.31.1 rounds a factor of a product to float32, in float64 as well.
    """
    n = slice_shape(x, 1, 2)
    square = op.Expand(constant(np.full((1, 1), weight, x.dtype)), concat_sizes(n, n)).stated([None, None])
    return op.Trilu(op.Trilu(square, width // 2, upper=0), -((width - 1) // 2), upper=1)


@vjp("Dropout")
def _(x, ratio=None, training_mode=None, *, ys, dy, node, wanted):
    if training_mode is None or (training_mode.array is not None and not training_mode.array):
        return dy
    if wanted[1]:
        raise NoGradientError(f"{node!r} has no gradient by its ratio, which decides what is dropped; leave out of "
                              f"weights_to_train what it follows from.")
    dx = gate(dy, ys[1]) / (1 - (0.5 if ratio is None else cast(ratio, dy)))
    return dx if training_mode.array is not None else op.Where(training_mode, dx, dy)

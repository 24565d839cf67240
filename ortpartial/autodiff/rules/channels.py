"""Gradients of normalization by channel: BatchNormalization, InstanceNormalization and GroupNormalization."""

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

from ortpartial.graph import Value, cast, constant, op, reshape_like

from ..ranges import at_least
from ..registry import vjp
from .reduction import count_reduced, expand_to
from .window import sum_per_channel


@vjp("BatchNormalization")
def _(x, scale, b, mean, var, *, dys, training_mode, momentum, epsilon):
    if training_mode:
        return batch_vjp(x, scale, dys, momentum, epsilon)
    dy = dys[0]
    r = 1 / op.Sqrt(at_least(cast(var, x) + epsilon, epsilon))
    k = cast(scale, x) * r
    total, moment = sum_per_channel(dy, x), sum_per_channel(dy * (x - broadcast_channels(cast(mean, x), x)), x)
    dmean, dvar = -(total * k), -0.5 * moment * k * r * r
    return dy * broadcast_channels(k, x), cast(moment * r, scale), cast(total, b), cast(dmean, mean), cast(dvar, var)


def batch_vjp(x: Value, scale: Value, dys: Sequence[Value | None], momentum: float, epsilon: float) -> list[Any]:
    """Cotangents of x, scale, b, mean and var in training mode, where a batch is normalized by its statistics.

    The running mean and the running variance, the second and the third output, move towards the statistics of the
    batch.
    """
    dy, d_mean, d_var = (*dys, None, None)[:3]
    axes = [0, *range(2, x.rank)]
    along, dx, d_scale = constant(axes), [], None
    if dy is not None:
        xn, dxn = normalize_vjp(x, dy * broadcast_channels(cast(scale, x), x), axes, epsilon)
        dx.append(dxn)
        d_scale = cast(sum_per_channel(dy * xn, x), scale)
    mean = op.ReduceMean(x, along)
    for d, partial in ((d_mean, 1), (d_var, 2 * (x - mean))):
        if d is not None:
            share = broadcast_channels(cast(d, x), x) * (1 - momentum) / count_reduced(x, mean, along)
            dx.append(expand_to(share * partial, x))
    return [reduce(add, dx), d_scale, None if dy is None else cast(sum_per_channel(dy, x), scale),
            *(None if d is None else momentum * d for d in (d_mean, d_var))]


@vjp("InstanceNormalization")
def _(x, scale, b, *, dy, epsilon):
    xn, dx = normalize_vjp(x, dy * broadcast_channels(scale, x), list(range(2, x.rank)), epsilon)
    return dx, sum_per_channel(dy * xn, x), sum_per_channel(dy, x)


@vjp("GroupNormalization")
def _(x, scale, bias, *, dy, num_groups, epsilon):
    def grouped(v):
        return op.Reshape(v, [0, num_groups, group_size(x, num_groups)])

    xn, dx = normalize_vjp(grouped(x), grouped(dy * broadcast_channels(scale, x)), [2], epsilon)
    return reshape_like(dx, x), sum_per_channel(dy * reshape_like(xn, x), x), sum_per_channel(dy, x)


def normalize_vjp(x: Value, dxn: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """xn = (x - mean) / √(var + ε) over axes, and the cotangent of x from that of xn."""
    along = constant(axes)

    def mean(v):
        return op.ReduceMean(v, along)

    xc = x - mean(x)
    r = 1 / op.Sqrt(mean(xc * xc) + epsilon)
    xn = xc * r
    return xn, r * (dxn - mean(dxn) - xn * mean(dxn * xn))


def broadcast_channels(v: Value, x: Value) -> Value:
    """A number per channel, with the axes that make it broadcast against x."""
    return op.Unsqueeze(v, list(range(1, x.rank - 1))) if x.rank > 2 else v


def group_size(x: Value, groups: int) -> int:
    """The number of elements of an image in a group; -1 where it is unknown."""
    sizes = [n for n in (x.shape or ())[1:] if isinstance(n, int)]
    return math.prod(sizes) // groups if len(sizes) == x.rank - 1 else -1

"""How do gradients flow through operators that normalize, and through Dropout?"""

from functools import reduce
from operator import add

from ..gradient import cast, vjp
from ..graph import constant, op
from .reduction import count, spread


@vjp("Softmax")
def _(x, *, y, dy, axis):
    return y * (dy - op.ReduceSum(y * dy, [axis]))


@vjp("LogSoftmax")
def _(x, *, y, dy, axis):
    return dy - op.Exp(y) * op.ReduceSum(dy, [axis])


@vjp("LayerNormalization")
def _(x, scale, bias=None, *, dys, axis, epsilon):
    axes = constant(list(range(axis % x.rank, x.rank)))

    def mean(v):
        return op.ReduceMean(v, axes)

    xc = x - mean(x)
    r = 1 / op.Sqrt(mean(xc * xc) + epsilon)
    xn, n = xc * r, count(x, r, axes)
    dy, d_mean, d_r = (None if d is None else cast(d, x) for d in (*dys, None, None)[:3])
    dx, d_scale = [], None
    if dy is not None:
        dxn, d_scale = dy * scale, dy * xn
        dx.append(r * (dxn - mean(dxn) - xn * mean(dxn * xn)))
    # The second and the third output are the mean and r themselves.
    if d_mean is not None:
        dx.append(spread(d_mean / n, x))
    if d_r is not None:
        dx.append(-xn * (d_r * r * r / n))
    return reduce(add, dx), d_scale, dy


@vjp("Dropout")
def _(x, ratio=None, training_mode=None, *, ys, dy):
    if training_mode is None or (training_mode.array is not None and not training_mode.array):
        return dy
    dx = dy * cast(ys[1], dy) / (1 - (0.5 if ratio is None else cast(ratio, dy)))
    return dx if training_mode.array is not None else op.Where(training_mode, dx, dy)

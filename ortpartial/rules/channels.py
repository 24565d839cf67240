"""How do gradients flow through operators that normalize the channels of an image?"""

import math
from collections.abc import Sequence

from ..exceptions import NoGradientError
from ..gradient import cast, reshape_like, vjp
from ..graph import Value, constant, op
from .window import per_channel


@vjp("BatchNormalization")
def _(x, scale, b, mean, var, *, dy, node, training_mode, epsilon):
    if training_mode:
        raise NoGradientError(
            f"{node!r} has training_mode=1, and the gradient through the statistics of a batch is not known. Export "
            f"the model for inference, or leave the weights before this node out of weights_to_train."
        )
    r = 1 / op.Sqrt(cast(var, x) + epsilon)
    k = cast(scale, x) * r
    total, moment = per_channel(dy, x), per_channel(dy * (x - channels(cast(mean, x), x)), x)
    dmean, dvar = -(total * k), -0.5 * moment * k * r * r
    return dy * channels(k, x), cast(moment * r, scale), cast(total, b), cast(dmean, mean), cast(dvar, var)


@vjp("InstanceNormalization")
def _(x, scale, b, *, dy, epsilon):
    xn, dx = normalized(x, dy * channels(scale, x), list(range(2, x.rank)), epsilon)
    return dx, per_channel(dy * xn, x), per_channel(dy, x)


@vjp("GroupNormalization")
def _(x, scale, bias, *, dy, num_groups, epsilon):
    def grouped(v):
        return op.Reshape(v, [0, num_groups, group_size(x, num_groups)])

    xn, dx = normalized(grouped(x), grouped(dy * channels(scale, x)), [2], epsilon)
    return reshape_like(dx, x), per_channel(dy * reshape_like(xn, x), x), per_channel(dy, x)


def normalized(x: Value, dxn: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """xn = (x - mean) / √(var + ε) over axes, and the cotangent of x from that of xn."""
    along = constant(axes)

    def mean(v):
        return op.ReduceMean(v, along)

    xc = x - mean(x)
    r = 1 / op.Sqrt(mean(xc * xc) + epsilon)
    xn = xc * r
    return xn, r * (dxn - mean(dxn) - xn * mean(dxn * xn))


def channels(v: Value, x: Value) -> Value:
    """A number for each channel, as it broadcasts against x."""
    return op.Unsqueeze(v, list(range(1, x.rank - 1))) if x.rank > 2 else v


def group_size(x: Value, groups: int) -> int:
    """How many elements of an image there are in a group, -1 where that is not known."""
    sizes = [n for n in (x.shape or ())[1:] if isinstance(n, int)]
    return math.prod(sizes) // groups if len(sizes) == x.rank - 1 else -1

"""How do gradients flow through operators that slide a window over an image: convolutions and pools?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..exceptions import NoGradientError
from ..gradient import cast, reshape_like, vjp
from ..graph import Node, Value, constant, op
from .reduction import count, shared, spread
from .shape import size, vector


@dataclass(frozen=True)
class Window:
    """How a window slides over the axes behind the first two; pads are those before, then those behind."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]

    @property
    def axes(self) -> list[int]:
        """The axes it slides over."""
        return list(range(2, 2 + len(self.kernel)))

    @property
    def extent(self) -> list[int]:
        """How far it reaches along each axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def sliding(self) -> dict[str, Sequence[int]]:
        """The attributes that say where it stops and what it sees there."""
        return {"strides": self.strides, "dilations": self.dilations}


# Convolutions. One is the transpose of the other.


@vjp("Conv")
def _(x, w, b=None, *, y, dy, node, group):
    window = window_of(node, x, w)
    dx, dw = added_up(dy, w, x, y, window, group), correlated(x, dy, window, group)
    return dx.stated(x.shape), dw.stated(w.shape), per_channel(dy, x)


@vjp("ConvTranspose")
def _(x, w, b=None, *, y, dy, node, group):
    window = window_transposed(node, x, w)
    seen = op.Conv(dy, w, group=group, pads=window.pads, **window.sliding)
    dx, dw = cropped(seen, size(x, 2, x.rank), x.rank), correlated(dy, x, window, group)
    return dx.stated(x.shape), dw.stated(w.shape), per_channel(dy, x)


def added_up(dy: Value, w: Value, x: Value, y: Value, window: Window, group: int = 1) -> Value:
    """Σ dy · w over the windows that see an element of x: the transpose of the convolution of x that gives y."""
    settings = {**window.sliding, "group": group}
    r = len(window.kernel)
    before, behind = window.pads[:r], window.pads[r:]
    if known(x) and known(y):
        geometry = zip(x.shape[2:], y.shape[2:], before, window.strides, window.extent, strict=True)
        behind = [(m - 1) * s + extent - b - n for n, m, b, s, extent in geometry]
        pads = [*before, *(max(e, 0) for e in behind)]
        return op.ConvTranspose(dy, w, pads=pads, output_padding=[max(-e, 0) for e in behind], **settings)
    if set(window.strides) == {1}:
        return op.ConvTranspose(dy, w, pads=window.pads, **settings)
    whole = op.ConvTranspose(dy, w, **settings)
    rest = size(x, 2, x.rank) + before - op.Shape(whole, start=2)
    return op.Pad(whole, vector(constant([-b for b in before]), rest), None, window.axes)


def correlated(x: Value, dy: Value, window: Window, group: int) -> Value:
    """Σ x · dy over the places of the window, for each weight: a convolution with strides and dilations exchanged."""
    swapped = [1, 0, *window.axes]
    if group == 1:
        images = op.Transpose(x, perm=swapped)
    else:
        # Each group has images of its own: (N, g·C, ...) becomes (C, g·N, ...).
        apart = op.Reshape(x, vector(constant([0, group, -1]), size(x, 2, x.rank)))
        apart = op.Transpose(apart, perm=[2, 1, 0, *(i + 1 for i in window.axes)])
        images = op.Reshape(apart, vector(constant([0, -1]), size(x, 2, x.rank)))
    found = op.Conv(images, op.Transpose(dy, perm=swapped), group=group, pads=window.pads,
                    strides=window.dilations, dilations=window.strides)  # fmt: skip
    return op.Transpose(cropped(found, constant(window.kernel, np.int64), x.rank), perm=swapped)


def per_channel(dy: Value, x: Value) -> Value:
    """The sum over all axes but that of the channels."""
    return op.ReduceSum(dy, [0, *range(2, x.rank)], keepdims=0)


def cropped(v: Value, sizes: Value, rank: int) -> Value:
    """The first elements of v along the axes behind the first two, as many as sizes says."""
    if sizes.array is not None and v.shape is not None and v.shape[2:] == tuple(sizes.array.tolist()):
        return v
    return op.Slice(v, [0] * (rank - 2), sizes, list(range(2, rank))).stated([None] * rank)


def known(x: Value) -> bool:
    """Whether all sizes behind the first two are known."""
    return x.shape is not None and all(isinstance(n, int) for n in x.shape[2:])


def window_of(node: Node, x: Value, w: Value | None = None) -> Window:
    """The window of a convolution or a pool, with auto_pad put in numbers."""
    window = window_given(node, x, w)
    automatic = node.attribute("auto_pad")
    if not automatic.startswith("SAME"):
        return window
    sizes = list(zip(x.shape[2:], window.strides, window.extent, strict=True))
    if any(s != 1 and not isinstance(n, int) for n, s, _ in sizes):
        raise NoGradientError(
            f"{node!r} has auto_pad={automatic} and strides {list(window.strides)}, so its padding depends on sizes that are "
            f"not known, {x.shape[2:]}. Declare the sizes of the model's inputs, or write pads in numbers."
        )
    total = [max(0, extent - s + (-n % s if s != 1 else 0)) for n, s, extent in sizes]
    return halved(window, total, automatic == "SAME_UPPER")


def window_transposed(node: Node, x: Value, w: Value) -> Window:
    """The window of a transposed convolution, with auto_pad and output_shape put in numbers."""
    window = window_given(node, x, w)
    automatic, shape = node.attribute("auto_pad"), node.attribute("output_shape")
    if not shape and not automatic.startswith("SAME"):
        return window
    if shape and not known(x):
        raise NoGradientError(
            f"{node!r} has output_shape, so its padding depends on sizes that are not known, {x.shape[2:]}. "
            f"Declare the sizes of the model's inputs, or write pads in numbers."
        )
    extra = node.attribute("output_padding") or [0] * len(window.kernel)
    whole = [o + e - s for o, e, s in zip(extra, window.extent, window.strides, strict=True)]
    if shape:
        whole = [t + m * s - n for t, m, s, n in zip(whole, x.shape[2:], window.strides, shape[-len(whole):], strict=True)]
    return halved(window, [max(0, t) for t in whole], automatic == "SAME_UPPER")


def halved(window: Window, total: Sequence[int], upper: bool) -> Window:
    """A window whose padding is one half before and one behind; an odd row goes behind where `upper`, else before."""
    before = [t // 2 if upper else t - t // 2 for t in total]
    pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
    return Window(window.kernel, window.strides, window.dilations, pads)


def window_given(node: Node, x: Value, w: Value | None) -> Window:
    """The window as the attributes say, with the defaults of the specification."""
    kernel = node.attribute("kernel_shape") or (None if w is None else w.shape[2:])
    if not kernel or not all(isinstance(k, int) for k in kernel):
        raise NoGradientError(f"{node!r}: the size of its kernel is not known. Declare the shape of its weights, or set "
                              f"its attribute kernel_shape.")  # fmt: skip
    ones = [1] * len(kernel)
    pads = node.attribute("pads") if node.attribute("auto_pad") == "NOTSET" else None
    return Window(kernel, node.attribute("strides") or ones, node.attribute("dilations") or ones,
                  pads or [0] * 2 * len(kernel))  # fmt: skip


# Pools.


@vjp("MaxPool")
def _(x, *, ys, dy, node, storage_order):
    if storage_order:
        _, places = op.MaxPool(x, **{**node.attributes, "storage_order": 0}).node.outputs
    else:
        places = ys[1]
    nothing = op.Expand(constant(np.zeros(1, dy.dtype)), op.Reshape(op.Size(x), [1]))
    flat = op.ScatterElements(nothing, op.Reshape(places, [-1]), op.Reshape(dy, [-1]), reduction="add")
    return reshape_like(flat, x)


@vjp("AveragePool")
def _(x, *, y, dy, node, ceil_mode, count_include_pad):
    window = window_of(node, x)
    n = held(x, dy, window, ceil_mode, count_include_pad)
    return summed_back(dy / n, x, y, window)


@vjp("LpPool")
def _(x, *, y, dy, node, p):
    return power(x, p - 1) * summed_back(dy / norm_power(y, p - 1), x, y, window_of(node, x))


@vjp("GlobalAveragePool")
def _(x, *, y, dy):
    return spread(dy / count(x, y, constant(list(range(2, x.rank)))), x)


@vjp("GlobalMaxPool")
def _(x, *, y, dy):
    return shared(x, constant(list(range(2, x.rank))), y, dy, 1, 0)


@vjp("GlobalLpPool")
def _(x, *, y, dy, p):
    return power(x, p - 1) * (dy / norm_power(y, p - 1))


def power(x: Value, n: int) -> Value:
    """sign(x) · |x|ⁿ"""
    return op.Sign(x) if n == 0 else x if n == 1 else op.Sign(x) * op.Abs(x) ** n


def norm_power(y: Value, n: int) -> Value:
    """yⁿ, and 1 where y = 0, as the norm of 0 has no gradient and 0 is what everybody takes."""
    y = y + cast(op.Equal(y, 0), y)
    return y if n == 1 else y**n


def summed_back(dy: Value, x: Value, y: Value, window: Window) -> Value:
    """Σ dy over the windows that see an element of x."""
    images = op.Reshape(dy, vector(constant([-1, 1]), size(y, 2, x.rank) if known(y) else op.Shape(dy, start=2)))
    return reshape_like(added_up(images, ones_of(window, x), x, y, window), x)


def held(x: Value, dy: Value, window: Window, ceil_mode: int, count_include_pad: int) -> Value | int:
    """How many elements each window of an average counts."""
    if not ceil_mode and (count_include_pad or not any(window.pads)):
        return math.prod(window.kernel)
    r = len(window.kernel)
    ones, pads = op.Expand(constant(np.ones(1, x.dtype)), vector(constant([1, 1]), size(x, 2, x.rank))), window.pads
    if count_include_pad:
        ones, pads = op.Pad(ones, constant(pads), 1, window.axes), [0] * 2 * r
    if ceil_mode:
        pads = [*pads[:r], *(p + s - 1 for p, s in zip(pads[r:], window.strides, strict=True))]
    seen = op.Conv(ones, ones_of(window, x), pads=pads, **window.sliding)
    return cropped(seen, size(dy, 2, x.rank), x.rank)


def ones_of(window: Window, x: Value) -> Value:
    """The weights of a sum over the window."""
    return constant(np.ones((1, 1, *window.kernel), x.dtype))

"""How do gradients flow through operators that slide a window over an image: convolutions and pools?"""

import math
from collections.abc import Sequence

import numpy as np

from ..exceptions import NoGradientError
from ..gradient import cast, reshape_like
from ..graph import Node, Value, constant, op
from ..registry import vjp
from .reduction import count, shared, spread
from .shape import size, vector
from .sliding import ALL, Sizes, Window, columns, few, joined, known, narrow, pairs, spread_flat, views

# Convolutions. One is the transpose of the other.


@vjp("Conv")
def _(x, w, b=None, *, y, dy, node, group):
    window = window_of(node, x, w)
    dx, dw = added_up(dy, w, x, known(y), window, group), correlated(x, dy, w, window, group)
    return dx.stated(x.shape), dw.stated(w.shape), per_channel(dy, x)


@vjp("ConvTranspose")
def _(x, w, b=None, *, y, dy, node, group):
    window = window_transposed(node, x, w)
    seen = op.Conv(dy, w, group=group, pads=window.pads, **window.sliding)
    dx, dw = cropped(seen, size(x, 2, x.rank), x.rank), correlated(dy, x, w, window, group)
    return dx.stated(x.shape), dw.stated(w.shape), per_channel(dy, x)


def added_up(dy: Value, w: Value, x: Value, m: Sizes, window: Window, group: int = 1) -> Value:
    """Σ dy · w over the windows that see an element of x: the transpose of a convolution of x to the sizes m."""
    settings = {**window.sliding, "group": group}
    r = len(window.kernel)
    before, behind = window.pads[:r], window.pads[r:]
    if (n := known(x)) and m and window.fixed:
        if group == 1 and w.is_static and few(x, m, window):
            return spread_flat(dy, w, n, window)
        geometry = zip(n, m, before, window.strides, window.extent, strict=True)
        behind = [(j - 1) * s + extent - b - i for i, j, b, s, extent in geometry]
        pads = [*before, *(max(e, 0) for e in behind)]
        return op.ConvTranspose(dy, w, pads=pads, output_padding=[max(-e, 0) for e in behind], **settings)
    if set(window.strides) == {1}:
        return op.ConvTranspose(dy, w, pads=window.pads, **settings)
    whole = op.ConvTranspose(dy, w, **settings).stated([None] * x.rank)
    rest = size(x, 2, x.rank) + before - op.Shape(whole, start=2)
    return op.Pad(whole, vector(constant([0, 0, *(-b for b in before), 0, 0]), rest))


def correlated(x: Value, dy: Value, w: Value, window: Window, group: int) -> Value:
    """Σ x · dy over the places of the window, for each weight: a convolution with strides and dilations exchanged."""
    swapped = [1, 0, *window.axes]
    if window.is_point and group == 1:
        lines, dlines = (op.Flatten(op.Transpose(v, perm=swapped), axis=1) for v in (every(x, window.strides), dy))
        return reshape_like(op.Gemm(dlines, lines, transB=1), w)
    if group == 1 and narrow(x, dy, window):
        dlines = op.Flatten(op.Transpose(dy, perm=swapped), axis=1)
        return reshape_like(op.Gemm(dlines, columns(x, known(dy) or (), window), transB=1), w)
    if group == 1:
        images = op.Transpose(x, perm=swapped)
    else:
        # Each group has images of its own: (N, g·C, ...) becomes (C, g·N, ...).
        apart = op.Reshape(x, vector(constant([0, group, -1]), size(x, 2, x.rank)))
        apart = op.Transpose(apart, perm=[2, 1, 0, *(i + 1 for i in window.axes)])
        images = op.Reshape(apart, vector(constant([0, -1]), size(x, 2, x.rank))).stated([None] * x.rank)
    found = op.Conv(images, op.Transpose(dy, perm=swapped), group=group, pads=window.pads,
                    strides=window.dilations, dilations=window.strides)  # fmt: skip
    kernel = constant(window.kernel, np.int64) if window.fixed else size(w, 2, x.rank)
    return if_any(x, op.Transpose(cropped(found, kernel, x.rank), perm=swapped))


def if_any(x: Value, sums: Value) -> Value:
    """Sums over images, 0 where there are none: a Conv without channels says anything on onnxruntime 1.19 to 1.31."""
    images = size(x, 0, 1)
    return sums if images.array is not None and images.array.all() else op.Where(op.Greater(images, 0), sums, 0.0)


def every(x: Value, strides: Sequence[int]) -> Value:
    """The elements of x at which a window of one stops."""
    if set(strides) == {1}:
        return x
    axes = list(range(x.rank))
    return op.Slice(x, [0] * x.rank, [ALL] * x.rank, axes, [1, 1, *strides]).stated([None] * x.rank)


def per_channel(dy: Value, x: Value) -> Value:
    """The sum over all axes but that of the channels."""
    return op.ReduceSum(dy, [0, *range(2, x.rank)], keepdims=0)


def cropped(v: Value, sizes: Value, rank: int) -> Value:
    """The first elements of v along the axes behind the first two, as many as sizes says."""
    if sizes.array is not None and v.shape is not None and v.shape[2:] == tuple(sizes.array.tolist()):
        return v
    # All axes are named: the transpose optimizer of onnxruntime (1.19.2, 1.31.1) breaks Pad, which this becomes, else.
    return op.Slice(v, [0] * rank, vector(constant([ALL, ALL]), sizes)).stated([None] * rank)


def window_of(node: Node, x: Value, w: Value | None = None) -> Window:
    """The window of a convolution or a pool, with auto_pad put in numbers."""
    window = window_given(node, x, w)
    automatic = node.attribute("auto_pad")
    if not automatic.startswith("SAME"):
        return window
    n = known(x) or ([0] * len(window.kernel) if set(window.strides) == {1} else None)
    if n is None or not window.fixed:
        raise unknown(node, f"auto_pad={automatic}", x)
    total = [max(0, e - s + -i % s) for i, s, e in zip(n, window.strides, window.extent, strict=True)]
    return halved(window, total, automatic == "SAME_UPPER")


def window_transposed(node: Node, x: Value, w: Value) -> Window:
    """The window of a transposed convolution, with auto_pad and output_shape put in numbers."""
    window = window_given(node, x, w)
    automatic, shape = node.attribute("auto_pad"), node.attribute("output_shape")
    if not shape and not automatic.startswith("SAME"):
        return window
    m = known(x)
    if not window.fixed or (shape and m is None):
        raise unknown(node, "output_shape" if shape else f"auto_pad={automatic}", x)
    extra = node.attribute("output_padding") or [0] * len(window.kernel)
    whole = [o + e - s for o, e, s in zip(extra, window.extent, window.strides, strict=True)]
    if shape:
        whole = [t + i * s - n for t, i, s, n in zip(whole, m or (), window.strides, shape[-len(whole) :], strict=True)]
    return halved(window, [max(0, t) for t in whole], automatic == "SAME_UPPER")


def unknown(node: Node, what: str, x: Value) -> NoGradientError:
    """The error of a padding that cannot be put in numbers."""
    return NoGradientError(
        f"{node!r} has {what}, so its padding depends on sizes that are not known: those of its kernel or of {x!r}. "
        f"Declare the sizes of the model's inputs, or write pads in numbers."
    )


def halved(window: Window, total: Sequence[int], upper: bool) -> Window:
    """A window whose padding is one half before and one behind; an odd row goes behind where `upper`, else before."""
    before = [t // 2 if upper else t - t // 2 for t in total]
    pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
    return Window(window.kernel, window.strides, window.dilations, pads)


def window_given(node: Node, x: Value, w: Value | None) -> Window:
    """The window as the attributes say, with the defaults of the specification."""
    unknown_size = (None,) * (x.rank - 2)
    kernel = node.attribute("kernel_shape") or (unknown_size if w is None or w.shape is None else w.shape[2:])
    ones = [1] * len(kernel)
    pads = node.attribute("pads") if node.attribute("auto_pad") in ("NOTSET", None) else None
    return Window(kernel, node.attribute("strides") or ones, node.attribute("dilations") or ones,
                  pads or [0] * 2 * len(kernel))  # fmt: skip


# Pools.


@vjp("MaxPool")
def _(x, *, ys, dy, node):
    return given_to_largest(x, ys, dy, node)


def given_to_largest(x: Value, ys: Sequence[Value], dy: Value, node: Node) -> Value:
    """dy at the first of the largest elements of each window: by masks where it sees few of them, else by indices."""
    window, m = window_given(node, x, None), known(dy)
    if m is None or not pairs(x, m, window) or node.attribute("auto_pad").startswith("SAME"):
        row_major = {k: v for k, v in node.attributes.items() if k != "storage_order"}
        places = op.MaxPool(x, **row_major).node.outputs[1] if node.attribute("storage_order") else ys[1]
        nothing = op.Expand(constant(np.zeros(1, dy.dtype)), op.Reshape(op.Size(x), [1]))
        flat = op.ScatterElements(nothing, op.Reshape(places, [-1]), op.Reshape(dy, [-1]), reduction="add")
        return reshape_like(flat, x)
    *earlier, _ = views(x, m, window)
    parts, rest = [], dy
    for v in earlier:
        parts.append(rest * cast(op.Equal(v, ys[0]), dy))
        rest = rest - parts[-1]
    apart = op.Concat(*(op.Reshape(v, [0, 0, 1, math.prod(m)]) for v in [*parts, rest]), axis=2)
    return joined(op.Reshape(apart, [0, math.prod((apart.shape or ())[1:3]), math.prod(m)]), known(x) or (), window)


@vjp("AveragePool")
def _(x, *, y, dy, node, ceil_mode, count_include_pad):
    window = window_of(node, x)
    if not ceil_mode and (count_include_pad or not any(window.pads)):
        return summed_back(dy, x, y, window, 1 / math.prod(window.kernel))
    return summed_back(dy / held(x, dy, window, ceil_mode, count_include_pad), x, y, window)


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


def summed_back(dy: Value, x: Value, y: Value, window: Window, weight: float = 1) -> Value:
    """Σ weight · dy over the windows that see an element of x."""
    m = trusted(x, y, window)
    images = op.Reshape(dy, vector(constant([-1, 1]), constant(m, np.int64) if m else op.Shape(dy, start=2)))
    return reshape_like(added_up(images, filled(window, x, weight), x, m, window), x)


def trusted(x: Value, y: Value, window: Window) -> Sizes:
    """The sizes of a pool, if all are known and all windows see an element of x or of the padding before it.

    With ceil_mode, onnxruntime 1.19.2 keeps windows that begin behind x and 1.31.1 does not; both load the same model.
    """
    n, m = known(x), known(y)
    if not n or not m:
        return None
    ends = zip(n, m, window.pads, window.strides, strict=False)
    return m if all((j - 1) * s < i + b for i, j, b, s in ends) else None


def held(x: Value, dy: Value, window: Window, ceil_mode: int, count_include_pad: int) -> Value:
    """How many elements each window of an average counts."""
    r = len(window.kernel)
    ones, pads = op.Expand(constant(np.ones(1, x.dtype)), vector(constant([1, 1]), size(x, 2, x.rank))), window.pads
    if count_include_pad:
        ones, pads = op.Pad(ones, [0, 0, *pads[:r], 0, 0, *pads[r:]], 1), [0] * 2 * r
    if ceil_mode:
        pads = [*pads[:r], *(p + s - 1 for p, s in zip(pads[r:], window.strides, strict=True))]
    seen = op.Conv(ones, filled(window, x, 1), pads=pads, **window.sliding)
    return op.Max(cropped(seen, size(dy, 2, x.rank), x.rank), 1) if ceil_mode else seen


def filled(window: Window, x: Value, weight: float) -> Value:
    """A kernel of one number."""
    return constant(np.full((1, 1, *window.kernel), weight, x.dtype))

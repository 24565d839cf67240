"""Gradients of convolutions and pooling."""

import math
from collections.abc import Sequence

import numpy as np

from ortpartial.graph import Node, Value, cast, constant, op, reshape_like
from ortpartial.limits import limits

from ..grad import composed, grad
from ..masks import gate, guard
from ..ranges import is_finite
from ..registry import vjp
from .reduction import count_reduced, expand_to, share_among_ties
from .shape import concat_sizes, scatter_flat, slice_shape
from .sliding import (
    ALL,
    Sizes,
    Window,
    col2im,
    extract_views,
    has_few_windows,
    is_small_pool,
    multiply_col2im,
    spatial_sizes,
)

# Convolutions.


@vjp("Conv")
def _(x, w, b=None, *, y, dy, node, group):
    inside, window = pad_input(x, node, w)
    dx = transpose_convolution(dy, w, inside, spatial_sizes(y), window, group)
    dw = correlate(inside, dy, w, window, group)
    return unpad_gradient(dx, inside, x).stated(x.shape), dw.stated(w.shape), sum_per_channel(dy, x)


@vjp("ConvTranspose")
def _(x, w, b=None, *, y, dy, node, group):
    window, cut = read_transposed_window(node, x, w)
    padded = dy if cut is None else op.Pad(dy, cut)
    dx = op.Conv(padded, w, group=group, pads=window.pads, **window.sliding)
    dx, dw = crop(dx, slice_shape(x, 2, x.rank), x.rank), correlate(padded, x, w, window, group)
    return dx.stated(x.shape), dw.stated(w.shape), sum_per_channel(dy, x)


@composed("CausalConvWithState")
def _(x, w, b=None, past=None, *, activation):
    earlier = slice_shape(w, 2, w.rank) - constant(1, np.int64)
    if past is None:
        past = op.Expand(constant(np.zeros(1, x.dtype)), concat_sizes(slice_shape(x, 0, 2), earlier))
    seen = op.Concat(past, x, axis=2)
    y = convolve_channels(seen, w, b)
    if activation != "none":
        y = cast(y, constant(0, np.float32))
        y = cast(y * op.Sigmoid(y), x)
    return y.stated(x.shape), op.Slice(seen, slice_shape(x, 2, x.rank), slice_shape(seen, 2, x.rank), [2])


def convolve_channels(x: Value, w: Value, b: Value | None) -> Value:
    """The depthwise convolution of sequences (N, C, T) by kernels (C, 1, K), with a bias (C,)."""
    if (channels := slice_shape(w, 0, 1).array) is not None:
        return op.Conv(x, w, b, group=channels.item())
    # The number of groups of a Conv is an attribute, so an unknown number of channels takes a product.
    k, steps = (op.Squeeze(slice_shape(v, 2, v.rank), [0]) for v in (w, x))
    seen = op.Gather(x, op.Unsqueeze(op.Range(0, steps - k + 1, 1), [1]) + op.Range(0, k, 1), axis=2)
    y = op.Squeeze(op.MatMul(seen, op.Transpose(w, perm=[0, 2, 1])), [3])
    return y if b is None else y + op.Unsqueeze(b, [1])


def transpose_convolution(dy: Value, w: Value, x: Value, m: Sizes, window: Window, group: int = 1) -> Value:
    """Σ dy · w over the windows that see an element of x: the transpose of a convolution from x to the sizes m."""
    settings = {**window.sliding, "group": group}
    r = len(window.kernel)
    before, behind = window.pads[:r], window.pads[r:]
    if (n := spatial_sizes(x)) and m and window.fixed:
        if group == 1 and w.is_static and has_few_windows(x, m, window):
            return multiply_col2im(dy, w, n, window)
        geometry = zip(n, m, before, window.strides, window.extent, strict=True)
        behind = [(j - 1) * s + extent - b - i for i, j, b, s, extent in geometry]
        pads = [*before, *(max(e, 0) for e in behind)]
        return op.ConvTranspose(dy, w, pads=pads, output_padding=[max(-e, 0) for e in behind], **settings)
    if set(window.strides) == {1}:
        return op.ConvTranspose(dy, w, pads=window.pads, **settings)
    uncropped = op.ConvTranspose(dy, w, **settings).stated([None] * x.rank)
    rest = slice_shape(x, 2, x.rank) + before - op.Shape(uncropped, start=2)
    return op.Pad(uncropped, concat_sizes(constant([0, 0, *(-b for b in before), 0, 0]), rest))


def correlate(x: Value, dy: Value, w: Value, window: Window, group: int) -> Value:
    """Σ x · dy over the window positions, for each weight: a convolution with strides and dilations swapped."""
    swapped = [1, 0, *window.axes]
    if window.is_point and group == 1:
        lines, dlines = (op.Flatten(op.Transpose(v, perm=swapped), axis=1) for v in (subsample(x, window.strides), dy))
        return reshape_like(op.Gemm(dlines, lines, transB=1), w)
    if group == 1:
        images = op.Transpose(x, perm=swapped)
    else:
        # Each group has images of its own: (N, g·C, ...) becomes (C, g·N, ...).
        apart = op.Reshape(x, concat_sizes(constant([0, group, -1]), slice_shape(x, 2, x.rank)))
        apart = op.Transpose(apart, perm=[2, 1, 0, *(i + 1 for i in window.axes)])
        images = op.Reshape(apart, concat_sizes(constant([0, -1]), slice_shape(x, 2, x.rank))).stated([None] * x.rank)
    dw = op.Conv(images, op.Transpose(dy, perm=swapped), group=group, pads=trim_pads(x, dy, window),
                 strides=window.dilations, dilations=window.strides)
    kernel = constant(window.kernel, np.int64) if window.fixed else slice_shape(w, 2, x.rank)
    return zero_if_empty(x, op.Transpose(crop(dw, kernel, x.rank), perm=swapped))


def trim_pads(x: Value, dy: Value, window: Window) -> Sequence[int]:
    """The pads without the end that no window position sees, whose places would be weights that are cropped."""
    n, m, r = spatial_sizes(x), spatial_sizes(dy), len(window.kernel)
    if not (n and m and window.fixed):
        return window.pads
    before, behind = window.pads[:r], window.pads[r:]
    unseen = [i + a + b - (j - 1) * s - extent for i, a, b, j, s, extent in
              zip(n, before, behind, m, window.strides, window.extent, strict=True)]
    least = limits().unseen_margin
    return [*before, *(b - min(u, b) if u >= least else b for b, u in zip(behind, unseen, strict=True))]


def zero_if_empty(x: Value, sums: Value) -> Value:
    """Sums over images, 0 for an empty batch, where a Conv of onnxruntime 1.19 to 1.31 returns uninitialized memory."""
    images = slice_shape(x, 0, 1)
    return sums if images.array is not None and images.array.all() else op.Where(op.Greater(images, 0), sums, 0.0)


def subsample(x: Value, strides: Sequence[int]) -> Value:
    """The elements of x at the positions of a window of a single element."""
    if set(strides) == {1}:
        return x
    axes = list(range(x.rank))
    return op.Slice(x, [0] * x.rank, [ALL] * x.rank, axes, [1, 1, *strides]).stated([None] * x.rank)


def sum_per_channel(dy: Value, x: Value) -> Value:
    """The sum over all axes except the channels."""
    return op.ReduceSum(dy, [0, *range(2, x.rank)], keepdims=0)


def crop(v: Value, sizes: Value, rank: int) -> Value:
    """v cropped at the end of its spatial axes to the given sizes."""
    if sizes.array is not None and v.shape is not None and v.shape[2:] == tuple(sizes.array.tolist()):
        return v
    # All axes are named: the transpose optimizer of onnxruntime (1.19.2, 1.31.1) breaks Pad, which this becomes, else.
    return op.Slice(v, [0] * rank, concat_sizes(constant([ALL, ALL]), sizes)).stated([None] * rank)


def pad_input(x: Value, node: Node, w: Value | None = None, padding: float = 0) -> tuple[Value, Window]:
    """The input of a convolution or a pool, and its window with auto_pad resolved to pads.

    Where the pads of auto_pad depend on unknown sizes, x is padded instead, and the window has no pads.
    """
    window = read_window(node, x, w)
    automatic = node.attribute("auto_pad")
    if not automatic.startswith("SAME"):
        return x, window
    n = spatial_sizes(x) or ([0] * len(window.kernel) if set(window.strides) == {1} else None)
    if n is not None and window.fixed:
        total = [max(0, e - s + -i % s) for i, s, e in zip(n, window.strides, window.extent, strict=True)]
        return x, split_padding(window, total, automatic == "SAME_UPPER")
    strides = constant(window.strides, np.int64)
    missing = dynamic_extent(window, w) - strides + op.Mod(-slice_shape(x, 2, x.rank), strides)
    missing = op.Max(missing, constant(0, np.int64))
    return op.Pad(x, split_pads(missing, missing, automatic == "SAME_UPPER"), constant(padding, x.dtype)), window


def unpad_gradient(dx: Value, inside: Value, x: Value) -> Value:
    """The gradient of x from that of `pad_input` of x."""
    return dx if inside is x else grad(inside, [x], [dx])[0]


def read_transposed_window(node: Node, x: Value, w: Value) -> tuple[Window, Value | None]:
    """The window of a transposed convolution with auto_pad and output_shape resolved to pads, and further pads of dy.

    The further pads undo cropping that the window cannot: all cropping where sizes are unknown, and then the window has
    no pads; and, as negative pads, an output_shape that exceeds the sum of the windows.
    """
    window = read_window(node, x, w)
    automatic, shape = node.attribute("auto_pad"), node.attribute("output_shape")
    if not shape and not automatic.startswith("SAME"):
        return window, None
    n, shape = spatial_sizes(x), shape and shape[-len(window.kernel) :]
    extra = node.attribute("output_padding") or [0] * len(window.kernel)
    if window.fixed and (n or not shape):
        beyond = [o + e - s for o, e, s in zip(extra, window.extent, window.strides, strict=True)]
        if shape:
            beyond = [b + i * s - m for b, i, s, m in zip(beyond, n or (), window.strides, shape, strict=True)]
        lacking = [min(0, b) for b in beyond] if shape else []
        cut = constant([0] * (4 + len(beyond)) + lacking, np.int64) if any(lacking) else None
        return split_padding(window, [max(0, b) for b in beyond], automatic == "SAME_UPPER"), cut
    strides = constant(window.strides, np.int64)
    rest = dynamic_extent(window, w) - strides + constant(extra, np.int64)
    if shape:
        rest = rest + slice_shape(x, 2, x.rank) * strides - constant(shape, np.int64)
    total = op.Max(rest, constant(0, np.int64))
    return window, split_pads(total, rest if shape else total, automatic == "SAME_UPPER")


def dynamic_extent(window: Window, w: Value | None) -> Value:
    """The extent of a window along each axis, computed at run time."""
    kernel = slice_shape(w, 2, w.rank) if w is not None else constant(window.kernel, np.int64)
    one = constant(1, np.int64)
    return (kernel - one) * constant(window.dilations, np.int64) + one


def split_pads(total: Value, rest: Value, upper: bool) -> Value:
    """The pads of images: half of the total before; the remainder of `rest`, which may be negative, after."""
    half = total / constant(2, np.int64)
    before = half if upper else total - half
    return concat_sizes(constant([0, 0]), before, constant([0, 0]), rest - before)


def split_padding(window: Window, total: Sequence[int], upper: bool) -> Window:
    """A window with half of the total padding on each side; an odd row comes after if `upper`, else before."""
    before = [t // 2 if upper else t - t // 2 for t in total]
    pads = [*before, *(t - b for t, b in zip(total, before, strict=True))]
    return Window(window.kernel, window.strides, window.dilations, pads)


def read_window(node: Node, x: Value, w: Value | None) -> Window:
    """The window from the attributes, with the defaults of the specification."""
    unknown_size = (None,) * (x.rank - 2)
    kernel = node.attribute("kernel_shape") or (unknown_size if w is None or w.shape is None else w.shape[2:])
    ones = [1] * len(kernel)
    pads = node.attribute("pads") if node.attribute("auto_pad") in ("NOTSET", None) else None
    return Window(kernel, node.attribute("strides") or ones, node.attribute("dilations") or ones,
                  pads or [0] * 2 * len(kernel))


# Pools.


@vjp("MaxPool")
def _(x, *, ys, dy, node):
    return max_pool_vjp(x, ys, dy, node)


def max_pool_vjp(x: Value, ys: Sequence[Value], dy: Value, node: Node) -> Value:
    """dy at the first largest element of each window: by masks for a small pool, else by indices."""
    window, m = read_window(node, x, None), spatial_sizes(dy)
    by_masks = m is not None and is_small_pool(x, m, window) and not node.attribute("auto_pad").startswith("SAME")
    # A runtime may write Col2Im as a product with 0 and 1, which turns infinities into NaN.
    if m is None or not by_masks or not is_finite(dy):
        row_major = {k: v for k, v in node.attributes.items() if k != "storage_order"}
        places = op.MaxPool(x, **row_major, n_outputs=2)[1] if node.attribute("storage_order") else ys[1]
        return scatter_flat(dy, places, x)
    *earlier, _ = extract_views(x, m, window)
    parts, rest = [], dy
    for v in earlier:
        parts.append(gate(rest, op.Equal(v, ys[0])))
        rest = rest - parts[-1]
    apart = op.Concat(*(op.Reshape(v, [0, 0, 1, math.prod(m)]) for v in [*parts, rest]), axis=2)
    apart = op.Reshape(apart, [0, math.prod((apart.shape or ())[1:3]), math.prod(m)])
    return col2im(apart, spatial_sizes(x) or (), window)


@vjp("AveragePool")
def _(x, *, y, dy, node, ceil_mode, count_include_pad):
    inside, window = pad_input(x, node)
    if not ceil_mode and (count_include_pad or not (any(window.pads) or inside is not x)):
        dx = sum_windows(dy, inside, y, window, 1 / math.prod(window.kernel))
    else:
        dx = sum_windows(dy / count_seen(x, dy, node, ceil_mode, count_include_pad), inside, y, window)
    return unpad_gradient(dx, inside, x)


@vjp("LpPool")
def _(x, *, y, dy, node, p):
    inside, window = pad_input(x, node)
    share = guard(dy / norm_power(y, p - 1), y > 0)
    return signed_power(x, p - 1) * unpad_gradient(sum_windows(share, inside, y, window), inside, x)


@vjp("GlobalAveragePool")
def _(x, *, y, dy):
    return expand_to(dy / count_reduced(x, y, constant(list(range(2, x.rank)))), x)


@vjp("GlobalMaxPool")
def _(x, *, y, dy):
    return share_among_ties(x, constant(list(range(2, x.rank))), y, dy, 1, 0)


@vjp("GlobalLpPool")
def _(x, *, y, dy, p):
    return signed_power(x, p - 1) * guard(dy / norm_power(y, p - 1), y > 0)


def signed_power(x: Value, n: int) -> Value:
    """sign(x) · |x|ⁿ."""
    return op.Sign(x) if n == 0 else x if n == 1 else op.Sign(x) * op.Abs(x) ** n


def norm_power(y: Value, n: int) -> Value:
    """yⁿ, and 1 where y = 0: the norm of 0 has no gradient, and 0 is the convention."""
    y = y + cast(op.Equal(y, 0), y)
    return y if n == 1 else y**n


def sum_windows(dy: Value, x: Value, y: Value, window: Window, weight: float = 1) -> Value:
    """Σ weight · dy over the windows that see an element of x."""
    m = trusted_sizes(x, y, window)
    images = op.Reshape(dy, concat_sizes(constant([-1, 1]), constant(m, np.int64) if m else op.Shape(dy, start=2)))
    return reshape_like(transpose_convolution(images, uniform_kernel(window, x, weight), x, m, window), x)


def trusted_sizes(x: Value, y: Value, window: Window) -> Sizes:
    """The sizes of a pool, None unless all are known and every window begins in x or in the padding before it.

    With ceil_mode, onnxruntime 1.19.2 keeps windows that begin behind x and 1.31.1 does not; both load the same model.
    """
    n, m = spatial_sizes(x), spatial_sizes(y)
    if not n or not m:
        return None
    ends = zip(n, m, window.pads, window.strides, strict=False)
    return m if all((j - 1) * s < i + b for i, j, b, s in ends) else None


def count_seen(x: Value, dy: Value, node: Node, ceil_mode: int, count_include_pad: int) -> Value:
    """The number of elements that each window of an average counts.

    With pads and ceil_mode, it follows from the average of ones: onnxruntime 1.19.2 counts places behind the pads. Not
    so where a window begins there, as its own inference of shapes does without that window, nor in float64 with unknown
    sizes, for which there is no kernel.
    """
    ones = op.Expand(constant(np.ones(1, x.dtype)), concat_sizes(constant([1, 1]), slice_shape(x, 2, x.rank)))
    ones = ones.stated([1, 1, *(x.shape or ())[2:]])
    is_static = spatial_sizes(x) and spatial_sizes(dy)
    runs = trusted_sizes(x, dy, read_window(node, x, None)) if is_static else x.dtype != np.float64
    if ceil_mode and count_include_pad and runs:
        share = crop(op.AveragePool(ones, **node.attributes), slice_shape(dy, 2, x.rank), x.rank)
        return count_seen(x, dy, node, ceil_mode, 0) / (share + cast(op.Equal(share, 0), share))
    ones, window = pad_input(ones, node, padding=count_include_pad)
    r, pads = len(window.kernel), window.pads
    if count_include_pad:
        ones, pads = op.Pad(ones, [0, 0, *pads[:r], 0, 0, *pads[r:]], 1), [0] * 2 * r
    if ceil_mode:
        pads = [*pads[:r], *(p + s - 1 for p, s in zip(pads[r:], window.strides, strict=True))]
    seen = op.Conv(ones, uniform_kernel(window, x, 1), pads=pads, **window.sliding)
    return op.Max(crop(seen, slice_shape(dy, 2, x.rank), x.rank), 1) if ceil_mode else seen


def uniform_kernel(window: Window, x: Value, weight: float) -> Value:
    """A kernel filled with a single weight."""
    return constant(np.full((1, 1, *window.kernel), weight, x.dtype))

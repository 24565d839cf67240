"""im2col: convolutions and pools as products and sums of the elements under each position of a sliding window."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortpartial.autodiff import (
    Window,
    concat_sizes,
    crop,
    pad_input,
    read_transposed_window,
    slice_shape,
    spatial_sizes,
)
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, constant, op

__all__ = ["lower_average_pool", "lower_col2im", "lower_conv", "lower_conv_transpose"]


def lower_conv(x: Value, w: Value, b: Value | None = None, *, node: Node, group: int) -> Value:
    """Conv as a product of its kernels and of the elements under each window.

    Parameters
    ----------
    x, w, b : Value
        Images (N, C, ...), kernels (O, C / group, ...) and the bias (O,), if any.
    node : Node
        The node, for its padding, strides and dilations.
    group : int
        The number of groups of channels.

    Returns
    -------
    Value
        (N, O, ...).
    """
    x, window = pad_input(x, node, w)
    return _multiply_windows(x, w, b, window, group)


def lower_conv_transpose(x: Value, w: Value, b: Value | None = None, *, node: Node, group: int) -> Value:
    """ConvTranspose as a convolution of images with zeros between their elements, by flipped kernels.

    Parameters
    ----------
    x, w, b : Value
        Images (N, C, ...), kernels (C, O / group, ...) and the bias (O,), if any.
    node : Node
        The node, for its padding, strides and dilations.
    group : int
        The number of groups of channels.

    Returns
    -------
    Value
        (N, O, ...).
    """
    window, cut = read_transposed_window(node, x, w)
    r = len(window.kernel)
    zeros = [s - 1 for s in window.strides]
    dilated = op.Unsqueeze(x, [3 + 2 * i for i in range(r)])
    dilated = op.Pad(dilated, [0] * (dilated.rank + 2) + [n for z in zeros for n in (0, z)])
    sizes = slice_shape(x, 2, x.rank) * constant(window.strides, np.int64)
    dilated = op.Reshape(dilated, concat_sizes(slice_shape(x, 0, 2), sizes))
    # (C, O / group, ...) becomes (O, C / group, ...).
    kernels = op.Reshape(w, concat_sizes(constant([group, -1]), slice_shape(w, 1, w.rank)))
    kernels = op.Transpose(kernels, perm=[0, 2, 1, *range(3, 3 + r)])
    kernels = op.Reshape(kernels, concat_sizes(slice_shape(w, 1, 2) * group, constant([-1]), slice_shape(w, 2, w.rank)))
    kernels = op.Slice(kernels, [-1] * r, [np.iinfo(np.int64).min] * r, window.axes, [-1] * r)
    extra = node.attribute("output_padding") or [0] * r
    reach = (slice_shape(w, 2, w.rank) - 1) * constant(window.dilations, np.int64)
    trailing = [p + z - o for p, z, o in zip(window.pads[r:], zeros, extra, strict=True)]
    pads = concat_sizes(constant([0, 0]), reach - window.pads[:r], constant([0, 0]), reach - trailing)
    dilated = op.Pad(dilated, pads)
    y = _multiply_windows(dilated, kernels, None, Window(window.kernel, [1] * r, window.dilations, [0] * 2 * r), group)
    y = y if cut is None else op.Pad(y, -cut)
    return y if b is None else y + op.Unsqueeze(b, list(range(1, r + 1)))


def lower_average_pool(x: Value, *, node: Node, ceil_mode: int, count_include_pad: int) -> Value:
    """AveragePool as the sum of the elements under each window, divided by their number.

    Parameters
    ----------
    x : Value
        Images (N, C, ...).
    node : Node
        The node, for its window and its output shape.
    ceil_mode : int
        Whether the last window may reach beyond the padding.
    count_include_pad : int
        Whether the padding is counted.

    Returns
    -------
    Value
        (N, C, ...).
    """
    positions, shape = spatial_sizes(node.outputs[0]), concat_sizes(constant([1, 1]), slice_shape(x, 2, x.rank))
    ones, _ = pad_input(op.Expand(constant(np.ones(1, x.dtype)), shape), node, padding=count_include_pad)
    x, window = pad_input(x, node)
    if ceil_mode and positions is None:
        raise unknown_sizes(node, "ceil_mode", x)
    r = len(window.kernel)
    beyond = [s - 1 if ceil_mode else 0 for s in window.strides]

    def sum_windows(v: Value, padding: int) -> Value:
        v = _pad(_pad(v, window.pads, padding), [0] * r + beyond)
        elements, _ = _gather_windows(v, constant(window.kernel, np.int64), window)
        sums = op.ReduceSum(elements, window.axes, keepdims=0)
        return crop(sums, constant(positions, np.int64), x.rank) if ceil_mode else sums

    counts = sum_windows(ones, count_include_pad)
    # A window that begins in the padding at the end averages nothing: 0 in onnxruntime 1.19.2; 1.32 leaves it out.
    return sum_windows(x, 0) / (op.Max(counts, 1) if ceil_mode else counts)


def unknown_sizes(node: Node, what: str, x: Value) -> NoGradientError:
    """The error for a window whose positions cannot be counted."""
    return NoGradientError(
        f"{node!r} has {what}, so its windows depend on unknown sizes: those of its kernel or of {x!r}. "
        f"Declare the sizes of the model's inputs."
    )


def lower_col2im(x: Value, image: Value, block: Value, *, node: Node, strides: Sequence[int],
                 dilations: Sequence[int], pads: Sequence[int]) -> Value:
    """Col2Im as a ConvTranspose, whose kernel for each position of a block is 1 there and 0 elsewhere.

    Parameters
    ----------
    x : Value
        Blocks, (N, C · block size, number of blocks).
    image, block : Value
        The spatial shapes of the image and of a block.
    node : Node
        The node, for errors.
    strides, dilations, pads : list of int
        The attributes of the operator.

    Returns
    -------
    Value
        (N, C, *image).
    """
    if image.array is None or block.array is None:
        raise unknown_sizes(node, "sizes that are computed", x)
    sizes, kernel = image.array.tolist(), block.array.tolist()
    r = len(sizes)
    window = Window(kernel, strides or [1] * r, dilations or [1] * r, pads or [0] * 2 * r)
    free = [n + a + b - e for n, a, b, e in zip(sizes, window.pads[:r], window.pads[r:], window.extent, strict=True)]
    positions = [f // s + 1 for f, s in zip(free, window.strides, strict=True)]
    n = math.prod(kernel)
    y = op.ConvTranspose(
        op.Reshape(x, [-1, n, *positions]), np.eye(n, dtype=x.dtype).reshape(n, 1, *kernel),
        strides=window.strides, dilations=window.dilations, pads=window.pads,
        output_padding=[f % s for f, s in zip(free, window.strides, strict=True)])
    return op.Reshape(y, concat_sizes(slice_shape(x, 0, 1), constant([-1, *sizes])))


def _multiply_windows(x: Value, w: Value, b: Value | None, window: Window, group: int) -> Value:
    """The convolution of x by w, with explicit pads."""
    elements, positions = _gather_windows(_pad(x, window.pads), slice_shape(w, 2, w.rank), window)
    n = slice_shape(op.Flatten(w, axis=1), 1, 2)
    columns = op.Reshape(elements, concat_sizes(constant([0, group]), n, constant([-1])))
    y = op.Reshape(w, concat_sizes(constant([group, -1]), n)) @ columns
    y = op.Reshape(y, concat_sizes(slice_shape(x, 0, 1), slice_shape(w, 0, 1), *positions))
    return y if b is None else y + op.Unsqueeze(b, list(range(1, x.rank - 1)))


def _pad(v: Value, pads: Sequence[int], number: float = 0) -> Value:
    """v with a number around it; negative pads crop it."""
    r = len(pads) // 2
    return op.Pad(v, [0, 0, *pads[:r], 0, 0, *pads[r:]], number) if any(pads) else v


def _gather_windows(x: Value, kernel: Value, window: Window) -> tuple[Value, list[Value]]:
    """The elements of x under each window, (N, C, *kernel, *positions), and the number of positions along each axis."""
    positions = []
    r = len(window.strides)
    for i, (stride, dilation) in enumerate(zip(window.strides, window.dilations, strict=True)):
        k = op.Gather(kernel, i, axis=0)
        axis = 2 + 2 * i
        n = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), [0])
        m = op.Div(n - (k - 1) * dilation - 1, stride) + 1
        offsets, starts = op.Range(0, k, 1) * dilation, op.Range(0, m, 1) * stride
        x = op.Gather(x, op.Unsqueeze(offsets, [1]) + starts, axis=axis)
        positions.append(op.Unsqueeze(m, [0]))
    return op.Transpose(x, perm=[0, 1, *range(2, 2 + 2 * r, 2), *range(3, 3 + 2 * r, 2)]), positions

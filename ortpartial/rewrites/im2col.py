"""What does a window that slides over an image compute, in operators that know nothing of windows?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortpartial.autodiff import Window, cropped, known, padded, size, vector, window_transposed
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, constant, op

__all__ = ["average", "convolution", "joined", "transposed_convolution"]


def convolution(x: Value, w: Value, b: Value | None = None, *, node: Node, group: int) -> Value:
    """Conv: products of its kernels and of what each window sees.

    Parameters
    ----------
    x, w, b : Value
        Images (N, C, ...), kernels (O, C / group, ...) and, if it is added, a bias (O,).
    node : Node
        The node, for its padding, strides and dilations.
    group : int
        How many groups of channels there are.

    Returns
    -------
    Value
        (N, O, ...).
    """
    x, window = padded(x, node, w)
    return _convolved(x, w, b, window, group)


def transposed_convolution(x: Value, w: Value, b: Value | None = None, *, node: Node, group: int) -> Value:
    """ConvTranspose: a convolution of images with zeros between their elements, by kernels that are turned around.

    Parameters
    ----------
    x, w, b : Value
        Images (N, C, ...), kernels (C, O / group, ...) and, if it is added, a bias (O,).
    node : Node
        The node, for its padding, strides and dilations.
    group : int
        How many groups of channels there are.

    Returns
    -------
    Value
        (N, O, ...).
    """
    window, cut = window_transposed(node, x, w)
    r = len(window.kernel)
    zeros = [s - 1 for s in window.strides]
    apart = op.Unsqueeze(x, [3 + 2 * i for i in range(r)])
    apart = op.Pad(apart, [0] * (apart.rank + 2) + [n for z in zeros for n in (0, z)])
    apart = op.Reshape(apart, vector(size(x, 0, 2), size(x, 2, x.rank) * constant(window.strides, np.int64)))
    # (C, O / group, ...) becomes (O, C / group, ...).
    kernels = op.Reshape(w, vector(constant([group, -1]), size(w, 1, w.rank)))
    kernels = op.Transpose(kernels, perm=[0, 2, 1, *range(3, 3 + r)])
    kernels = op.Reshape(kernels, vector(size(w, 1, 2) * group, constant([-1]), size(w, 2, w.rank)))
    kernels = op.Slice(kernels, [-1] * r, [np.iinfo(np.int64).min] * r, window.axes, [-1] * r)
    extra = node.attribute("output_padding") or [0] * r
    reach = (size(w, 2, w.rank) - 1) * constant(window.dilations, np.int64)
    behind = [p + z - o for p, z, o in zip(window.pads[r:], zeros, extra, strict=True)]
    apart = op.Pad(apart, vector(constant([0, 0]), reach - window.pads[:r], constant([0, 0]), reach - behind))
    y = _convolved(apart, kernels, None, Window(window.kernel, [1] * r, window.dilations, [0] * 2 * r), group)
    y = y if cut is None else op.Pad(y, -cut)
    return y if b is None else y + op.Unsqueeze(b, list(range(1, r + 1)))


def average(x: Value, *, node: Node, ceil_mode: int, count_include_pad: int) -> Value:
    """AveragePool: what each window sees, summed, by how many elements it counts.

    Parameters
    ----------
    x : Value
        Images (N, C, ...).
    node : Node
        The node, for its windows and, with `ceil_mode`, the number of them.
    ceil_mode : int
        Whether the last window may reach beyond the padding.
    count_include_pad : int
        Whether the padding counts.

    Returns
    -------
    Value
        (N, C, ...).
    """
    m, counted = known(node.outputs[0]), vector(constant([1, 1]), size(x, 2, x.rank))
    ones, _ = padded(op.Expand(constant(np.ones(1, x.dtype)), counted), node, padding=count_include_pad)
    x, window = padded(x, node)
    if ceil_mode and m is None:
        raise unknown(node, "ceil_mode", x)
    r = len(window.kernel)
    beyond = [s - 1 if ceil_mode else 0 for s in window.strides]

    def total(v: Value, padding: int) -> Value:
        v = _padded(v, window.pads, padding)
        seen, _ = _seen(_padded(v, [0] * r + beyond), constant(window.kernel, np.int64), window)
        found = op.ReduceSum(seen, window.axes, keepdims=0)
        return found if m is None or not ceil_mode else cropped(found, constant(m, np.int64), x.rank)

    return total(x, 0) / total(ones, count_include_pad)


def unknown(node: Node, what: str, x: Value) -> NoGradientError:
    """The error of windows that cannot be counted."""
    return NoGradientError(
        f"{node!r} has {what}, so its windows depend on sizes that are not known: those of its kernel or of {x!r}. "
        f"Declare the sizes of the model's inputs."
    )


def joined(x: Value, image: Value, block: Value, *, node: Node, strides: Sequence[int], dilations: Sequence[int],
           pads: Sequence[int]) -> Value:
    """Col2Im: a transposed convolution, whose kernel for each place of a block is 1 there and 0 elsewhere.

    Parameters
    ----------
    x : Value
        Blocks, (N, C · places in a block, number of blocks).
    image, block : Value
        Sizes.
    node : Node
        The node, for errors.
    strides, dilations, pads : list of int
        How the blocks lie.

    Returns
    -------
    Value
        (N, C, *image).
    """
    if image.array is None or block.array is None:
        raise unknown(node, "sizes that are computed", x)
    n, k = image.array.tolist(), block.array.tolist()
    r = len(n)
    window = Window(k, strides or [1] * r, dilations or [1] * r, pads or [0] * 2 * r)
    free = [a + b + c - e for a, b, c, e in zip(n, window.pads[:r], window.pads[r:], window.extent, strict=True)]
    stops = [f // s + 1 for f, s in zip(free, window.strides, strict=True)]
    places = math.prod(k)
    y = op.ConvTranspose(
        op.Reshape(x, [-1, places, *stops]), np.eye(places, dtype=x.dtype).reshape(places, 1, *k),
        strides=window.strides, dilations=window.dilations, pads=window.pads,
        output_padding=[f % s for f, s in zip(free, window.strides, strict=True)])
    return op.Reshape(y, vector(size(x, 0, 1), constant([-1, *n])))


def _convolved(x: Value, w: Value, b: Value | None, window: Window, group: int) -> Value:
    """The convolution of x by w, with pads in numbers."""
    seen, stops = _seen(_padded(x, window.pads), size(w, 2, w.rank), window)
    n = size(op.Flatten(w, axis=1), 1, 2)
    columns = op.Reshape(seen, vector(constant([0, group]), n, constant([-1])))
    y = op.Reshape(w, vector(constant([group, -1]), n)) @ columns
    y = op.Reshape(y, vector(size(x, 0, 1), size(w, 0, 1), *stops))
    return y if b is None else y + op.Unsqueeze(b, list(range(1, x.rank - 1)))


def _padded(v: Value, pads: Sequence[int], number: float = 0) -> Value:
    """v with a number around it; fewer elements where there are fewer than no pads."""
    r = len(pads) // 2
    return op.Pad(v, [0, 0, *pads[:r], 0, 0, *pads[r:]], number) if any(pads) else v


def _seen(x: Value, kernel: Value, window: Window) -> tuple[Value, list[Value]]:
    """What windows of a size see of x, (N, C, places in the window ..., stops of it ...), and how often they stop."""
    stops = []
    r = len(window.strides)
    for i, (stride, dilation) in enumerate(zip(window.strides, window.dilations, strict=True)):
        k = op.Gather(kernel, i, axis=0)
        axis = 2 + 2 * i
        n = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), [0])
        m = op.Div(n - (k - 1) * dilation - 1, stride) + 1
        places, starts = op.Range(0, k, 1) * dilation, op.Range(0, m, 1) * stride
        x = op.Gather(x, op.Unsqueeze(places, [1]) + starts, axis=axis)
        stops.append(op.Unsqueeze(m, [0]))
    return op.Transpose(x, perm=[0, 1, *range(2, 2 + 2 * r, 2), *range(3, 3 + 2 * r, 2)]), stops

"""Convolutions, pooling and what else looks at an image through windows.

A window is a view: places that are affine in its position and in the place inside of it. A convolution is a matrix
product with the windows as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Node, Value, constant
from ortpartial.limits import limits
from ortpartial.native.convolutions import ConvolutionShape
from ortpartial.native.expressions import Affine, Expression, Iota, Literal, Load
from ortpartial.native.kernels import Convolution
from ortpartial.native.translation import Translator, describe, sizes, translates
from ortpartial.native.types import literal, suffix

from .elementwise import apply
from .products import multiply
from .reductions import add_up, reduce_axes
from .shapes import pad_with, reshape

__all__: list[str] = []

_INT64 = np.dtype(np.int64)
#: Beyond every place.
_FAR = np.iinfo(_INT64).max


@dataclass(frozen=True)
class _Windows:
    """The windows of an image.

    Parameters
    ----------
    image, kernel, out : tuple of int
        The sizes of the image, of a window, and how many windows there are, by axis.
    strides, dilations, before, after : tuple of int
        From one window to the next, from one element of a window to the next, and the margins of the image.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, node: Node, image: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> _Windows:
        """The windows of a node from its attributes."""
        n = len(kernel)
        strides, dilations = (tuple(node.attribute(name) or [1] * n) for name in ("strides", "dilations"))
        spans = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out, strides, kernel, dilations, strict=True)]
        how, pads = _text(node.attribute("auto_pad")), node.attribute("pads") or [0] * 2 * n
        if how.startswith("SAME"):
            totals = [max(span - size, 0) for span, size in zip(spans, image, strict=True)]
            before = [total // 2 if how == "SAME_UPPER" else -(-total // 2) for total in totals]
            pads = [*before, *(total - b for total, b in zip(totals, before, strict=True))]
        return cls(tuple(image), tuple(kernel), tuple(out), strides, dilations, tuple(pads[:n]), tuple(pads[n:]))

    @property
    def padded(self) -> tuple[int, ...]:
        """The sizes of the image with its margins, as far as windows reach."""
        spans = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in
                 zip(self.out, self.strides, self.kernel, self.dilations, strict=True)]
        sizes_with = [b + n + a for b, n, a in zip(self.before, self.image, self.after, strict=True)]
        return tuple(max(pair) for pair in zip(spans, sizes_with, strict=True))

    def view(self, padded: Load) -> Load:
        """The windows of an image (N, C, ...) with margins: (N, C, window ..., element ...)."""
        at = padded.at
        shape = (*padded.shape[:2], *self.out, *self.kernel)
        inner = at.strides[2:]
        strides = (*at.strides[:2], *(a * b for a, b in zip(inner, self.strides, strict=True)),
                   *(a * b for a, b in zip(inner, self.dilations, strict=True)))
        return Load(padded.dtype, shape, padded.array, Affine(shape, strides, at.offset, at.outer))

    def of_image(self, t: Translator, x: Expression, margin: object = 0) -> Load:
        """The windows of an image, whose margins hold a number."""
        whole = (*x.shape[:2], *self.padded)
        padded = t.load(pad_with(t, x, (0, 0, *self.before), whole, Literal(x.dtype, (), margin)))
        return self.view(padded)

    def add_up(self, t: Translator, columns: Expression) -> Expression:
        """The image whose elements are the sums of those of all windows (N, C, element ..., window ...)."""
        n = len(self.kernel)
        padded = t.allocate(columns.dtype, (*columns.shape[:2], *self.padded))
        t.store(Literal(columns.dtype, padded.shape, 0), padded)
        order = [*range(2 + n, 2 + 2 * n), 0, 1, *range(2, 2 + n)]  # element by element, all windows
        to, values = (t.view(e, lambda at: at.permuted(order)) for e in (
            self.view(padded), t.view(columns, lambda at: at.permuted([0, 1, *range(2 + n, 2 + 2 * n),
                                                                       *range(2, 2 + n)]))))
        assert isinstance(to, Load)
        t.store(values, to, "{0} + {1}")
        return t.view(padded, lambda at: at.sliced((0, 0, *self.before), [1] * len(padded.shape),
                                                   (*padded.shape[:2], *self.image)))


def _text(value: Any) -> str:
    """An attribute that is a word."""
    return value.decode() if isinstance(value, bytes) else value or "NOTSET"


def _call_kernel(t: Translator, node: Node, windows: _Windows) -> Expression | None:
    """The result of a kernel with sizes at run time, where a convolution has two axes at most and is worth it.

    A Conv of turned images by turned images, or of more taps than places, is the gradient of another one by its
    kernels: images stand in place of channels.
    """
    x, w, *bias = (t.read(v) for v in node.inputs if v is not None)
    n, group = len(windows.kernel), node.attribute("group")
    if not t.is_linked or n > 2 or x.dtype.kind != "f" or 0 in (x.size, w.size, *sizes(node.outputs[0])):
        return None

    def pair(values: tuple[int, ...], only: int = 1) -> tuple[int, int]:
        return (only, *values) if n == 1 else values  # type: ignore[return-value]

    image, kernel, out = (pair(v) for v in (windows.image, windows.kernel, windows.out))
    strides, dilations, before = pair(windows.strides), pair(windows.dilations), pair(windows.before, 0)
    is_transposed = node.op_type == "ConvTranspose"
    if not is_transposed and group == 1 and not bias and (prod(kernel) > prod(out) or all(map(_is_turned, node.reads))):
        shape = ConvolutionShape("kernels", x.shape[1], 1, x.shape[0], w.shape[0], image, out, kernel, dilations,
                                 strides, before, x.dtype)
        x, w = (t.view(e, lambda at: at.permuted([1, 0, *range(2, 2 + n)])) for e in (x, w))
        to = t.allocate(x.dtype, (w.shape[1], x.shape[1], *windows.out))
    else:
        shape = ConvolutionShape("images" if is_transposed else "forward", x.shape[0], group, w.shape[1],
                                 w.shape[0] // group, image, kernel, out, strides, dilations, before, x.dtype)
        to = t.allocate(x.dtype, sizes(node.outputs[0]), node.outputs[0])
    if not shape.is_worth_a_call:
        return None
    addend = _lay_flat(t, bias[0]) if bias else None
    t.kernels.append(Convolution(shape, _lay_flat(t, x), _lay_flat(t, w), to, addend,
                                 t.allocate(x.dtype, (shape.scratch,))))
    return to if shape.kind != "kernels" else t.view(to, lambda at: at.permuted([1, 0, *range(2, 2 + n)]))


def _is_turned(v: Value) -> bool:
    """Whether a value is another one with its first two axes exchanged."""
    node = v.node
    return node is not None and node.op_type == "Transpose" and list(node.attribute("perm") or ())[:2] == [1, 0]


def _lay_flat(t: Translator, e: Expression) -> Load:
    """The places of a value whose elements are adjacent."""
    place = t.load(e)
    return place if place.at.is_contiguous else t.store(place)


@translates("Conv")
def convolve(t: Translator, node: Node) -> Expression:
    x, w, *bias = (t.read(v) for v in node.inputs if v is not None)
    y = sizes(node.outputs[0])
    windows = _Windows.of(node, x.shape[2:], w.shape[2:], y[2:])
    if (image := _call_kernel(t, node, windows)) is not None:
        return image
    rows, group, n = x.shape[0], node.attribute("group"), len(windows.kernel)
    inner, outer, places = range(2 + n, 2 + 2 * n), range(2, 2 + n), prod(windows.out)
    if places <= limits().few_windows:  # a product for all images, as few columns leave registers empty
        columns = t.view(windows.of_image(t, x), lambda at: at.permuted([1, *inner, 0, *outer]))
        columns = reshape(t, columns, (group, w.size // w.shape[0], rows * places))
        addend = reshape(t, bias[0], (group, w.shape[0] // group, 1)) if bias else None
        product = multiply(t, reshape(t, w, (group, w.shape[0] // group, w.size // w.shape[0])), columns,
                           addend=addend)
        image = reshape(t, product, (w.shape[0], rows, *windows.out))
        return t.view(image, lambda at: at.permuted([1, 0, *outer]))
    columns = t.view(windows.of_image(t, x), lambda at: at.permuted([0, 1, *inner, *outer]))
    columns = reshape(t, columns, (rows, group, w.size // w.shape[0], places))
    kernels = reshape(t, w, (1, group, w.shape[0] // group, w.size // w.shape[0]))
    addend = reshape(t, bias[0], (1, group, w.shape[0] // group, 1)) if bias else None
    to = t.allocate(x.dtype, (rows, group, w.shape[0] // group, places), node.outputs[0])
    return reshape(t, multiply(t, kernels, columns, to, addend=addend), y)


@translates("ConvTranspose")
def convolve_transposed(t: Translator, node: Node) -> Expression:
    x, w, *bias = (t.read(v) for v in node.inputs if v is not None)
    y, group = sizes(node.outputs[0]), node.attribute("group")
    if _text(node.attribute("auto_pad")) != "NOTSET" or node.attribute("output_shape"):
        raise UntranslatableError(f"{describe(node)} with auto_pad or output_shape is not written in C.")
    windows = _Windows.of(node, y[2:], w.shape[2:], x.shape[2:])
    if (image := _call_kernel(t, node, windows)) is not None:
        return image
    places, channels = prod(windows.out), w.shape[1] * prod(windows.kernel)
    kernels = reshape(t, w, (1, group, w.shape[0] // group, channels))
    rows = reshape(t, x, (x.shape[0], group, x.shape[1] // group, places))
    columns = multiply(t, t.view(kernels, lambda at: at.permuted([0, 1, 3, 2])), rows)
    image = windows.add_up(t, reshape(t, columns, (*y[:2], *windows.kernel, *windows.out)))
    return image if not bias else apply(
        t, "{0} + {1}", image, reshape(t, bias[0], (1, y[1], *[1] * len(windows.kernel))))


@translates("Col2Im")
def add_up_columns(t: Translator, node: Node) -> Expression:
    columns, y = t.read(node.inputs[0]), sizes(node.outputs[0])
    kernel = t.numbers(node.inputs[2])
    if kernel is None:
        raise UntranslatableError(f"{describe(node)} with a block that is computed is not written in C.")
    k, n = tuple(kernel.tolist()), len(kernel)
    strides, dilations = (node.attribute(name) or [1] * n for name in ("strides", "dilations"))
    pads = node.attribute("pads") or [0] * 2 * n
    out = [(pads[i] + y[2 + i] + pads[n + i] - dilations[i] * (k[i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    windows = _Windows(y[2:], k, tuple(out), tuple(strides), tuple(dilations), tuple(pads[:n]), tuple(pads[n:]))
    return windows.add_up(t, reshape(t, columns, (*y[:2], *k, *out)))


@translates("MaxPool")
def pool_maximum(t: Translator, node: Node) -> list[Expression]:
    x, y = t.read(node.inputs[0]), sizes(node.outputs[0])
    windows = _Windows.of(node, x.shape[2:], node.attribute("kernel_shape"), y[2:])
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    first = "(-INFINITY)" if x.dtype.kind == "f" else str(least)
    seen = windows.of_image(t, x, least)
    largest = _combine(t, seen, len(y), f"op_max_{suffix(x.dtype)}({{0}}, {{1}})", first)
    if len(node.outputs) == 1 or not t.uses[node.outputs[1]]:
        return [largest]
    if node.attribute("storage_order"):
        raise UntranslatableError(f"The indices of {describe(node)} in column-major order are not written in C.")
    # The first place in the tensor, without margins, whose element equals the largest.
    places = windows.of_image(t, Iota(_INT64, x.shape, Affine.contiguous(x.shape)), _FAR)
    of_window = reshape(t, largest, (*y, *[1] * len(windows.kernel)))
    place = apply(t, f"{{0}} == {{1}} ? {{2}} : {literal(_FAR, _INT64)}", seen, of_window, places, dtype=_INT64)
    return [largest, _combine(t, place, len(y), "op_min_i64({0}, {1})", literal(_FAR, _INT64))]


@translates("AveragePool")
def pool_average(t: Translator, node: Node) -> Expression:
    x, y = t.read(node.inputs[0]), sizes(node.outputs[0])
    windows = _Windows.of(node, x.shape[2:], node.attribute("kernel_shape"), y[2:])
    total = _combine(t, windows.of_image(t, x), len(y), "{0} + {1}", "0")
    counts = np.maximum(_count(windows, with_margin=bool(node.attribute("count_include_pad"))), 1).astype(x.dtype)
    return apply(t, "{0} / {1}", total, t.read(constant(counts)), weight=5)


def _combine(t: Translator, views: Expression, kept: int, template: str, first: str) -> Expression:
    """The elements of every window combined."""
    return reduce_axes(t, views, range(kept, len(views.shape)), template, first)


def _count(windows: _Windows, *, with_margin: bool) -> np.ndarray:
    """How many elements of the image every window has."""
    counts = np.ones((), np.int64)
    for i, size in enumerate(windows.image):
        before, after = windows.before[i], windows.after[i]
        places = np.arange(windows.out[i])[:, None] * windows.strides[i] - before
        places = places + np.arange(windows.kernel[i]) * windows.dilations[i]
        low, high = (-before, size + after) if with_margin else (0, size)
        counts = np.multiply.outer(counts, ((places >= low) & (places < high)).sum(1))
    return counts


@translates("GlobalAveragePool", "GlobalMaxPool")
def pool_all(t: Translator, node: Node) -> Expression:
    x, y = t.read(node.inputs[0]), sizes(node.outputs[0])
    axes = range(2, len(x.shape))
    if node.op_type == "GlobalMaxPool":
        return reduce_axes(t, x, axes, f"op_max_{suffix(x.dtype)}({{0}}, {{1}})", "(-INFINITY)", y)
    count = Literal(x.dtype, (), prod(x.shape[2:]))
    return apply(t, "{0} / {1}", add_up(t, x, axes, y), count, weight=5)

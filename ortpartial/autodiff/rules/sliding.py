"""Sliding windows: the patches of an image that a kernel sees, as views or columns (im2col), and their sum (col2im)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpartial.graph import Value, op
from ortpartial.limits import limits

Sizes = Sequence[int] | None

ALL = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """A window that slides over the spatial axes; `pads` are the pads before, then after each axis."""

    kernel: Sequence[Any]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]

    @property
    def axes(self) -> list[int]:
        """The spatial axes."""
        return list(range(2, 2 + len(self.kernel)))

    @property
    def fixed(self) -> bool:
        """Whether the size of the kernel is known."""
        return all(isinstance(k, int) for k in self.kernel)

    @property
    def is_point(self) -> bool:
        """Whether it sees a single element at a time, so that a convolution is a matrix product."""
        return set(self.kernel) == {1} and not any(self.pads)

    @property
    def extent(self) -> list[int]:
        """The number of elements that it spans along each axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def sliding(self) -> dict[str, Sequence[int] | None]:
        """The attributes of an operator except pads."""
        kernel = self.kernel if self.fixed else None
        return {"strides": self.strides, "dilations": self.dilations, "kernel_shape": kernel}


def spatial_sizes(x: Value) -> Sizes:
    """The sizes of the spatial axes, None unless all are known."""
    sizes = [n for n in (x.shape or ())[2:] if isinstance(n, int)]
    return sizes if x.shape is not None and len(sizes) == x.rank - 2 else None


def has_few_windows(x: Value, m: Sequence[int], window: Window) -> bool:
    """Whether there are so few window positions m that a single product for all images beats a product per image."""
    return math.prod(m) <= limits().few_windows and fits_col2im(x, m, window)


def is_small_pool(x: Value, m: Sequence[int], window: Window) -> bool:
    """Whether a window without padding sees at most four elements of x, like a pool that halves an image.

    In float16 none is small: comparisons of elements would not be exact, as the note in elementwise.py says.
    """
    halved = math.prod(window.kernel) <= limits().small_pool and not any(window.pads) and x.dtype.itemsize >= 4
    return halved and isinstance((x.shape or ())[1], int) and fits_col2im(x, m, window)


def has_small_kernel(x: Value, dy: Value, window: Window) -> bool:
    """Whether a kernel is so small that a product per channel of x is slow, and the columns fit into a cache."""
    if not (window.fixed and x.is_static and dy.is_static) or 0 in (x.shape or ()):
        return False
    sizes = [*(x.shape or ())[:2], *(dy.shape or ())[2:], *window.kernel]
    is_cached = math.prod(n for n in sizes if isinstance(n, int)) <= limits().cached_elements
    return math.prod(window.kernel) <= limits().small_kernel and is_cached


def fits_col2im(x: Value, m: Sequence[int], window: Window) -> bool:
    """Whether `col2im` works for window positions m, which must be all positions of the window.

    Col2Im of onnxruntime 1.19.2 and 1.31.1 is wrong with 1 or 3 spatial axes.
    """
    n, r = spatial_sizes(x), len(window.kernel)
    if n is None or r != 2 or 0 in (x.shape or ()):
        return False
    around = map(sum, zip(n, window.pads[:r], window.pads[r:], strict=True))
    return [(i - e) // s + 1 for i, e, s in zip(around, window.extent, window.strides, strict=True)] == list(m)


def extract_views(x: Value, m: Sequence[int], window: Window) -> list[Value]:
    """For each place of the kernel, the elements of x that it sees at the m window positions.

    onnxruntime 1.19 to 1.31 slices a row with stride s element by element. So columns that are s apart are first made
    adjacent, once for all places.
    """
    r, s, steps = len(window.kernel), 1, list(window.strides)
    if math.prod(window.kernel) > 1:
        s, steps[-1] = steps[-1], 1
    before, behind = window.pads[:r], list(window.pads[r:])
    width = (spatial_sizes(x) or m)[-1] + before[-1] + behind[-1]
    behind[-1] += -width % s
    if any([*before, *behind]):
        x = op.Pad(x, [0, 0, *before, 0, 0, *behind])
    if s > 1:
        sizes = [n for n in (x.shape or ())[1:-1] if isinstance(n, int)] + [-(-width // s)]
        # Through a Flatten, onnxruntime 1.31.1 does not move the Transpose on to the views.
        apart = op.Flatten(op.Transpose(op.Reshape(x, [0, math.prod(sizes), s]), perm=[0, 2, 1]))
        x = op.Reshape(apart, [0, s, *sizes])
    slices = []
    for place in np.ndindex(*window.kernel):
        first = [i * d for i, d in zip(place, window.dilations, strict=True)]
        first[-1], phase = divmod(first[-1], s)
        last = [i + (j - 1) * t + 1 for i, j, t in zip(first, m, steps, strict=True)]
        which = [phase, phase + 1] if s > 1 else [0, ALL]
        seen = op.Slice(x, [which[0], *first], [which[1], *last], [1, *range(x.rank - r, x.rank)], [1, *steps])
        slices.append(op.Squeeze(seen, [1]) if s > 1 else seen)
    return slices


def im2col(x: Value, m: Sequence[int], window: Window) -> Value:
    """The elements under the window at each of its m positions, as a matrix (channels · kernel, batch · positions)."""
    images = op.Transpose(x, perm=[1, 0, *window.axes])
    channels, batch = (int(n) for n in (images.shape or ())[:2])  # type: ignore[arg-type]
    flat = [op.Reshape(v, [channels, 1, batch * math.prod(m)]) for v in extract_views(images, m, window)]
    return op.Reshape(op.Concat(*flat, axis=1), [channels * len(flat), batch * math.prod(m)])


def col2im(columns: Value, n: Sequence[int], window: Window) -> Value:
    """Σ of columns (batch, channels · kernel, positions) at the elements of images of sizes n that they come from."""
    return op.Col2Im(columns, list(n), list(window.kernel), pads=window.pads, strides=window.strides,
                     dilations=window.dilations)


def multiply_col2im(dy: Value, w: Value, n: Sequence[int], window: Window) -> Value:
    """Σ dy · w over the windows that see an element: a product for all images, then `col2im`."""
    channels, *kernel = (n for n in w.shape or () if isinstance(n, int))
    lines = op.Reshape(op.Transpose(dy, perm=[0, *window.axes, 1]), [-1, channels])
    columns = op.Reshape(op.Gemm(lines, op.Flatten(w)), [-1, math.prod(spatial_sizes(dy) or ()), math.prod(kernel)])
    return col2im(op.Transpose(columns, perm=[0, 2, 1]), n, window)

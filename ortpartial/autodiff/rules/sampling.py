"""Gradients of image sampling: GridSample, AffineGrid and DeformConv."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np
from onnx import TensorProto

from ortpartial.graph import Value, cast, constant, op, reshape_like

from ..grad import composed
from ..registry import vjp
from .shape import concat_sizes, slice_shape
from .window import read_window


@dataclass(frozen=True)
class Taps:
    """Samples along an axis: places (N, P, K) and their weights, None where all are 1."""

    places: Value
    weights: Value | None = None


@composed("GridSample")
def _(x, grid, *, y, mode, padding_mode, align_corners):
    r = x.rank - 2
    points = flatten_grid(grid, r)
    taps = []
    for axis in range(2, x.rank):
        # The axes of the grid are named the other way round: its first number belongs to the last axis.
        u, n = op.Gather(points, x.rank - 1 - axis, axis=2), cast(slice_shape(x, axis, axis + 1), grid)
        u = (u + 1) * (n - 1) / 2 if align_corners else ((u + 1) * n - 1) / 2
        taps.append(pad_taps(interpolate(bound(u, n, padding_mode), mode), n, padding_mode, align_corners))
    return reshape_like(sample(x, taps), y)


def flatten_grid(grid: Value, r: int) -> Value:
    """The points of a grid as a list, (N, P, r)."""
    points = op.ReduceProd(slice_shape(grid, 1, r + 1))
    return op.Reshape(grid, concat_sizes(slice_shape(grid, 0, 1), points, constant([r])), allowzero=1)


def bound(u: Value, n: Value, padding_mode: str) -> Value:
    """Places u along an axis of n elements, within reach: weights of places without end would be infinite or NaN.

    Beyond three elements outside, all taps are moved to the same element or have a weight of 0, so that the gradient is
    0 either way; reflected places return, and only infinite ones are bounded.
    """
    if padding_mode == "reflection":
        most = float(np.finfo(u.dtype).max) / 4
        return op.Min(op.Max(u, -most), most)
    return op.Min(op.Max(u, -4.0), n + 3)


def interpolate(u: Value, mode: str) -> Taps:
    """The elements around the places u (N, P), with the weights of an interpolation."""
    first = op.Unsqueeze(op.Round(u) if mode == "nearest" else op.Floor(u), [2])
    if mode == "nearest":
        return Taps(first)
    t = op.Unsqueeze(u, [2]) - first
    if mode == "linear":
        return Taps(op.Add(first, [0.0, 1.0]), op.Concat(1 - t, t, axis=2))
    weights = op.Concat(far_weight(1 + t), near_weight(t), near_weight(1 - t), far_weight(2 - t), axis=2)
    return Taps(op.Add(first, [-1.0, 0.0, 1.0, 2.0]), weights)


def near_weight(d: Value, a: float = -0.75) -> Value:
    """The weight of cubic interpolation at a distance d ≤ 1."""
    return ((a + 2) * d - (a + 3)) * d * d + 1


def far_weight(d: Value, a: float = -0.75) -> Value:
    """The weight of cubic interpolation at a distance 1 ≤ d ≤ 2."""
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def pad_taps(taps: Taps, n: Value, padding_mode: str, align_corners: int) -> Taps:
    """Taps inside of an axis of n elements: outer taps are moved inside or have a weight of 0."""
    i, weights = taps.places, taps.weights
    if padding_mode == "zeros":
        inside = cast(op.And(i >= 0, i <= n - 1), n)
        weights = inside if weights is None else weights * inside
    elif padding_mode == "reflection":
        # Reflected at the centres of the outermost elements, or at their outer edges.
        low, span = (0.0, n - 1) if align_corners else (-0.5, n)
        period = op.Max(2 * span, 1)
        i = span - op.Abs(op.Mod(op.Abs(i - low), period, fmod=1) - span) + low
    return Taps(op.Min(op.Max(i, 0), n - 1), weights)


def gather_taps(x: Value, taps: Sequence[Taps]) -> Value:
    """The elements (N, C, P, K₁, K₂ ...) of an image (N, C, ...) at the places of taps along each of its axes."""
    place = to_integers(align_taps(taps[0].places, 0, len(taps)))
    for axis, t in enumerate(taps[1:], 1):
        place = place * slice_shape(x, axis + 2, axis + 3) + to_integers(align_taps(t.places, axis, len(taps)))
    flat = op.Reshape(x, concat_sizes(slice_shape(x, 0, 2), op.ReduceProd(slice_shape(x, 2, x.rank))), allowzero=1)
    places = op.Unsqueeze(op.Flatten(place, axis=1), [1])
    places = op.Expand(places, concat_sizes(constant([1]), slice_shape(x, 1, 2), constant([1])))
    elements = op.GatherElements(flat, places, axis=2)
    return op.Reshape(elements, op.Concat(slice_shape(x, 0, 2), op.Shape(place, start=1), axis=0), allowzero=1)


def sample(x: Value, taps: Sequence[Taps]) -> Value:
    """Σ weights · x over the places of taps, (N, C, P)."""
    r = len(taps)
    weights = [align_taps(t.weights, i, r) for i, t in enumerate(taps) if t.weights is not None]
    elements = gather_taps(x, taps).stated([None] * (3 + r))
    if weights:
        elements = elements * cast(op.Unsqueeze(reduce(mul, weights), [1]), x)
    return op.ReduceSum(elements, list(range(3, 3 + r)), keepdims=0)


def align_taps(v: Value, axis: int, n_axes: int) -> Value:
    """Values of the taps of an axis, (N, P, K), with the axes that make them broadcast against all axes."""
    return op.Unsqueeze(v, [2 + i for i in range(n_axes) if i != axis])


def to_integers(v: Value) -> Value:
    """v as integers."""
    return op.Cast(v, to=TensorProto.INT64)


@vjp("AffineGrid")
def _(theta, shape, *, y, dy, align_corners):
    # The grid is linear in theta, so that the identity gives the factor of theta.
    r = y.rank - 2
    one_image = op.Concat([1], op.Slice(shape, [1], [r + 2]), axis=0)
    base = op.AffineGrid(constant(np.eye(r, r + 1, dtype=theta.dtype)[None]), one_image, align_corners=align_corners)
    d = flatten_grid(dy, r)
    d_linear = op.ReduceSum(op.Unsqueeze(d, [3]) * op.Reshape(base, [-1, 1, r]), [1], keepdims=0)
    return op.Concat(d_linear, op.Unsqueeze(op.ReduceSum(d, [1], keepdims=0), [2]), axis=2).stated(theta.shape)


@composed("DeformConv")
def expand_deform_conv(x, w, offset, b=None, mask=None, *, node, group, offset_group):
    """The product of the kernel with the elements that its windows see, moved apart and interpolated."""
    window, r = read_window(node, x, w), x.rank - 2
    kernel, spread = slice_shape(w, 2, r + 2), slice_shape(offset, 2, r + 2)
    n, many = slice_shape(x, 0, 1), slice_shape(x, 0, 1) * offset_group
    channels = op.Div(slice_shape(x, 1, 2), offset_group)
    apart = op.Reshape(x, concat_sizes(many, channels, slice_shape(x, 2, r + 2)), allowzero=1)
    moved = op.Reshape(offset, concat_sizes(many, kernel, constant([r]), spread), allowzero=1)
    taps = []
    for i in range(r):
        steps = count_along(kernel, i, i, 2 * r) * window.dilations[i]
        starts = count_along(spread, i, r + i, 2 * r) * window.strides[i] - window.pads[i]
        u = op.Gather(moved, i, axis=1 + r) + cast(steps + starts, offset)
        inside = cast(slice_shape(x, 2 + i, 3 + i), offset)
        near = bound(op.Flatten(u, axis=1), inside, "zeros")
        taps.append(pad_taps(interpolate(near, "linear"), inside, "zeros", 0))
    seen = sample(apart, taps)
    if mask is not None:
        seen = seen * op.Unsqueeze(op.Reshape(mask, op.Shape(taps[0].places, end=2), allowzero=1), [1])
    lines = op.Reshape(w, concat_sizes(constant([group, -1]), op.ReduceProd(slice_shape(w, 1, r + 2))))
    groups = concat_sizes(n, constant([group]), op.Shape(lines, start=2), op.ReduceProd(spread))
    sizes = concat_sizes(n, slice_shape(w, 0, 1), spread)
    product = op.Reshape(lines @ op.Reshape(seen, groups, allowzero=1), sizes, allowzero=1)
    return product if b is None else product + op.Reshape(b, [1, -1] + [1] * r)


def count_along(sizes: Value, i: int, axis: int, rank: int) -> Value:
    """0, 1, 2 ... below the i-th of some sizes, along one axis of a tensor of a rank."""
    steps = op.Range(0, op.Gather(sizes, i), 1)
    return op.Reshape(steps, [-1 if k == axis else 1 for k in range(rank)])

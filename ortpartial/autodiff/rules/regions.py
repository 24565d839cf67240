"""Gradients of region pooling: RoiAlign and MaxRoiPool."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

import numpy as np

from ortpartial.graph import Value, cast, constant, op

from ..grad import composed
from .sampling import Taps, align_taps, gather_taps, sample, to_integers
from .shape import concat_sizes, slice_shape


@dataclass(frozen=True)
class Samples:
    """Samples of the bins of R regions along an axis: places (R, bins, K), weights, and which of them exist."""

    bins: int
    places: Value
    weights: Value
    exist: Value


@composed("RoiAlign")
def _(x, rois, batch_indices, *, mode, output_height, output_width, sampling_ratio, spatial_scale,
      coordinate_transformation_mode):
    half = coordinate_transformation_mode == "half_pixel"
    edges = rois * spatial_scale - 0.5 * half
    samples = []
    for axis, bins in ((1, output_height), (0, output_width)):
        start, end = op.Gather(edges, [[axis]], axis=1), op.Gather(edges, [[axis + 2]], axis=1)
        extent = end - start if half else op.Max(end - start, 1)
        samples.append(align_samples(start, extent / bins, bins, sampling_ratio, axis_size(x, 3 - axis)))
    return max_bins(x, batch_indices, samples) if mode == "max" else average_bins(x, batch_indices, samples)


@composed("MaxRoiPool")
def _(x, rois, *, pooled_shape, spatial_scale):
    samples = []
    for axis, bins in ((1, pooled_shape[0]), (0, pooled_shape[1])):
        # Half numbers go up, and not to the nearest even number.
        start, end = (op.Floor(op.Gather(rois, [[i]], axis=1) * spatial_scale + 0.5) for i in (axis + 1, axis + 3))
        step, n = op.Max(end - start + 1, 1) / bins, axis_size(x, 3 - axis)
        bin_ = op.Unsqueeze(count_up(bins, x), [0, 2])
        first = op.Min(op.Max(op.Floor(bin_ * step) + start, 0), n)
        behind = op.Min(op.Max(op.Ceil((bin_ + 1) * step) + start, 0), n)
        i = first + count_up_to(behind - first)
        samples.append(Samples(bins, op.Min(i, n - 1), cast(i < behind, x), i < behind))
    return max_bins(x, op.Gather(rois, 0, axis=1), samples)


def align_samples(start: Value, step: Value, bins: int, ratio: int, n: Value) -> Samples:
    """Equidistant samples in bins of a step; without a ratio, as many as the step has elements."""
    number = constant(np.full((1, 1, 1), ratio, step.dtype)) if ratio else op.Max(op.Ceil(step), 0)
    s, bin_ = count_up_to(number), op.Unsqueeze(count_up(bins, step), [0, 2])
    u = start + (bin_ + (s + 0.5) / op.Max(number, 1)) * step
    inside = cast(op.And(u >= -1, u <= n), u)
    u = op.Min(op.Max(u, 0), n - 1)
    first = op.Floor(u)
    t = u - first
    places = op.Concat(first, op.Min(first + 1, n - 1), axis=2)
    exist = op.And(s < number, u >= 0)  # the second always holds: it has the shape
    weights = op.Concat((1 - t) * inside, t * inside, axis=2)
    return Samples(bins, places, weights, op.Concat(exist, exist, axis=2))


def average_bins(x: Value, images: Value, samples: Sequence[Samples]) -> Value:
    """The mean of the samples of each bin; a sample is the weighted sum of two elements per axis."""
    taps = [image_taps(images, samples)]
    for axis, s in enumerate(samples):
        exist = cast(s.exist, x)
        weights = 2 * s.weights * exist / op.Max(op.ReduceSum(exist, [2]), 1)
        taps.append(Taps(each_bin(s.places, axis, samples), each_bin(weights, axis, samples)))
    return by_region(sample(by_batch(x), taps), samples)


def max_bins(x: Value, images: Value, samples: Sequence[Samples]) -> Value:
    """The largest weighted element of each bin; 0 for an empty bin."""
    taps = [Taps(each_bin(s.places, axis, samples)) for axis, s in enumerate(samples)]
    samples_of_bins = op.Squeeze(gather_taps(by_batch(x), [image_taps(images, samples), *taps]), [3])
    samples_of_bins = samples_of_bins * multiply_axes(samples, [s.weights for s in samples])
    exist = multiply_axes(samples, [cast(s.exist, x) for s in samples]) > 0
    most = op.ReduceMax(op.Where(exist, samples_of_bins, -np.inf), [3, 4], keepdims=0)
    some = op.ReduceMax(cast(exist, x), [3, 4], keepdims=0) > 0
    return by_region(op.Where(some, most, 0.0), samples)


def multiply_axes(samples: Sequence[Samples], values: Sequence[Value]) -> Value:
    """The outer products of values of the samples along both axes, (1, 1, P, K, L)."""
    return op.Unsqueeze(reduce(mul, (align_taps(each_bin(v, i, samples), i, 2) for i, v in enumerate(values))), [1])


def axis_size(x: Value, axis: int) -> Value:
    """The size of an axis as a number of the dtype of x."""
    return cast(slice_shape(x, axis, axis + 1), x)


def count_up(n: int, like: Value) -> Value:
    """0, 1, 2 ... n - 1 in the dtype of `like`."""
    return constant(np.arange(n, dtype=like.dtype))


def count_up_to(number: Value) -> Value:
    """0, 1, 2 ... below the largest of some numbers; never empty."""
    top = op.Max(op.ReduceMax(op.Concat(op.Reshape(number, [-1]), [1.0], axis=0), keepdims=0), 1)
    return op.Unsqueeze(cast(op.Range(0, to_integers(top), 1), number), [0, 1])


def by_batch(x: Value) -> Value:
    """Images (N, C, H, W) as a volume, (1, C, N, H, W), whose first axis selects the image."""
    return op.Unsqueeze(op.Transpose(x, perm=[1, 0, 2, 3]), [0])


def image_taps(images: Value, samples: Sequence[Samples]) -> Taps:
    """The taps that select the image of each bin."""
    shape = [1, samples[0].bins, samples[1].bins]
    return Taps(op.Reshape(op.Expand(op.Reshape(images, [-1, 1, 1]), shape), [1, -1, 1]))


def each_bin(v: Value, axis: int, samples: Sequence[Samples]) -> Value:
    """Values of the bins along an axis, (R, bins, K), repeated for the bins of both, (1, P, K)."""
    shape = [1, samples[0].bins, samples[1].bins, 1]
    return op.Unsqueeze(op.Flatten(op.Expand(op.Unsqueeze(v, [2 - axis]), shape).stated([None] * 4), axis=3), [0])


def by_region(v: Value, samples: Sequence[Samples]) -> Value:
    """Values of all bins, (1, C, P), as (R, C, height, width)."""
    bins = constant([-1, samples[0].bins, samples[1].bins])
    return op.Transpose(op.Reshape(v, concat_sizes(slice_shape(v, 1, 2), bins)), perm=[1, 0, 2, 3])

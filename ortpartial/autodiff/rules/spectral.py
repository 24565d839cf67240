"""Gradients of spectra: the Fourier transforms DFT and STFT."""

from __future__ import annotations

import numpy as np

from ortpartial.graph import Value, cast, constant, op

from ..grad import composed
from ..registry import vjp
from .shape import concat_sizes, expand_pads, slice_shape


@vjp("DFT")
def _(x, dft_length=None, axis=None, *, y, dy, inverse, onesided):
    # The transform is linear. Its transpose is the transform the other way round, but for the factor 1 / n. It is told
    # the axis: onnxruntime 1.19.2 takes the second by default.
    axis = constant(-2) if axis is None else axis
    along = to_vector(axis)
    if inverse and onesided:
        n = axis_size(y, along)
        bins = op.DFT(dy, None, axis, onesided=1)
        dx = bins * along_axis(bin_weights(bins, n, along), x, along) / cast(n, x)
    elif inverse:
        dx = op.DFT(dy, None, axis) / cast(axis_size(y, along), x)
    else:
        n = axis_size(x if onesided else y, along) if not onesided or dft_length is None else to_vector(dft_length)
        dx = op.DFT(fit(dy, n, along), None, axis, inverse=1) * cast(n, x)
    dx = fit(dx, axis_size(x, along), along)
    return op.Slice(dx, [0], slice_shape(x, x.rank - 1, None), [x.rank - 1]).stated(x.shape)


def bin_weights(bins: Value, n: Value, along: Value) -> Value:
    """The count of each bin of a real signal of n elements: 2, with its conjugate, but 1 for the first and n/2."""
    k = op.Range(0, op.Squeeze(axis_size(bins, along), [0]), 1)
    return 2 - cast(op.Equal(k, 0), bins) - cast(op.Equal(2 * k, n), bins)


def along_axis(v: Value, x: Value, along: Value) -> Value:
    """A vector along an axis, with the axes that make it broadcast against x."""
    return op.Reshape(v, op.ScatterElements([1] * x.rank, along, [-1])).stated([None] * x.rank)


@composed("STFT")
def _(x, step, window=None, length=None, *, y, onesided):
    sized = x if window is None else op.Unsqueeze(window, [0])
    n = slice_shape(sized, 1, 2) if length is None else to_vector(length)
    starts, places = (op.Range(0, op.Squeeze(v, [0]), 1) for v in (slice_shape(y, 1, 2), n))
    x = x if x.rank == 3 else op.Unsqueeze(x, [2])  # onnxruntime takes rows, which the TorchScript exporter writes
    frames = op.Gather(x, op.Unsqueeze(starts * cast(step, starts), [1]) + cast(places, starts), axis=1)
    frames = frames if window is None else frames * op.Unsqueeze(window, [1])
    return op.DFT(frames, None, 2, onesided=onesided).stated(y.shape)


def to_vector(v: Value) -> Value:
    """A number as an int64 vector of length 1."""
    if v.array is not None:
        return constant(v.array.astype(np.int64).reshape(1))
    return op.Reshape(cast(v, constant(0, np.int64)), [1])


def axis_size(x: Value, along: Value) -> Value:
    """The size of x along an axis, as a vector of length 1."""
    if along.array is None:
        return op.Gather(op.Shape(x), along)
    axis = int(along.array.item()) % x.rank
    return slice_shape(x, axis, axis + 1)


def fit(x: Value, n: Value, along: Value) -> Value:
    """x with n elements along an axis, cropped or padded with zeros at its end."""
    size = axis_size(x, along)
    rest = n - size
    if n.array is not None and size.array is not None:
        if n.array == size.array:
            return x
        rest = constant(n.array - size.array)
    return op.Pad(x, expand_pads(concat_sizes(constant([0]), rest), along, x)).stated([None] * x.rank)

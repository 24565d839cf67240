"""Gradients of data movement: operators that move, repeat or drop elements and compute nothing."""

from typing import Any

import numpy as np
from onnx import TensorProto

from ortpartial.graph import Value, cast, constant, ones_like, op, reshape_like, shape_of, zeros_like

from ..ranges import is_finite
from ..registry import no_gradient, vjp


@vjp("Reshape")
def _(x, shape, *, dy):
    return reshape_like(dy, x)


@vjp("Flatten")
def _(x, *, dy):
    return reshape_like(dy, x)


@vjp("Squeeze")
def _(x, axes=None, *, dy):
    return reshape_like(dy, x)


@vjp("Unsqueeze")
def _(x, axes, *, dy):
    return reshape_like(dy, x)


@vjp("Transpose")
def _(x, *, dy, perm):
    return op.Transpose(dy, perm=perm and np.argsort(perm).tolist())


@vjp("Expand")
def _(x, shape, *, dy):
    return dy


@vjp("Trilu")
def _(x, k=None, *, dy, upper):
    return op.Trilu(dy, k, upper=upper)


@vjp("Tile")
def _(x, repeats, *, dy):
    # Each axis as (repeats, size), then the repeats summed.
    pairs = op.Concat(op.Unsqueeze(repeats, [1]), op.Unsqueeze(shape_of(x), [1]), axis=1)
    copies = op.Reshape(dy, op.Reshape(pairs, [-1]), allowzero=1)
    return op.ReduceSum(copies, list(range(0, 2 * x.rank, 2)), keepdims=0).stated(x.shape)


def concat_sizes(*sizes: Value) -> Value:
    """Vectors of sizes concatenated: constant if all of them are."""
    if all(s.array is not None for s in sizes):
        return constant(np.concatenate([s.array for s in sizes]))
    return op.Concat(*sizes, axis=0)


def slice_shape(x: Value, start: int, end: int | None) -> Value:
    """The sizes of x along the axes from start to end: constant if all are known."""
    sizes = (None,) if x.shape is None else x.shape[start:end]
    return constant(sizes, np.int64) if all(isinstance(n, int) for n in sizes) else op.Shape(x, start=start, end=end)


def sizes_of(x: Value) -> tuple[Any, ...]:
    """The sizes of x, none where its rank is not known: that of an initializer is."""
    return x.shape or ()


@vjp("Concat")
def _(*x, dy, axis):
    split = concat_sizes(*(slice_shape(v, axis, axis + 1 or None) for v in x))
    return [d.stated(v.shape) for d, v in zip(op.Split(dy, split, axis=axis, n_outputs=len(x)), x, strict=True)]


@vjp("Split")
def _(x, split=None, *, ys, dys, axis):
    cotangents = (zeros_like(y) if d is None else d for y, d in zip(ys, dys, strict=True))
    return op.Concat(*cotangents, axis=axis).stated(x.shape)


@vjp("Slice")
def _(x, starts, ends, axes=None, steps=None, *, y, dy):
    if steps is None or (steps.array is not None and np.all(steps.array == 1)):
        return op.Pad(dy, expand_pads(slice_margins(x, y, starts, axes), axes, x)).stated(x.shape)
    return scatter_back(dy, x, lambda i: op.Slice(i, starts, ends, axes, steps))


def slice_margins(x: Value, y: Value, starts: Value, axes: Value | None) -> Value:
    """The numbers of elements of x before and after its slice y, along each of the axes."""
    if x.is_static and y.is_static and starts.array is not None and (axes is None or axes.array is not None):
        along = np.arange(x.rank) if axes is None else axes.array
        n, m = np.asarray(x.shape, np.int64)[along], np.asarray(y.shape, np.int64)[along]
        before = np.where(starts.array < 0, starts.array + n, starts.array).clip(0, n - m)
        return constant(np.concatenate([before, n - m - before]))
    sizes, kept = op.Shape(x), op.Shape(y)
    if axes is not None:
        sizes, kept = op.Gather(sizes, axes), op.Gather(kept, axes)
        starts = op.Cast(starts, to=sizes.type.tensor_type.elem_type)
    first = op.Where(starts < 0, starts + sizes, starts)
    first = op.Max(op.Min(first, sizes - kept), 0)
    return op.Concat(first, sizes - kept - first, axis=0)


def expand_pads(pads: Value, axes: Value | None, x: Value) -> Value:
    """The pads of some axes of x as pads of all axes, 0 elsewhere.

    onnxruntime 1.19.2 and 1.31.1 mistake the axes of a Pad that stands next to a Transpose.
    """
    if axes is None:
        return pads
    if x.shape is not None and axes.array is not None and pads.array is not None:
        all_axes = np.zeros((2, x.rank), np.int64)
        all_axes[:, axes.array] = pads.array.reshape(2, -1)
        return constant(all_axes.reshape(-1))
    rank = op.Shape(op.Shape(x))
    along = op.Cast(axes, to=pads.type.tensor_type.elem_type)
    along = op.Where(along < 0, along + rank, along)
    nothing = op.Expand(constant([0]), rank + rank)
    return op.ScatterElements(nothing, op.Concat(along, along + rank, axis=0), pads)


def scatter_back(dy: Value, x: Value, move) -> Value:
    """dy summed at the elements of x that `move` moves or copies to y."""
    places = move(op.Reshape(op.Range(0, op.Size(x), 1), shape_of(x), allowzero=1))
    return scatter_flat(dy, places, x)


def scatter_flat(dy: Value, places: Value, x: Value) -> Value:
    """dy summed at places of x, which are counted over all its elements."""
    nothing = op.Expand(constant(np.zeros(1, dy.dtype)), op.Reshape(op.Size(x), [1]))
    return reshape_like(scatter_add(nothing, op.Reshape(places, [-1]), op.Reshape(dy, [-1])), x)


def scatter_add(zeros: Value, places: Value, dy: Value, axis: int = 0) -> Value:
    """dy summed at places along an axis, in float32 at least.

    On the CPU, onnxruntime (1.19.2 and 1.31.1 alike) does not add in float16, and sums of many numbers would lose bits.
    """
    return cast(op.ScatterElements(in_float32(zeros), places, in_float32(dy), axis=axis, reduction="add"), dy)


def in_float32(v: Value) -> Value:
    """v, of float32 where its dtype has fewer bits."""
    return op.Cast(v, to=TensorProto.FLOAT) if v.dtype.itemsize < 4 else v


@vjp("Pad")
def _(x, pads, constant_value=None, axes=None, *, dy, mode):
    if mode != "constant":
        return scatter_back(dy, x, lambda i: op.Pad(i, pads, None, axes, mode=mode))
    dx = op.Pad(dy, expand_pads(-pads, axes, x)).stated(x.shape)
    return dx, None, sum_padding(dy, dx, expand_pads(pads, axes, x))


def sum_padding(dy: Value, dx: Value, pads: Value) -> Value:
    """The sum of dy over the padding around dx."""
    if is_finite(dy):
        return op.ReduceSum(dy, keepdims=0) - op.ReduceSum(dx, keepdims=0)
    return op.ReduceSum(op.Where(op.Pad(ones_like(dx), pads) > 0, 0.0, dy), keepdims=0)


@vjp("DepthToSpace")
def _(x, *, dy, blocksize, mode):
    dx = op.SpaceToDepth(dy, blocksize=blocksize)
    return (reorder_channels(dx, x, blocksize) if mode == "CRD" else dx).stated(x.shape)


def reorder_channels(d: Value, x: Value, blocksize: int) -> Value:
    """d with channels in the order (channel, place in the block), given in the order (place in the block, channel)."""
    pair = op.Concat([blocksize**2], op.Div(slice_shape(x, 1, 2), blocksize**2), axis=0)
    apart = op.Reshape(d, op.Concat(slice_shape(x, 0, 1), pair, slice_shape(x, 2, 4), axis=0), allowzero=1)
    return reshape_like(op.Transpose(apart, perm=[0, 2, 1, 3, 4]), x)


@vjp("SpaceToDepth")
def _(x, *, dy, node, blocksize):
    return op.DepthToSpace(dy, blocksize=blocksize, mode=node.attribute("mode"))  # of opset 28


@vjp("ReverseSequence")
def _(x, sequence_lens, *, dy, batch_axis, time_axis):
    return op.ReverseSequence(dy, sequence_lens, batch_axis=batch_axis, time_axis=time_axis)


@vjp("Range")
def _(start, limit, delta, *, dy):
    i = op.Range(0, op.Size(dy), 1)
    return dy, None, dy * cast(i, dy)


no_gradient("Shape", "Size", "Constant", "ConstantOfShape", "EyeLike", "MelWeightMatrix")
no_gradient("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")

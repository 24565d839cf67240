"""Gradients of indexing: gather, scatter, OneHot and the like."""

from collections.abc import Callable

from ortpartial.graph import Value, cast, ones_like, op, reshape_like, shape_of, zeros_like

from ..masks import gate, scale
from ..ranges import at_least
from ..registry import no_gradient, vjp
from .reduction import factors_vjp
from .shape import concat_sizes, in_float32, scatter_add, scatter_back, slice_shape

# Elements that an index picks twice are summed by ScatterElements and never by ScatterND: with more than one thread,
# onnxruntime (1.19.2 and 1.31.1 alike) loses additions in ScatterND(reduction="add") where indices are equal.


@vjp("Gather")
def _(x, indices, *, dy, axis):
    axis %= x.rank
    if (alone := find_single_slice(x, indices, axis)) is not None:
        before, behind = alone
        return op.Pad(dy if indices.rank else op.Unsqueeze(dy, [axis]), [before, behind], None, [axis])
    if indices.rank != 1:
        picked = op.Reshape(op.Size(indices), [1])
        shape = concat_sizes(slice_shape(x, 0, axis), picked, slice_shape(x, axis + 1, x.rank))
        dy = op.Reshape(dy, shape, allowzero=1)
    along = op.Reshape(indices, [1] * axis + [-1] + [1] * (x.rank - axis - 1))
    return scatter_add(zeros_like(x), op.Expand(along, shape_of(dy)), dy, axis)


@vjp("GatherElements")
def _(x, indices, *, dy, axis):
    return scatter_add(zeros_like(x), indices, dy, axis)


@vjp("GatherND")
def _(x, indices, *, dy, batch_dims):
    return scatter_back(dy, x, lambda i: op.GatherND(i, indices, batch_dims=batch_dims))


@vjp("Compress")
def _(x, condition, *, dy, axis):
    return scatter_back(dy, x, lambda i: op.Compress(i, condition, axis=axis))


@vjp("TopK")
def _(x, k, *, ys, dy, axis):
    return op.ScatterElements(zeros_like(x), ys[1], dy, axis=axis)


@vjp("Unique")
def _(x, *, ys, dy, axis):
    # Of equal elements, the first is moved to y.
    first, flat = ys[1], axis is None
    return scatter_back(dy, x, lambda i: op.Gather(op.Reshape(i, [-1]) if flat else i, first, axis=0 if flat else axis))


@vjp("ScatterElements")
def _(x, indices, updates, *, dy, axis, reduction):
    def pick(v):
        return op.GatherElements(v, indices, axis=axis)

    def place(v, u, reduction="none"):
        return op.ScatterElements(v, indices, u, axis=axis, reduction=reduction)

    dx, du = scatter_vjp(x, updates, dy, reduction, pick, place)
    return dx, None, du


@vjp("ScatterND")
def _(x, indices, updates, *, dy, reduction):
    def pick(v):
        return op.GatherND(v, indices)

    def place(v, u, reduction="none"):
        return op.ScatterND(v, indices, u, reduction=reduction)

    dx, du = scatter_vjp(x, updates, dy, reduction, pick, place)
    return dx, None, du


def scatter_vjp(
    x: Value, u: Value, dy: Value, reduction: str, pick: Callable[[Value], Value], place: Callable[..., Value]
) -> tuple[Value, Value]:
    """Cotangents of x and of the updates u that are scattered into it; `pick` reads where `place` writes."""
    if reduction == "none":
        return place(dy, zeros_like(u)), pick(dy)
    if reduction == "add":
        return dy, pick(dy)
    if reduction == "mul":

        def product(v):
            return place(ones_like(x), v, reduction="mul")

        return dy * product(u), factors_vjp(u, dy * x, product, lambda v: scatter_back(v, x, pick), pick)
    # Computed again in float32: of float16, the runtime may compare numbers before and after rounding.
    x, u = in_float32(x), in_float32(u)
    y = place(x, u, reduction=reduction)
    kept, came = op.Equal(x, y), op.Equal(u, pick(y))
    share = dy / at_least(cast(kept, dy) + scatter_back(cast(came, dy), x, pick), 1)
    return gate(share, kept), gate(pick(share), came)


@vjp("OneHot")
def _(indices, depth, values, *, dy, axis):
    hot = op.OneHot(indices, depth, zero_and_one(values), axis=axis)
    on = op.ReduceSum(scale(dy, hot), keepdims=0)
    off = op.ReduceSum(dy, keepdims=0) - on
    return None, None, op.Concat(op.Unsqueeze(off, [0]), op.Unsqueeze(on, [0]), axis=0)


@vjp("TensorScatter")
def _(cache, update, write=None, *, dy, axis, mode):
    n, axis = update.rank, axis % update.rank
    places = op.Range(0, op.Squeeze(slice_shape(update, axis, axis + 1), [0]), 1)
    places = op.Reshape(places, [-1 if i == axis else 1 for i in range(n)])
    if write is not None:
        places = places + op.Reshape(write, [-1] + [1] * (n - 1))
    if mode == "circular":
        places = op.Mod(places, slice_shape(cache, axis, axis + 1))
    placed = op.TensorScatter(dy, zeros_like(update), write, axis=axis, mode=mode)
    return placed, op.GatherElements(dy, op.Expand(places, shape_of(update)), axis=axis)


@vjp("MaxUnpool")
def _(x, places, output_shape=None, *, dy):
    return reshape_like(op.Gather(op.Reshape(dy, [-1]), op.Reshape(places, [-1])), x)


@vjp("Col2Im")
def _(x, image_shape, block_shape, *, dy, dilations, pads, strides):
    r = dy.rank - 2
    before, behind = (pads[:r], pads[r:]) if pads else ([0] * r, [0] * r)
    dy = op.Pad(dy, [0, 0, *before, 0, 0, *behind])
    for i in range(r):
        # The axis becomes two: the place in a block, and the block.
        n = op.Gather(image_shape, i) + (before[i] + behind[i])
        block = op.Gather(block_shape, i)
        dy = op.Gather(dy, block_indices(n, block, (strides or [1] * r)[i], (dilations or [1] * r)[i]), axis=2 + 2 * i)
    places, blocks = (range(first, 2 + 2 * r, 2) for first in (2, 3))
    return reshape_like(op.Transpose(dy, perm=[0, 1, *places, *blocks]), x)


def block_indices(n: Value, block: Value, stride: int, dilation: int) -> Value:
    """The index of the element that each place of a block (row) sees at each position of the block (column)."""
    places, starts = op.Range(0, block, 1) * dilation, op.Range(0, n - (block - 1) * dilation, stride)
    return op.Unsqueeze(places, [1]) + op.Unsqueeze(starts, [0])


def zero_and_one(like: Value) -> Value:
    """(0, 1) in the dtype of `like`."""
    return op.Cast([0, 1], to=like.type.tensor_type.elem_type)


no_gradient("NonZero", "NonMaxSuppression")


def find_single_slice(x: Value, indices: Value, axis: int) -> tuple[int, int] | None:
    """The sizes of x before and after the single slice that a constant index picks; None for any other index.

    A Pad is ten times as fast as ScatterElements, which adds element by element.
    """
    n = x.shape[axis] if x.shape else None
    if indices.array is None or indices.array.size != 1 or indices.rank > 1 or not isinstance(n, int) or not n:
        return None
    i = int(indices.array.item()) % n
    return i, n - 1 - i

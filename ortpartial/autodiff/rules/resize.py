"""Gradients of Resize."""

from collections.abc import Sequence
from typing import Any

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, constant, op

from ..registry import vjp
from .linear import identity_matrix, multiply_along
from .shape import concat_sizes, slice_shape

# Every mode is linear along each axis, so that resizing the identity gives its matrix.


@vjp("Resize")
def _(x, roi=None, scales=None, sizes=None, *, y, dy, node, wanted, axes):
    check_places(node, wanted)
    resized = [axis % x.rank for axis in axes or range(x.rank)]
    for i, axis in enumerate(resized):
        if is_resized(node, i, axis, x, y):
            several = len(resized) > 1 and keeps_ratio(node)
            a = shared_ratio_matrix(node, x, i, resized) if several else resize_matrix(node, x, i, axis, len(resized))
            dy = multiply_along(a, dy, axis, x.rank)
    return dy.stated(x.shape)


def check_places(node: Node, wanted: Sequence[bool]) -> None:
    """Raise for a gradient by scales or regions, which move the places of interpolation, but not the nearest."""
    if node.attribute("mode") == "nearest":
        return
    crops = node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    _, roi, scales, *_ = *wanted, False, False
    if scales or (roi and crops):
        raise NoGradientError(f"{node!r} has no gradient by its {'scales' if scales else 'roi'}; leave out of "
                              f"weights_to_train what these follow from, or sample by GridSample, which has one by its "
                              f"grid.")


def resize_matrix(node: Node, x: Value, i: int, axis: int, n_axes: int) -> Value:
    """The matrix that resizes an axis, the i-th of the resized axes: a row for each of its elements."""
    roi, scales, sizes = (*map(drop_empty, node.inputs[1:]), None, None, None)[:3]

    def part(v, *places):
        if v is None or v.array is not None:
            return None if v is None else constant(v.array[list(places)])
        return op.Gather(v, constant(places))

    # Every axis gets its own call, and places outside of x do not depend on x.
    return op.Resize(identity_matrix(x, axis), part(roi, i, i + n_axes), part(scales, i), part(sizes, i), axes=[1],
                     **copy_attributes(node, "axes", "keep_aspect_ratio_policy", "extrapolation_value"))


def shared_ratio_matrix(node: Node, x: Value, i: int, axes: Sequence[int]) -> Value:
    """The same where all axes share a ratio, which depends on all sizes: images constant along the other axes."""
    rows, places = identity_matrix(x, axes[i]), range(2, 2 + len(axes))
    others = [1, *(k for k in places if k != i + 2)]
    # Images with a single channel, as onnxruntime has no cubic mode for tensors of another rank.
    shape = concat_sizes(slice_shape(x, axes[i], axes[i] + 1), constant([1]), *(slice_shape(x, a, a + 1) for a in axes))
    images = op.Expand(op.Unsqueeze(rows, others), shape).stated([None] * (2 + len(axes)))
    settings = copy_attributes(node, "axes")
    resized = op.Resize(images, None, None, drop_empty(node.inputs[3]), axes=list(places), **settings)
    return op.Squeeze(op.Slice(resized, [0] * len(others), [1] * len(others), others), others)


def copy_attributes(node: Node, *left_out: str) -> dict[str, Any]:
    """The attributes of a node except some."""
    return {k: v for k, v in node.attributes.items() if k not in left_out}


def keeps_ratio(node: Node) -> bool:
    """Whether all axes are resized by the same ratio, whatever sizes are asked for."""
    crops = node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    policy = node.attribute("keep_aspect_ratio_policy")
    keeps = drop_empty((*node.inputs, None, None, None)[3]) is not None and policy != "stretch"
    if keeps and crops:
        raise NoGradientError(
            f"{node!r} has keep_aspect_ratio_policy={policy} and coordinate_transformation_mode=tf_crop_and_resize, "
            f"and the gradient of both together is not known. Give the node scales instead of sizes."
        )
    return keeps


def drop_empty(v: Value | None) -> Value | None:
    """An optional input, None for the empty tensor by which old models omit it."""
    return None if v is None or (v.array is not None and not v.array.size) else v


def is_resized(node: Node, i: int, axis: int, x: Value, y: Value) -> bool:
    """Whether Resize may change an axis, the i-th of the resized axes."""
    scales = drop_empty((*node.inputs, None, None)[2])
    if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize" or keeps_ratio(node):
        return True
    if scales is not None and scales.array is not None:
        return bool(scales.array[i] != 1)
    n, m = (None if v.shape is None else v.shape[axis] for v in (x, y))
    return n is None or n != m

"""How do gradients flow through Resize?"""

from ..exceptions import NoGradientError
from ..gradient import vjp
from ..graph import Node, Value, constant, op
from .linear import along, identity

# Every mode is linear along each axis apart, so its matrix is what it makes of the identity.


@vjp("Resize")
def _(x, roi=None, scales=None, sizes=None, *, y, dy, node, axes, keep_aspect_ratio_policy):
    if given(sizes) is not None and keep_aspect_ratio_policy != "stretch":
        raise NoGradientError(
            f"{node!r} has keep_aspect_ratio_policy={keep_aspect_ratio_policy}, whose gradient is not known. Give the "
            f"node scales instead of sizes."
        )
    for i, axis in enumerate(axes or range(x.rank)):
        if changed(node, i, axis % x.rank, x, y):
            dy = along(matrix(node, x, i, axis % x.rank, len(axes or range(x.rank))), dy, axis % x.rank, x.rank)
    return dy.stated(x.shape)


def matrix(node: Node, x: Value, i: int, axis: int, n_axes: int) -> Value:
    """What one axis, the i-th of those that are resized, is multiplied by: a row for each of its elements."""
    roi, scales, sizes = (*map(given, node.inputs[1:]), None, None, None)[:3]

    def part(v, *places):
        if v is None or v.array is not None:
            return None if v is None else constant(v.array[list(places)])
        return op.Gather(v, constant(places))

    # Every axis gets its own call, and what lies outside of x does not depend on x.
    left_out = {"axes", "keep_aspect_ratio_policy", "extrapolation_value"}
    attributes = {k: v for k, v in node.attributes.items() if k not in left_out}
    return op.Resize(identity(x, axis), part(roi, i, i + n_axes), part(scales, i), part(sizes, i), axes=[1],
                     **attributes)  # fmt: skip


def given(v: Value | None) -> Value | None:
    """An optional input; old models leave one out by an empty tensor."""
    return None if v is None or (v.array is not None and not v.array.size) else v


def changed(node: Node, i: int, axis: int, x: Value, y: Value) -> bool:
    """Whether an axis, the i-th of those that are resized, is or may be another afterwards."""
    scales = given((*node.inputs, None, None)[2])
    if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize":
        return True
    if scales is not None and scales.array is not None:
        return bool(scales.array[i] != 1)
    n, m = (None if v.shape is None else v.shape[axis] for v in (x, y))
    return n is None or n != m

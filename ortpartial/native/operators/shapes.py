"""Operators that change shapes: views where strides can say them, and copies where not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Node
from ortpartial.native.expressions import Affine, Expression, Iota, Literal, Load
from ortpartial.native.translation import Translator, describe, sizes, translates

from .elementwise import apply

__all__ = ["reshape"]


def reshape(t: Translator, e: Expression, shape: Sequence[int]) -> Expression:
    """The same elements in the same order on other axes."""
    return e if e.shape == tuple(shape) else t.view(e, lambda at: at.reshaped(shape))


@translates("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape_node(t: Translator, node: Node) -> Expression:
    return reshape(t, t.read(node.inputs[0]), sizes(node.outputs[0]))


@translates("Transpose")
def transpose(t: Translator, node: Node) -> Expression:
    e = t.read(node.inputs[0])
    order = node.attribute("perm") or list(reversed(range(len(e.shape))))
    return t.view(e, lambda at: at.permuted(order))


@translates("DepthToSpace", "SpaceToDepth")
def exchange_depth(t: Translator, node: Node) -> Expression:
    e, b = t.read(node.inputs[0]), node.attribute("blocksize")
    n, channels, height, width = e.shape
    if node.op_type == "SpaceToDepth":
        parts, order = (n, channels, height // b, b, width // b, b), [0, 3, 5, 1, 2, 4]
    elif node.attribute("mode") == "CRD":
        parts, order = (n, channels // (b * b), b, b, height, width), [0, 1, 4, 2, 5, 3]
    else:
        parts, order = (n, b, b, channels // (b * b), height, width), [0, 3, 4, 1, 5, 2]
    return reshape(t, t.view(reshape(t, e, parts), lambda at: at.permuted(order)), sizes(node.outputs[0]))


@translates("EyeLike")
def eye_like(t: Translator, node: Node) -> Expression:
    y = node.outputs[0]
    place = Iota(np.dtype(np.int64), sizes(y), Affine(sizes(y), (-1, 1)))
    return apply(t, f"{{0}} == {node.attribute('k')}", place, dtype=y.dtype)


@translates("Expand")
def expand(t: Translator, node: Node) -> Expression:
    return t.broadcast(t.read(node.inputs[0]), sizes(node.outputs[0]))


@translates("Tile")
def tile(t: Translator, node: Node) -> Expression:
    e, shape = t.read(node.inputs[0]), sizes(node.outputs[0])
    pairs = [n for size, whole in zip(e.shape, shape, strict=True) for n in (whole // max(size, 1), size)]
    wide = t.broadcast(reshape(t, e, [n for size in e.shape for n in (1, size)]), pairs)
    return reshape(t, wide, shape)


@translates("Slice")
def slice_node(t: Translator, node: Node) -> Expression:
    e, shape = t.read(node.inputs[0]), sizes(node.outputs[0])
    starts, _, *rest = (t.numbers(v) for v in node.inputs[1:])
    if starts is None or any(a is None and v is not None for a, v in zip(rest, node.inputs[3:], strict=True)):
        raise UntranslatableError(f"{describe(node)} starts at a place that is computed, which is not written in C.")
    axes = rest[0] if rest and rest[0] is not None else np.arange(len(starts))
    steps = rest[1] if len(rest) > 1 and rest[1] is not None else np.ones(len(starts), np.int64)
    first, by = [0] * len(shape), [1] * len(shape)
    for axis, start, step in zip(axes.tolist(), starts.tolist(), steps.tolist(), strict=True):
        size, axis = e.shape[axis], axis % len(shape)
        start = start + size if start < 0 else start
        first[axis] = min(max(start, 0), size - 1 if step < 0 else size)
        by[axis] = step
    return t.view(e, lambda at: at.sliced(first, by, shape))


def take_part(t: Translator, e: Expression, axis: int, start: int, size: int) -> Expression:
    """Some neighbors along an axis."""
    axis %= len(e.shape)
    shape = [size if i == axis else n for i, n in enumerate(e.shape)]
    first = [start if i == axis else 0 for i in range(len(shape))]
    return t.view(e, lambda at: at.sliced(first, [1] * len(shape), shape))


@translates("Split")
def split(t: Translator, node: Node) -> list[Expression]:
    e, parts, start = t.read(node.inputs[0]), [], 0
    axis = node.attribute("axis") % len(e.shape)
    for y in node.outputs:
        size = sizes(y)[axis]
        parts.append(take_part(t, e, axis, start, size))
        start += size
    return parts


@translates("Concat")
def concat(t: Translator, node: Node) -> Expression:
    y = node.outputs[0]
    axis, whole, start = node.attribute("axis") % len(sizes(y)), t.allocate(y.dtype, sizes(y), y), 0
    for v in node.inputs:
        e = t.read(v)
        part = take_part(t, whole, axis, start, e.shape[axis])
        assert isinstance(part, Load)
        if part.size:
            t.store(e, part)
        start += e.shape[axis]
    return whole


@translates("Pad")
def pad(t: Translator, node: Node) -> Expression:
    e, y, mode = t.read(node.inputs[0]), node.outputs[0], node.attribute("mode") or "constant"
    pads = t.numbers(node.inputs[1])
    axes = t.numbers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else np.arange(len(e.shape))
    if mode != "constant" or pads is None or axes is None or (pads < 0).any():
        raise UntranslatableError(f"{describe(node)} in this mode, or with these pads, is not written in C.")
    value = t.read(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else Literal(e.dtype, (), 0)
    before = [0] * len(e.shape)
    for axis, n in zip(axes.tolist(), pads.tolist(), strict=False):
        before[axis] = n
    return pad_with(t, e, before, sizes(y), reshape(t, value, ()), t.allocate(y.dtype, sizes(y), y))


def pad_with(t: Translator, e: Expression, before: Sequence[int], shape: Sequence[int], value: Expression,
             whole: Load | None = None) -> Expression:
    """An expression with a margin."""
    if e.shape == tuple(shape):
        return e
    whole = whole or t.allocate(e.dtype, shape)
    inner = t.view(whole, lambda at: at.sliced(before, [1] * len(shape), e.shape))
    assert isinstance(inner, Load)
    t.store(t.broadcast(value, shape), whole)
    t.store(e, inner)
    return whole


@translates("Range")
def range_node(t: Translator, node: Node) -> Expression:
    start, _, step = (t.read(v) for v in node.inputs)
    (n,) = sizes(node.outputs[0])
    places: Expression = Iota(np.dtype(np.int64), (n,), Affine((n,), (1,)))
    return apply(t, "{0} + {1} * {2}", start, places, step, dtype=node.outputs[0].dtype, weight=2)


@translates("ConstantOfShape")
def constant_of_shape(t: Translator, node: Node) -> Expression:
    y, value = node.outputs[0], node.attribute("value")
    return Literal(y.dtype, sizes(y), 0 if value is None else np.asarray(value).flat[0])


@translates("Trilu")
def trilu(t: Translator, node: Node) -> Expression:
    e = t.read(node.inputs[0])
    k = t.numbers(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else np.zeros((), np.int64)
    if k is None:
        raise UntranslatableError(f"{describe(node)} with a diagonal that is computed is not written in C.")
    strides = (*[0] * (len(e.shape) - 2), -1, 1)  # column - row
    place = Iota(np.dtype(np.int64), e.shape, Affine(e.shape, strides))
    sign = ">=" if node.attribute("upper") else "<="
    return apply(t, f"({{1}} {sign} {int(k.reshape(()))} ? {{0}} : 0)", e, place)

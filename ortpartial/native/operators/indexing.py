"""Operators that read and write at places that are data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ortpartial.graph import GUARD, SHIFT, Node, Value, describe_refusal, find_bound
from ortpartial.model import Range
from ortpartial.native.expressions import Affine, Expression, Iota, Literal, Load
from ortpartial.native.translation import Translator, sizes, translates
from ortpartial.native.types import literal, suffix

from .elementwise import apply, convert, wrap
from .reductions import add_up
from .shapes import reshape, take_part

__all__ = ["check_range"]

_INT64 = np.dtype(np.int64)


def _place(t: Translator, e: Expression, size: int) -> Expression:
    """An index from 0 on, inside of an axis: one from its end counts from there, and none leaves it."""
    return t.load(apply(t, f"op_place({{0}}, {size})", convert(t, e, _INT64), weight=3))


def _check(t: Translator, node: Node, *, is_index: bool = False) -> Expression:
    """The numbers that a node reads, checked before anything is done with them; indices as they count from 0 on."""
    bound = find_bound(node)
    assert bound is not None
    assert bound.ranges is not None
    v, n = node.inputs[bound.position], len(bound.ranges)
    e, numbers = t.read(v), t.numbers(v)
    e = t.load(v) if e.cost > 1 and not is_index else e  # It is read twice.
    for i, ends in enumerate(bound.ranges):
        part = None if numbers is None else numbers if n == 1 else numbers[..., i]
        if part is not None and (not part.size or ends[0] <= part.min() <= part.max() <= ends[1]):
            continue
        one = convert(t, e if n == 1 else take_part(t, e, -1, i, 1), _INT64)
        places = t.check((e, i), one, ends, describe_refusal(node), is_index=is_index)
        if places is not None:
            return places
    return _place(t, e, bound.ranges[0][1] + 1) if is_index else e


def check_range(t: Translator, v: Value, refusal: str, r: Range) -> None:
    """Check an input of whole numbers before the step."""
    e = t.read(v)
    one = convert(t, e, _INT64)
    if r.ignored is not None:
        one = apply(t, f"({{0}} == {literal(r.ignored, _INT64)} ? {literal(r.low, _INT64)} : {{0}})", one)
    t.check((e, 0), one, (r.low, r.high), refusal)


def _guard(t: Translator, node: Node) -> Expression:
    """The zeros of a guard, after its check."""
    refusal = describe_refusal(node).removeprefix(GUARD)
    e = t.read(node.inputs[1])
    t.check((e, 0), e, (-1, 0), refusal, shift=SHIFT if refusal.endswith(":") else 0)
    return Literal(node.outputs[0].dtype, e.shape, 0)


@translates("Gather")
def gather(t: Translator, node: Node) -> Expression:
    if node.name.startswith(GUARD):
        return _guard(t, node)
    index, axis = node.inputs[1], node.attribute("axis")
    data = t.read(node.inputs[0])
    axis, size = axis % len(data.shape), data.shape[axis]
    shape = sizes(node.outputs[0])
    number = t.numbers(index)
    if number is not None and number.size == 1:
        at = int(number.reshape(())) % size
        return reshape(t, take_part(t, data, axis, at, 1), shape)
    data = t.load(data)
    places = _check(t, node, is_index=True)
    before, after = data.shape[:axis], data.shape[axis + 1 :]
    strides = (*data.at.strides[:axis], *[0] * len(places.shape), *data.at.strides[axis + 1 :])
    spread = t.broadcast(reshape(t, places, (*[1] * len(before), *places.shape, *[1] * len(after))), shape)
    at = Affine(shape, strides, data.at.offset, data.at.outer)
    return Load(data.dtype, shape, data.array, at, spread, data.at.strides[axis])


@translates("GatherElements")
def gather_elements(t: Translator, node: Node) -> Expression:
    data, axis = t.load(node.inputs[0]), node.attribute("axis")
    axis = axis % len(data.shape)
    places = _check(t, node, is_index=True)
    strides = tuple(0 if i == axis else s for i, s in enumerate(data.at.strides))
    at = Affine(places.shape, strides, data.at.offset, data.at.outer)
    return Load(data.dtype, places.shape, data.array, at, places, data.at.strides[axis])


@translates("ReverseSequence")
def reverse_sequence(t: Translator, node: Node) -> Expression:
    data, lengths = t.load(node.inputs[0]), t.numbers(node.inputs[1])
    time, batch = node.attribute("time_axis"), node.attribute("batch_axis")
    rank, n = len(data.shape), data.shape[time]
    by = tuple(int(i == time) for i in range(rank))
    if lengths is not None and (lengths == n).all():
        first, steps = [(n - 1) * i for i in by], [1 - 2 * i for i in by]
        return t.view(data, lambda at: at.sliced(first, steps, data.shape))
    ends = convert(t, _check(t, node), _INT64)
    shape = [m if i in (time, batch) else 1 for i, m in enumerate(data.shape)]
    spread = t.broadcast(reshape(t, ends, [m if i == batch else 1 for i, m in enumerate(data.shape)]), shape)
    place = apply(t, "{0} < {1} ? {1} - 1 - {0} : {0}", Iota(_INT64, tuple(shape), Affine(tuple(shape), by)), spread)
    at = replace(data.at, strides=tuple(0 if i == time else s for i, s in enumerate(data.at.strides)))
    places = t.broadcast(_place(t, place, n), data.shape)
    return Load(data.dtype, data.shape, data.array, at, places, data.at.strides[time])


@translates("ScatterElements")
def scatter_elements(t: Translator, node: Node) -> Expression:
    y = node.outputs[0]
    whole, axis, template = t.allocate(y.dtype, sizes(y), y), node.attribute("axis") % len(sizes(y)), _combination(node)
    updates = t.read(node.inputs[2])
    places = _check(t, node, is_index=True)
    strides = tuple(0 if i == axis else s for i, s in enumerate(whole.at.strides))
    to = Load(y.dtype, places.shape, whole.array, Affine(places.shape, strides), places, whole.at.strides[axis])
    t.store(t.read(node.inputs[0]), whole)
    t.store(updates, to, template)
    return whole


def _combination(node: Node) -> str:
    """How a scattered element is combined with what is there."""
    dtype = node.outputs[0].dtype
    s = suffix(dtype)
    templates = {"add": wrap("{0} + {1}", dtype), "mul": wrap("{0} * {1}", dtype), "max": f"op_max_{s}({{0}}, {{1}})",
                 "min": f"op_min_{s}({{0}}, {{1}})"}
    return templates.get(node.attribute("reduction"), "{1}")


def _find_parts(t: Translator, data: Load, index: Expression, n_batch: int) -> Load:
    """The parts of data that rows of numbers say, one number for each axis after those of the batch."""
    n = index.shape[-1]
    outer, inner = index.shape[:-1], data.shape[n_batch + n :]
    total: Expression = Literal(_INT64, outer, 0)
    for i in range(n):
        number = reshape(t, take_part(t, index, -1, i, 1), outer)
        template = f"{{0}} + op_place({{1}}, {data.shape[n_batch + i]}) * {data.at.strides[n_batch + i]}"
        total = apply(t, template, total, convert(t, number, _INT64), weight=4)
    places = t.load(total)
    shape = (*outer, *inner)
    strides = (*data.at.strides[:n_batch], *[0] * (len(outer) - n_batch), *data.at.strides[n_batch + n :])
    spread = t.broadcast(reshape(t, places, (*outer, *[1] * len(inner))), shape)
    return Load(data.dtype, shape, data.array, replace(data.at, shape=shape, strides=strides), spread, 1)


@translates("GatherND")
def gather_nd(t: Translator, node: Node) -> Expression:
    return _find_parts(t, t.load(node.inputs[0]), _check(t, node), node.attribute("batch_dims"))


@translates("ScatterND")
def scatter_nd(t: Translator, node: Node) -> Expression:
    y = node.outputs[0]
    whole, updates = t.allocate(y.dtype, sizes(y), y), t.read(node.inputs[2])
    to = _find_parts(t, whole, _check(t, node), 0)
    t.store(t.read(node.inputs[0]), whole)
    t.store(updates, to, _combination(node))
    return whole


@translates("TopK")
def top_k(t: Translator, node: Node) -> list[Expression]:
    """The rank of an element is the number of those that come before it, and equal ones keep their order."""
    axis, n = node.attribute("axis"), len(sizes(node.inputs[0]))
    axis, k = axis % n, sizes(node.outputs[0])[axis]
    order = [*(i for i in range(n) if i != axis), axis]
    data = t.load(t.view(t.load(node.inputs[0]), lambda at: at.permuted(order)))
    *rest, size = data.shape
    square = (*rest, size, size)
    first, second = (_iota(square, -2), _iota(square, -1))
    sign = ">" if node.attribute("largest") else "<"
    one, other = (t.broadcast(reshape(t, data, shape), square) for shape in ((*rest, size, 1), (*rest, 1, size)))
    is_before = apply(t, f"{{1}} {sign} {{0}} || ({{1}} == {{0}} && {{3}} < {{2}})", one, other, first, second,
                      dtype=_INT64, weight=3)
    rank = add_up(t, is_before, [-1], (*rest, 1, size))
    chosen = (*rest, k, size)
    which = apply(t, "{0} == {1} ? {2} : 0", t.broadcast(rank, chosen), _iota(chosen, -2), _iota(chosen, -1))
    places = _place(t, add_up(t, which, [-1]), size)
    at = replace(data.at, shape=places.shape, strides=(*data.at.strides[:-1], 0))
    values = Load(data.dtype, places.shape, data.array, at, places, data.at.strides[-1])
    back = [order.index(i) for i in range(n)]
    return [t.view(e, lambda at: at.permuted(back)) for e in (values, places)]


def _iota(shape: Sequence[int], axis: int) -> Iota:
    """The index along an axis."""
    axis %= len(shape)
    return Iota(_INT64, tuple(shape), Affine(tuple(shape), tuple(int(i == axis) for i in range(len(shape)))))


@translates("OneHot")
def one_hot(t: Translator, node: Node) -> Expression:
    places, _, values = (t.read(v) for v in node.inputs)
    shape = sizes(node.outputs[0])
    axis = node.attribute("axis") % len(shape)
    index = convert(t, places, _INT64)
    label = apply(t, f"({{0}} < 0 ? {{0}} + {shape[axis]} : {{0}})", index, weight=2)
    spread = t.broadcast(reshape(t, t.load(label), (*index.shape[:axis], 1, *index.shape[axis:])), shape)
    off, on = (reshape(t, take_part(t, values, 0, i, 1), ()) for i in (0, 1))
    at = Affine(shape, tuple(int(i == axis) for i in range(len(shape))))
    return apply(t, "{0} == {1} ? {2} : {3}", spread, Iota(_INT64, shape, at), on, off, dtype=off.dtype)

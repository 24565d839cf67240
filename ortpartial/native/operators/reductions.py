"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortpartial.graph import Node
from ortpartial.native.expressions import Affine, Expression, Iota, Literal
from ortpartial.native.kernels import Reduction
from ortpartial.native.translation import Translator, sizes, translates
from ortpartial.native.types import literal, suffix

from .elementwise import apply, wrap
from .shapes import reshape

__all__ = ["add_up", "reduce_axes"]


def reduce_axes(t: Translator, e: Expression, axes: Sequence[int], template: str, first: str,
                shape: Sequence[int] | None = None) -> Expression:
    """An expression combined over axes, in the shape of the axes that remain, or another one."""
    axes = sorted(a % len(e.shape) for a in axes)
    kept = [i for i in range(len(e.shape)) if i not in axes]
    last = t.view(e, lambda at: at.permuted([*kept, *axes])) if axes != list(range(len(kept), len(e.shape))) else e
    to = t.allocate(e.dtype, [e.shape[i] for i in kept])
    t.kernels.append(Reduction(to, last, template, first))
    return to if shape is None else reshape(t, to, shape)


def add_up(t: Translator, e: Expression, axes: Sequence[int], shape: Sequence[int] | None = None) -> Expression:
    """The sum over axes."""
    return reduce_axes(t, e, axes, wrap("{0} + {1}", e.dtype), "0", shape)


def _axes(t: Translator, node: Node) -> list[int] | None:
    """The axes that a node reduces; None for none."""
    rank = len(sizes(node.inputs[0]))
    given = t.numbers(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else node.attribute("axes")
    if given is None or not len(given):
        return None if node.attribute("noop_with_empty_axes") else list(range(rank))
    return [int(a) % rank for a in given]


@translates("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
            "ReduceSumSquare")
def reduce_node(t: Translator, node: Node) -> Expression:
    e, axes, kind = t.read(node.inputs[0]), _axes(t, node), node.op_type
    s = suffix(e.dtype)
    if kind == "ReduceL1" or (kind == "ReduceL2" and axes is None):
        e = apply(t, f"op_abs_{s}({{0}})", e)
    elif kind in ("ReduceSumSquare", "ReduceL2"):
        e = t.load(e) if e.cost > 1 else e
        e = apply(t, wrap("{0} * {0}", e.dtype), e)
    if axes is None:
        return e
    template, first = {
        "ReduceMax": (f"op_max_{s}({{0}}, {{1}})", _bound(e.dtype, -1)),
        "ReduceMin": (f"op_min_{s}({{0}}, {{1}})", _bound(e.dtype, 1)),
        "ReduceProd": (wrap("{0} * {1}", e.dtype), "1")}.get(kind, (wrap("{0} + {1}", e.dtype), "0"))
    total = reduce_axes(t, e, axes, template, first, sizes(node.outputs[0]))
    if kind == "ReduceMean":
        return apply(t, "{0} / {1}", total, Literal(e.dtype, (), prod(e.shape[a] for a in axes)), weight=5)
    return apply(t, f"op_sqrt_{s}({{0}})", total, weight=5) if kind == "ReduceL2" else total


def _bound(dtype: np.dtype, sign: int) -> str:
    """The number that every other one is on one side of."""
    if dtype.kind == "f":
        return literal(sign * np.inf, dtype)
    if dtype.kind == "b":
        return str(int(sign > 0))
    return literal(np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min, dtype)


@translates("ArgMax", "ArgMin")
def arg_extreme(t: Translator, node: Node) -> Expression:
    e, axis = t.load(node.inputs[0]), node.attribute("axis")
    axis, n = axis % len(e.shape), e.shape[axis]
    name, sign = ("max", -1) if node.op_type == "ArgMax" else ("min", 1)
    s = suffix(e.dtype)
    kept = [1 if i == axis else size for i, size in enumerate(e.shape)]
    best = reduce_axes(t, e, [axis], f"op_{name}_{s}({{0}}, {{1}})", _bound(e.dtype, sign), kept)
    at = Affine(e.shape, tuple(int(i == axis) for i in range(len(e.shape))))
    last = node.attribute("select_last_index")
    place = apply(t, f"{{0}} == {{1}} ? {{2}} : {-1 if last else n}", e, best, Iota(np.dtype(np.int64), e.shape, at),
                  dtype=np.dtype(np.int64))
    return reduce_axes(t, place, [axis], f"op_{'max' if last else 'min'}_i64({{0}}, {{1}})", str(-1 if last else n),
                       sizes(node.outputs[0]))

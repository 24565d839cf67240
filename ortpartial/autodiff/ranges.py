"""Interval analysis of expressions: bounds of the elements of a value, and whether each of them is a finite number."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from ortpartial.graph import VIEWS, Node, Value

from .range_rules import ANY, EXTENDED, FINITE, INF, MAX_SIZE, PARTLY_HIDDEN, RULES, Range

__all__ = ["at_least", "is_finite", "set_unbounded"]

#: Operators that pick sizes out of a shape.
_PICKS = VIEWS | {"Cast", "Gather", "Slice"}

#: The range of most values: any finite numbers.
_USUAL = Range()

#: The reciprocal of a smaller number overflows, by the bytes and the digits of the element type.
_SMALLEST = {(2, 3): 2.0**-16, (2, 2): 2.0**-128, (4, 6): 2.0**-128, (8, 15): 2.0**-1024}

#: Of so many numbers of both signs, it is found out whether any is 0: divisors, and no weights.
_FEW = 256


def is_finite(v: Value) -> bool:
    """Whether every element of a value is a finite number where inputs and weights are.

    Overflow of sums and products does not count: it takes numbers that no training survives. That of an exponential
    does, as do poles and numbers outside of a function's domain.
    """
    return find_range(v).kind == FINITE


def at_least(v: Value, low: float) -> Value:
    """The same value, whose elements the caller knows to be finite and at least a number above 0."""
    return _state(v, Range(low, INF, FINITE, _reciprocal_exists(v, low)))


def set_unbounded(v: Value) -> Value:
    """The same value, whose elements may be infinite or NaN; it must not have been read yet."""
    return _state(v, Range(kind=ANY))


def _state(v: Value, r: Range) -> Value:
    """The same value, with a range that is kept where it is computed, as the values of cached properties are."""
    (v.node or v).__dict__["_range"] = r
    return v


def find_range(v: Value) -> Range:
    """The range of a value; each node is looked at once, whoever asks."""
    if v.node is None:
        r = v.__dict__.get("_range")
        return _of_variable(v) if r is None else r
    if not v.is_float:
        return Range(0, 1) if v.type.tensor_type.elem_type == TensorProto.BOOL else _of_whole_numbers(v)
    if (r := v.node.__dict__.get("_range")) is None:
        r = _walk(v.node)
    return r if v.index == 0 and v.inner is None else Range(kind=r.kind)


def _walk(root: Node) -> Range:
    """The range of a node, after the ranges of its inputs."""
    stack = [root]
    while stack:
        node = stack[-1]
        if "_range" in node.__dict__:
            stack.pop()
            continue
        waiting = [x.node for x in _reads(node) if x.node is not None and "_range" not in x.node.__dict__]
        if waiting:
            stack.extend(waiting)
        else:
            node.__dict__["_range"] = _of_node(node)
            stack.pop()
    return root.__dict__["_range"]


def _of_whole_numbers(v: Value) -> Range:
    """The range of whole numbers: sizes are at least 1, as nothing is computed of a tensor without elements."""
    while v.node is not None and v.node.op_type in _PICKS and v.node.inputs[0] is not None:
        v = v.node.inputs[0]
    return Range(1, is_nonzero=True) if v.node is not None and v.node.op_type in ("Shape", "Size") else Range()


def _reads(node: Node) -> list[Value]:
    """The real numbers that a node and its bodies compute with; flags, indices and sizes are finite anyway."""
    reads = node.reads if not node.bodies else [*node.reads, *(y for body in node.bodies for y in body.outputs)]
    return [x for x in reads if x.is_float]


def _of_variable(v: Value) -> Range:
    """The range of an input, which is taken for finite, or of a constant."""
    a = v.array
    if a is None or not a.size or a.size > MAX_SIZE or a.dtype.kind in "OUSc":
        return _USUAL
    low = high = float(a.item() if a.size == 1 else a.min())
    if a.size > 1:
        high = float(a.max())
    if math.isnan(low):
        r = Range(kind=ANY)
    else:
        nearest = low if low > 0 else -high if high < 0 else float(np.abs(a).min()) if 1 < a.size <= _FEW else 0.0
        r = Range(low, high, _kind_of(a, low, high), _reciprocal_exists(v, nearest))
    _state(v, r)
    return r


def _kind_of(numbers: np.ndarray, low: float, high: float) -> int:
    """FINITE, PARTLY_HIDDEN or EXTENDED, for an array without NaN."""
    if math.isfinite(low) and math.isfinite(high):
        return FINITE
    rows = numbers.ndim and high < INF and np.isfinite(numbers).any(axis=-1).all()
    return PARTLY_HIDDEN if rows else EXTENDED


def _reciprocal_exists(v: Value, nearest: float) -> bool:
    """Whether 1/x is finite where |x| is at least `nearest`."""
    if not v.is_float:
        return nearest > 0
    digits = {2: 3 if v.dtype == np.float16 else 2, 4: 6, 8: 15}[v.dtype.itemsize]
    return nearest >= _SMALLEST[v.dtype.itemsize, digits]


def _of_node(node: Node) -> Range:
    """The range of the first output of a node, from the ranges of its inputs."""
    y, rule = node.outputs[0], None if node.domain else RULES.get(node.op_type)
    if rule is None or not y.is_float:
        return Range(kind=ANY) if any(find_range(x).kind for x in _reads(node)) else _USUAL
    r = rule(node, *[find_range(x) for x in node.inputs if x is not None])
    if r.is_nonzero or r.low <= 0 <= r.high:
        return r
    return r._replace(is_nonzero=_reciprocal_exists(y, r.low if r.low > 0 else -r.high))

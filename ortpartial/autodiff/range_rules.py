"""Rules of the interval analysis: the range of an operator's output from the ranges of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ortpartial.graph import VIEWS, Node, Value

__all__ = ["ANY", "EXTENDED", "FINITE", "INF", "MAX_SIZE", "PARTLY_HIDDEN", "RULES", "Range"]

INF = math.inf

#: Elements besides finite numbers: nothing; -∞, but not in a whole row; ±∞; NaN as well.
FINITE, PARTLY_HIDDEN, EXTENDED, ANY = range(4)


class Range(NamedTuple):
    """Bounds of the elements of a value, and whether they are finite."""

    low: float = -INF
    high: float = INF
    #: FINITE, PARTLY_HIDDEN, EXTENDED or ANY.
    kind: int = FINITE
    #: Whether no element is so close to 0 that its reciprocal overflows.
    is_nonzero: bool = False


#: Of larger constants, such as frozen weights of language models that stay on disk, no range is computed.
MAX_SIZE = 2**22


def _worst(*ranges: Range) -> int:
    """FINITE if all are, else ANY."""
    return ANY if any(r.kind for r in ranges) else FINITE


def _times(a: float, b: float) -> float:
    """A product of bounds, in which 0 · ∞ is 0."""
    return 0.0 if a == 0 or b == 0 else a * b


#: From a node and the ranges of its inputs to the range of its output.
Rule = Callable[..., Range]


def _keep(node: Node, x: Range, *_: Range) -> Range:
    return x


def _keep_elements(node: Node, x: Range, *_: Range) -> Range:
    """Elements in other rows, so that hidden elements may fill a row."""
    return x._replace(kind=EXTENDED if x.kind == PARTLY_HIDDEN else x.kind)


def _join(node: Node, *ranges: Range) -> Range:
    return Range(min(r.low for r in ranges), max(r.high for r in ranges), max(_no_rows(r) for r in ranges),
                 all(r.is_nonzero for r in ranges))


def _no_rows(r: Range) -> int:
    return EXTENDED if r.kind == PARTLY_HIDDEN else r.kind


def _within(low: float, high: float) -> Rule:
    """A function that is bounded, whatever it reads, and of NaN alone is NaN."""
    def of(node: Node, x: Range, *others: Range) -> Range:
        return Range(low, high, _worst(x, *others))
    return of


def _add(node: Node, a: Range, b: Range) -> Range:
    kinds = sorted((a.kind, b.kind))
    kind = PARTLY_HIDDEN if kinds == [FINITE, PARTLY_HIDDEN] and _keeps_rows(node, a, b) else _worst(a, b)
    nonzero = _is_one_where_zero(node, 0, 1) or _is_one_where_zero(node, 1, 0)
    return Range(a.low + b.low if -INF not in (a.low, b.low) else -INF,
                 a.high + b.high if INF not in (a.high, b.high) else INF, kind, nonzero)


def _keeps_rows(node: Node, a: Range, b: Range) -> bool:
    """Whether the operand with hidden elements has the rows of the result: it is as wide."""
    hidden = node.inputs[0 if a.kind == PARTLY_HIDDEN else 1]
    y = node.outputs[0]
    return bool(hidden is not None and hidden.shape and y.shape and hidden.shape[-1] == y.shape[-1])


def _is_one_where_zero(node: Node, i: int, j: int) -> bool:
    """Whether an operand is Cast(Equal(v, 0)) of the other, v."""
    v, one = node.inputs[i], node.inputs[j]
    maker = None if one is None else one.node
    return maker is not None and maker.op_type == "Cast" and _is_zero_of(maker.inputs[0], v)


def _is_zero_of(condition: Value | None, v: Value | None) -> bool:
    """Whether a condition is Equal(v, 0)."""
    if condition is None or condition.node is None or condition.node.op_type != "Equal":
        return False
    a, b = condition.node.inputs
    return a is not None and b is not None and a == v and b.array is not None and not b.array.any()


def _sub(node: Node, a: Range, b: Range) -> Range:
    low = a.low - b.high if a.low != -INF and b.high != INF else -INF
    high = a.high - b.low if a.high != INF and b.low != -INF else INF
    of = node.inputs[1].node if node.inputs[1] is not None else None
    if of is not None and of.inputs and of.inputs[0] == node.inputs[0] and not of.domain:
        if of.op_type in ("ReduceMax", "ReduceLogSumExp"):
            high = min(high, 0.0)
        elif of.op_type == "ReduceMin":
            low = max(low, 0.0)
    return Range(low, high, a.kind if b.kind == FINITE and a.kind <= PARTLY_HIDDEN else _worst(a, b))


def _mul(node: Node, a: Range, b: Range) -> Range:
    if node.inputs[0] == node.inputs[1]:
        return _square(node, a)
    ends = [_times(p, q) for p in (a.low, a.high) for q in (b.low, b.high)]
    kind = _worst(a, b)
    for x, k in ((a, b), (b, a)):
        # A number that scales keeps infinite elements, and a number above 0 hidden ones.
        if k.kind == FINITE and k.is_nonzero and PARTLY_HIDDEN <= x.kind <= EXTENDED:
            kind = x.kind if x.kind == EXTENDED or k.low > 0 else EXTENDED
    return Range(min(ends), max(ends), kind, a.is_nonzero and b.is_nonzero)


def _square(node: Node, x: Range, *_: Range) -> Range:
    least = 0.0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return Range(_times(least, least), max(_times(x.low, x.low), _times(x.high, x.high)), _worst(x), x.is_nonzero)


def _div(node: Node, a: Range, b: Range) -> Range:
    kind = FINITE if a.kind == FINITE and b.is_nonzero and b.kind <= EXTENDED else ANY
    if b.low <= 0 or a.kind != FINITE:
        return Range(kind=kind)
    # Of a number and ∞ the quotient is 0.
    low = min(a.low / b.low, 0.0 if b.high == INF else a.low / b.high) if a.low > -INF else -INF
    high = max(a.high / b.low, 0.0 if b.high == INF else a.high / b.high) if a.high < INF else INF
    return Range(low, high, kind)


def _reciprocal(node: Node, x: Range) -> Range:
    return _div(node, Range(1, 1), x)


def _sqrt(node: Node, x: Range) -> Range:
    return Range(math.sqrt(max(x.low, 0)), math.sqrt(max(x.high, 0)), x.kind if x.low >= 0 else ANY, x.is_nonzero)


def _log(node: Node, x: Range) -> Range:
    low = math.log(x.low) if 0 < x.low < INF else -INF
    high = math.log(x.high) if 0 < x.high < INF else INF
    return Range(low, high, FINITE if x.kind == FINITE and x.low >= 0 and x.is_nonzero else ANY)


#: From here on, an exponential overflows, by the bytes of the element type; bfloat16 has the exponents of float32.
_LARGEST_EXPONENT = {2: 11.0, 4: 88.0, 8: 709.0}


def _exp(node: Node, x: Range) -> Range:
    largest = _LARGEST_EXPONENT[node.outputs[0].dtype.itemsize]
    low, high = (math.exp(min(max(e, -700.0), 700.0)) if e > -INF else 0.0 for e in (x.low, x.high))
    return Range(0.0 if x.low < -700 else low, INF if x.high > largest else high,
                 FINITE if x.kind <= PARTLY_HIDDEN and x.high <= largest else ANY)


def _hyperbolic(node: Node, x: Range) -> Range:
    largest = _LARGEST_EXPONENT[node.outputs[0].dtype.itemsize]
    fits = x.kind == FINITE and -largest <= x.low and x.high <= largest
    return Range(1.0 if node.op_type == "Cosh" else -INF, INF, FINITE if fits else ANY)


def _inside(low: float, high: float, is_open: bool = False) -> Rule:
    """A function with a domain, open or closed."""
    def of(node: Node, x: Range) -> Range:
        fits = low < x.low and x.high < high if is_open else low <= x.low and x.high <= high
        return Range(kind=FINITE if fits and x.kind == FINITE else ANY)
    return of


def _pow(node: Node, base: Range, exponent: Range) -> Range:
    n = exponent.low if exponent.low == exponent.high else None
    if n is None:
        fits = base.low > 0 and base.is_nonzero
        return Range(0.0 if base.low >= 0 else -INF, INF, _worst(base, exponent) if fits else ANY)
    whole = float(n).is_integer()
    fits = (whole or base.low >= 0) and (n >= 0 or base.is_nonzero)
    kind = _worst(base) if fits else ANY
    if n == 2:
        return _square(node, base)
    if base.low < 0:
        return Range(0.0 if whole and n % 2 == 0 else -INF, INF, kind, base.is_nonzero and n > 0)
    low, high = (_power(e, n) for e in ((base.low, base.high) if n >= 0 else (base.high, base.low)))
    return Range(low, high, kind, base.is_nonzero and n > 0)


def _power(x: float, n: float) -> float:
    """A bound to a power, 0 and ∞ included."""
    try:
        return x**n
    except (OverflowError, ZeroDivisionError):
        return INF


def _neg(node: Node, x: Range) -> Range:
    return Range(-x.high, -x.low, _no_rows(x), x.is_nonzero)


def _abs(node: Node, x: Range) -> Range:
    return Range(max(x.low, -x.high, 0.0), max(-x.low, x.high), _no_rows(x), x.is_nonzero)


def _relu(node: Node, x: Range) -> Range:
    return Range(max(x.low, 0.0), max(x.high, 0.0), _worst(x))


def _max(node: Node, *ranges: Range) -> Range:
    return Range(max(r.low for r in ranges), max(r.high for r in ranges), _worst(*ranges))


def _min(node: Node, *ranges: Range) -> Range:
    return Range(min(r.low for r in ranges), min(r.high for r in ranges), _worst(*ranges))


def _clip(node: Node, *ranges: Range) -> Range:
    x, *bounds = ranges
    low, high = x.low, x.high
    for v, b in zip([v for v in node.inputs[1:] if v is not None], bounds, strict=True):
        is_lower = v is node.inputs[1]
        low, high = (max(low, b.low), max(high, b.high)) if is_lower else (min(low, b.low), min(high, b.high))
    return Range(low, high, _worst(*ranges))


def _where(node: Node, condition: Range, a: Range, b: Range) -> Range:
    c, _, y = node.inputs
    joined = _join(node, a, b)
    if _is_zero_of(c, y):
        joined = joined._replace(is_nonzero=a.is_nonzero)
    if c is not None and c.node is not None and c.node.op_type == "IsNaN" and c.node.inputs[0] == y:
        # Only Softmax of a row that is hidden as a whole is NaN, without any other pole.
        is_softmax = y is not None and y.node is not None and y.node.op_type == "Softmax"
        joined = joined._replace(kind=a.kind if is_softmax else joined.kind)
    choice = None if c is None else c.array
    if choice is not None and choice.ndim and joined.kind == EXTENDED and _shows_some(choice, a, b, node.outputs[0]):
        joined = joined._replace(kind=PARTLY_HIDDEN)
    return joined


def _shows_some(condition: np.ndarray, a: Range, b: Range, y: Value) -> bool:
    """Whether each row of a constant condition chooses a finite value somewhere, beside -∞."""
    hides = (FINITE, -INF) in ((a.kind, b.high), (b.kind, a.high))
    if not hides or not y.shape or y.shape[-1] != condition.shape[-1]:
        return False
    shown = condition if a.kind == FINITE else ~condition
    return bool(condition.size <= MAX_SIZE and shown.any(axis=-1).all())


def _reduce_sum(node: Node, x: Range, *_: Range) -> Range:
    of = node.inputs[0].node if node.inputs[0] is not None else None
    low = max(x.low, 0.0) if x.low >= 0 else -INF
    if of is not None and of.op_type == "Exp" and _is_shifted(of.inputs[0]):
        low = 1.0  # The largest element is exp(0).
    return Range(low, 0.0 if x.high <= 0 else INF, _worst(x), x.low > 0 and x.is_nonzero)


def _is_shifted(v: Value | None) -> bool:
    """Whether a value is x - ReduceMax(x)."""
    if v is None or v.node is None or v.node.op_type != "Sub":
        return False
    x, top = v.node.inputs
    return top is not None and top.node is not None and top.node.op_type == "ReduceMax" and top.node.inputs[0] == x


def _reduce_rows(node: Node, x: Range, *_: Range) -> Range:
    """Reductions of which -∞ of some elements of a row is no news."""
    return x._replace(kind=FINITE if x.kind == PARTLY_HIDDEN and _along_rows(node) else _no_rows(x))


def _along_rows(node: Node) -> bool:
    """Whether the last axis is reduced."""
    x, axes = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    rank = len(x.shape) if x is not None and x.shape is not None else 0
    along = node.attribute("axis") if axes is None else None if axes.array is None else axes.array.ravel().tolist()
    return along in (-1, rank - 1, [-1], [rank - 1])


def _log_sum_exp(node: Node, x: Range, *_: Range) -> Range:
    fits = x.kind == FINITE or (x.kind == PARTLY_HIDDEN and _along_rows(node))
    return Range(x.low, INF, FINITE if fits else ANY)


def _softmax(node: Node, x: Range) -> Range:
    fits = x.kind == FINITE or (x.kind == PARTLY_HIDDEN and _along_rows(node))
    return Range(0.0, 1.0, FINITE if fits else ANY)


def _log_softmax(node: Node, x: Range) -> Range:
    return Range(-INF, 0.0, x.kind if x.kind == FINITE or (x.kind == PARTLY_HIDDEN and _along_rows(node)) else ANY)


def _mod(node: Node, a: Range, b: Range) -> Range:
    return Range(kind=FINITE if a.kind == b.kind == FINITE and b.is_nonzero else ANY)


def _fill(node: Node, *_: Range) -> Range:
    value = node.attribute("value")
    return Range() if value is None or np.isfinite(np.asarray(value, np.float64)).all() else Range(kind=EXTENDED)


def _log_sum(node: Node, x: Range, *_: Range) -> Range:
    return _log(node, _reduce_sum(node, x))


def _mean(node: Node, x: Range, *_: Range) -> Range:
    return x._replace(kind=_worst(x))


RULES: dict[str, Rule] = {
    **dict.fromkeys(VIEWS - {"Identity", "Unsqueeze"}, _keep_elements),
    **dict.fromkeys(["Identity", "Unsqueeze", "Expand", "Cast", "CastLike", "Tile"], _keep),
    **dict.fromkeys(["Transpose", "Slice", "Gather", "GatherElements", "GatherND", "Split", "DepthToSpace",
                     "SpaceToDepth", "ReverseSequence", "Compress", "TopK"], _keep_elements),
    **dict.fromkeys(["ReduceMin", "MaxPool", "GlobalMaxPool"], _keep_elements),
    **dict.fromkeys(["ReduceMean", "GlobalAveragePool"], _mean),
    **dict.fromkeys(["Sigmoid", "HardSigmoid"], _within(0.0, 1.0)),
    **dict.fromkeys(["Tanh", "Erf", "Sin", "Cos", "Sign", "Softsign"], _within(-1.0, 1.0)),
    **dict.fromkeys(["ReduceL1", "ReduceL2", "ReduceSumSquare", "Softplus"], _within(0.0, INF)),
    **dict.fromkeys(["Asin", "Acos"], _inside(-1.0, 1.0)), "Atanh": _inside(-1.0, 1.0, True),
    "Acosh": _inside(1.0, INF), "Sinh": _hyperbolic, "Cosh": _hyperbolic, "Concat": _join, "Where": _where,
    "Add": _add, "Sub": _sub, "Mul": _mul, "Div": _div, "Neg": _neg, "Abs": _abs, "Reciprocal": _reciprocal,
    "Sqrt": _sqrt, "Log": _log, "Exp": _exp, "Pow": _pow, "Mod": _mod, "Relu": _relu, "Max": _max, "Min": _min,
    "Clip": _clip, "ReduceSum": _reduce_sum, "ReduceMax": _reduce_rows, "ReduceLogSumExp": _log_sum_exp,
    "ReduceLogSum": _log_sum, "Softmax": _softmax, "LogSoftmax": _log_softmax, "ConstantOfShape": _fill,
}

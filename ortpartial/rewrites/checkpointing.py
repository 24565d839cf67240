"""What need a training not keep? Values of the forward pass that the backward pass computes once more."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from ortpartial.autodiff import Gradient, grad
from ortpartial.exceptions import SettingError
from ortpartial.graph import Node, Value, find_boundary, op, rewrite, shape_of, topological

__all__ = ["checkpoint_gradient", "recompute_cheap", "resolve_checkpointing"]

#: From the nodes of the forward pass and what the backward pass reads of them to what is kept.
Choice = Callable[[Sequence[Node], Sequence[Value]], Collection[Value]]

#: Operators that cost little more than to read what they compute.
CHEAP = frozenset({"Abs", "Add", "Cast", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Greater", "GreaterOrEqual",
                   "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min",
                   "Mul", "Neg", "Not", "Pow", "Reciprocal", "Relu", "Reshape", "Sigmoid", "Softplus", "Sqrt",
                   "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"})


def resolve_checkpointing(checkpointing: Any, names: Collection[str] = ()) -> Gradient | None:
    """The gradient that the setting `checkpointing` means, None for the plain one.

    Parameters
    ----------
    checkpointing : None, bool, "auto" or sequence of str
        The setting.
    names : collection of str
        The tensors that there are.

    Returns
    -------
    callable or None

    Raises
    ------
    SettingError
        It is something else, or names a tensor that there is not.
    """
    if checkpointing is None or checkpointing is False:
        return None
    if checkpointing is True or checkpointing == "auto":
        return checkpoint_gradient(_segments)
    listed = isinstance(checkpointing, Sequence) and not isinstance(checkpointing, str)
    if not listed or not all(isinstance(n, str) for n in checkpointing):
        raise SettingError(f"checkpointing is None, 'auto' or a list of tensors to keep, not {checkpointing!r}.")
    if unknown := [n for n in checkpointing if n not in names]:
        raise SettingError(f"checkpointing names {unknown[0]!r}, which is no tensor of the model.")
    chosen = frozenset(checkpointing)
    return checkpoint_gradient(lambda forward, read: {v for node in forward for v in node.outputs if v.hint in chosen})


def checkpoint_gradient(choice: Choice) -> Gradient:
    """A gradient that keeps some values of the forward pass and computes the others once more when it needs them.

    A second computation reads what was kept through a Reshape whose shape depends on the cotangent of the next value
    that was kept: no runtime can compute it before the backward pass has come that far, or take it for the first one.
    What random operators and those with bodies give is always kept.

    Parameters
    ----------
    choice : callable
        From the nodes of the forward pass, in their order, and the values that the backward pass reads of them, to the
        values that are kept.

    Returns
    -------
    callable
        As `grad`, from an expression and values to the gradients, which are the same numbers.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import variable
    >>> x, w = variable("x", "float32", [2]), variable("w", "float32", [2])
    >>> y = op.Exp(op.Exp(op.Exp(w * x)))
    >>> gradient = checkpoint_gradient(lambda forward, read: [forward[2].outputs[0]])
    >>> model = build([x, w], {"w_grad": gradient(op.ReduceSum(y), [w])[0]})
    >>> [node.op_type for node in model.graph.node].count("Exp")
    4
    """

    def gradient(objective: Value, wrt: Sequence[Value]) -> list[Value]:
        forward = topological([objective])
        read = [v for v in find_boundary(grad(objective, wrt), [objective], wrt) if v.node is not None]
        fixed = (v for node in forward if node.bodies or node.is_random for v in node.outputs)
        kept = {*choice(forward, read), *fixed, *(v for v in read if v.inner is not None)}
        return _again(objective, wrt, forward, [v for v in read if v not in kept], kept)

    return gradient


def _again(objective: Value, wrt: Sequence[Value], forward: Sequence[Node], read: Sequence[Value],
           kept: Collection[Value]) -> list[Value]:
    """The gradients, for which what is read and not kept is computed once more."""
    at = {v: i for i, node in enumerate(forward) for v in node.outputs}
    last = at | {x: i for i, node in enumerate(forward) for x in node.reads}
    moving = set(wrt)
    for node in forward:
        if any(x in moving for x in node.reads):
            moving.update(y for y in node.outputs if y.is_float)
    marks = sorted((v for v in kept if v in moving and v in at), key=lambda v: at[v])
    found = grad(objective, [*wrt, *marks])
    gradients, cotangents = found[: len(wrt)], found[len(wrt) :]
    # The backward pass comes to a value after the first mark at or behind the last node that reads it.
    behind: dict[int, list[Value]] = {}
    places = [at[v] for v in marks]
    for v in read:
        if (i := bisect_left(places, last[v])) < len(marks):
            behind.setdefault(i, []).append(v)
    stops = [*wrt, *(v for v in find_boundary(found, [objective], wrt))]
    new: dict[Value, Value] = {}  # of the backward pass
    again: dict[Value, Value] = {}  # of the forward pass
    for i in sorted(behind, reverse=True):
        new[cotangents[i]] = rewrite([cotangents[i]], new, cut=stops)[0]
        again |= _copies(behind[i], again, {*kept, *wrt}, set(wrt), new[cotangents[i]])
        new |= {v: again[v] for v in behind[i]}
    # In the order in which they were written, which is the order in which they are computed.
    written = sorted(dict.fromkeys(gradients), key=lambda g: g.node.serial if g.node else -1)
    made = dict(zip(written, rewrite(written, new, cut=stops), strict=True))
    return [made[g] for g in gradients]


def _copies(values: Sequence[Value], known: Mapping[Value, Value], stops: set[Value], wrt: set[Value],
            cotangent: Value) -> dict[Value, Value]:
    """By the value, what computes it and all on the way to it once more, as soon as a cotangent is known."""
    nodes = topological(values, {*known, *stops})
    number = op.Cast(op.Slice(op.Reshape(cotangent, [-1]), [0], [1]), to=TensorProto.FLOAT)
    zero = op.Cast(number > np.float32(np.inf), to=TensorProto.INT64)

    def later(v: Value) -> Value:
        return op.Reshape(v, shape_of(v) + zero, allowzero=1).stated(v.shape)

    sources = dict.fromkeys(x for node in nodes for x in node.reads if x in stops or x.node is None)
    given = {x: later(x) for x in sources if x not in wrt and x.array is None}
    made = [v for node in nodes for v in node.outputs]
    return dict(zip(made, rewrite(made, {**known, **given}, cut=list(wrt)), strict=True))


def recompute_cheap(forward: Sequence[Node], read: Sequence[Value]) -> Collection[Value]:
    """All but what cheap operators compute of one single value that is kept anyway."""
    wanted = set(read)
    source: dict[Value, Value] = {}
    kept: set[Value] = set()
    for node in forward:
        origins = {source.get(x, x) for x in node.reads if x.array is None and (x.node is not None or x in wanted)}
        origin = next(iter(origins)) if len(origins) == 1 else None
        if node.op_type in CHEAP and not node.domain and origin in wanted:
            source.update((y, origin) for y in node.outputs)
        else:
            kept.update(node.outputs)
    return kept


def _segments(forward: Sequence[Node], read: Sequence[Value]) -> Collection[Value]:
    """What goes from one segment to the next, with as many segments as take the least memory.

    Segments end where little goes on to the next one. While one is gone through backwards, its values are there, and
    what all the others begin with: about √n segments of n operators where they are alike.
    """
    at = {v: i for i, node in enumerate(forward) for v in node.outputs}
    last = {x: i for i, node in enumerate(forward) for x in node.reads if x in at}
    n = len(forward)
    change, taken = np.zeros(n + 1), np.zeros(n)
    for v, end in last.items():
        change[at[v]] += _size(v)
        change[end] -= _size(v)
    crossing = change.cumsum()[:n]  # bytes that nodes behind the i-th one read of those up to it
    for v in read:
        taken[at[v]] += _size(v)
    total = taken.cumsum()
    best, ends = total[-1], list[int]()
    for count in range(2, 2 * math.isqrt(n) + 2):
        edges = np.searchsorted(total, np.linspace(0, total[-1], count + 1)[1:-1])
        half = max(1, n // count // 2)
        cuts = sorted({lo + int(crossing[lo : e + half].argmin()) for e in edges for lo in [max(0, e - half)]})
        parts = np.diff([0, *total[cuts], total[-1]])
        if (needed := crossing[cuts].sum() + parts.max()) < best:
            best, ends = needed, cuts
    return {v for v, end in last.items() for e in [bisect_left(ends, at[v])] if e < len(ends) and ends[e] < end}


def _size(v: Value) -> int:
    """Bytes of a value, as far as they are known."""
    return math.prod(d for d in v.shape or () if isinstance(d, int)) * v.dtype.itemsize

"""Gradient checkpointing: recompute values of the forward pass instead of keeping them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from ortpartial.autodiff import Gradient, grad
from ortpartial.exceptions import SettingError
from ortpartial.graph import Node, Value, find_boundary, op, rewrite, shape_of, topological

from .protocol import count_case, numbered

__all__ = ["checkpoint_gradient", "recompute_cheap", "recompute_values", "resolve_checkpointing"]

#: From the nodes of the forward pass and the values that the backward pass reads of them to the checkpoints.
Choice = Callable[[Sequence[Node], Sequence[Value]], Collection[Value]]

#: Operators that take little more time than reading their output from memory.
CHEAP = frozenset({"Abs", "Add", "Cast", "Clip", "Div", "Elu", "Equal", "Erf", "Exp", "Greater", "GreaterOrEqual",
                   "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min",
                   "Mul", "Neg", "Not", "Pow", "Reciprocal", "Relu", "Reshape", "Sigmoid", "Softplus", "Sqrt",
                   "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze", "Where"})


def resolve_checkpointing(checkpointing: Any, names: Collection[str] = ()) -> Gradient | None:
    """The gradient for a setting of `checkpointing`, None for the plain gradient.

    Parameters
    ----------
    checkpointing : None, bool, "auto" or sequence of str
        False and None: keep every value. True and "auto": choose the checkpoints. Otherwise: their names.
    names : collection of str
        The tensors of the model.

    Returns
    -------
    callable or None

    Raises
    ------
    SettingError
        The setting is something else, or names no tensor of the model.
    """
    if checkpointing is None or checkpointing is False:
        return None
    if checkpointing is True or (isinstance(checkpointing, str) and checkpointing == "auto"):
        return checkpoint_gradient(_choose_segments)
    is_list = isinstance(checkpointing, Sequence) and not isinstance(checkpointing, str)
    if not is_list or not all(isinstance(n, str) for n in checkpointing):
        raise SettingError(f"checkpointing is None, 'auto' or a list of tensors to keep, not {checkpointing!r}.")
    if unknown := [n for n in checkpointing if n not in names]:
        raise SettingError(f"checkpointing names {unknown[0]!r}, which is no tensor of the model.")
    chosen = frozenset(checkpointing)
    return checkpoint_gradient(lambda forward, read: {v for node in forward for v in node.outputs if v.hint in chosen})


def checkpoint_gradient(choice: Choice) -> Gradient:
    """A gradient that keeps some values of the forward pass, the checkpoints, and recomputes the others.

    A segment between checkpoints is recomputed from its first checkpoint, read through a Reshape whose shape depends on
    the cotangent of its last: no runtime can recompute it before the backward pass has come that far, or merge it with
    the first computation. Outputs of random operators and of operators with bodies are always kept.

    Parameters
    ----------
    choice : callable
        From the nodes of the forward pass, in their order, and the values that the backward pass reads of them, to the
        checkpoints.

    Returns
    -------
    callable
        From an expression and values to the gradients, the same numbers as by `grad`.

    References
    ----------
    .. [1] T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.

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
    return partial(recompute_values, choice)


@numbered("recompute")
def recompute_values(choice: Choice, objective: Value, wrt: Sequence[Value]) -> list[Value]:
    """The gradients of an expression, which keep some values of the forward pass: see `checkpoint_gradient`.

    1. `recompute`: A value that the backward pass reads is computed a second time.

    Parameters
    ----------
    choice : callable
        As for `checkpoint_gradient`.
    objective : Value
        The expression, a scalar.
    wrt : sequence of Value
        The values that it is differentiated by.

    Returns
    -------
    list of Value
    """
    forward = topological([objective])
    read = [v for v in find_boundary(grad(objective, wrt), [objective], wrt) if v.node is not None]
    fixed = (v for node in forward if node.bodies or node.is_random for v in node.outputs)
    kept = {*choice(forward, read), *fixed, *(v for v in read if v.inner is not None)}
    recomputed = [v for v in read if v not in kept]
    count_case("recompute", len(recomputed))
    return _differentiate(objective, wrt, forward, recomputed, kept)


def _differentiate(objective: Value, wrt: Sequence[Value], forward: Sequence[Node], recomputed: Sequence[Value],
                   kept: Collection[Value]) -> list[Value]:
    """The gradients, which read copies of the recomputed values instead of the values themselves."""
    dependent = _find_dependent(forward, wrt)
    checkpoints = [v for node in forward for v in node.outputs if v in kept and v in dependent]
    cotangents = grad(objective, [*wrt, *checkpoints])
    cut = [*wrt, *find_boundary(cotangents, [objective], wrt)]
    segments = _group_by_checkpoint(recomputed, checkpoints, forward)
    backward: dict[Value, Value] = {}  # values that the backward pass reads instead
    copies: dict[Value, Value] = {}
    for i in sorted(segments, reverse=True):
        cotangent = cotangents[len(wrt) + i]
        backward[cotangent] = rewrite([cotangent], backward, cut=cut)[0]
        copies |= _recompute(segments[i], copies, {*kept, *wrt}, set(wrt), backward[cotangent])
        backward |= {v: copies[v] for v in segments[i]}
    # Nodes are computed in the order in which they are made: the order of the plain gradient is kept.
    gradients = cotangents[: len(wrt)]
    ordered = sorted(dict.fromkeys(gradients), key=lambda g: g.node.serial if g.node else -1)
    rewritten = dict(zip(ordered, rewrite(ordered, backward, cut=cut), strict=True))
    return [rewritten[g] for g in gradients]


def _find_dependent(forward: Sequence[Node], wrt: Sequence[Value]) -> set[Value]:
    """The real values that are computed from `wrt`, and `wrt` itself."""
    dependent = set(wrt)
    for node in forward:
        if any(x in dependent for x in node.reads):
            dependent.update(y for y in node.outputs if y.is_float)
    return dependent


def _group_by_checkpoint(values: Sequence[Value], checkpoints: Sequence[Value],
                         forward: Sequence[Node]) -> dict[int, list[Value]]:
    """By the index of a checkpoint: values that are recomputed once the backward pass has its cotangent.

    It is the first checkpoint at or behind the last node that reads the value.
    """
    position = {v: i for i, node in enumerate(forward) for v in node.outputs}
    last_read = position | {x: i for i, node in enumerate(forward) for x in node.reads}
    positions = [position[v] for v in checkpoints]
    segments: dict[int, list[Value]] = {}
    for v in values:
        if (i := bisect_left(positions, last_read[v])) < len(checkpoints):
            segments.setdefault(i, []).append(v)
    return segments


def _recompute(values: Sequence[Value], copies: Mapping[Value, Value], kept: set[Value], wrt: set[Value],
               cotangent: Value) -> dict[Value, Value]:
    """Copies of values and of all nodes between them and kept values, computed as soon as a cotangent is there."""
    nodes = topological(values, {*copies, *kept})
    # 0, which no runtime can know before the cotangent is computed.
    element = op.Cast(op.Slice(op.Reshape(cotangent, [-1]), [0], [1]), to=TensorProto.FLOAT)
    zero = op.Cast(element > np.float32(np.inf), to=TensorProto.INT64)

    def delay(v: Value) -> Value:
        return op.Reshape(v, shape_of(v) + zero, allowzero=1).stated(v.shape)

    sources = dict.fromkeys(x for node in nodes for x in node.reads if x in kept or x.node is None)
    delayed = {x: delay(x) for x in sources if x not in wrt and x.array is None}
    outputs = [v for node in nodes for v in node.outputs]
    return dict(zip(outputs, rewrite(outputs, {**copies, **delayed}, cut=list(wrt)), strict=True))


def recompute_cheap(forward: Sequence[Node], read: Sequence[Value]) -> Collection[Value]:
    """All values but those that cheap operators compute of a single value that the backward pass reads as well.

    Parameters
    ----------
    forward : sequence of Node
        The nodes of the forward pass, in their order.
    read : sequence of Value
        The values that the backward pass reads of them.

    Returns
    -------
    collection of Value
        The checkpoints.
    """
    needed = set(read)
    origins: dict[Value, Value] = {}
    kept: set[Value] = set()
    for node in forward:
        sources = {origins.get(x, x) for x in node.reads if x.array is None and (x.node is not None or x in needed)}
        source = next(iter(sources)) if len(sources) == 1 else None
        if node.op_type in CHEAP and not node.domain and source in needed:
            origins.update((y, source) for y in node.outputs)
        else:
            kept.update(node.outputs)
    return kept


def _choose_segments(forward: Sequence[Node], read: Sequence[Value]) -> Collection[Value]:
    """The values that cross between segments, with as many segments as take the least memory.

    Segments end where few bytes cross. The memory is that of all crossing values and of the largest segment, whose
    values are recomputed together: about √n segments of n similar operators.
    """
    position = {v: i for i, node in enumerate(forward) for v in node.outputs}
    last_read = {x: i for i, node in enumerate(forward) for x in node.reads if x in position}
    n = len(forward)
    crossing_change, read_bytes = np.zeros(n + 1), np.zeros(n)
    for v, end in last_read.items():
        crossing_change[position[v]] += _count_bytes(v)
        crossing_change[end] -= _count_bytes(v)
    crossing = crossing_change.cumsum()[:n]  # bytes of the first i nodes that later nodes read
    for v in read:
        read_bytes[position[v]] += _count_bytes(v)
    total = read_bytes.cumsum()
    least, ends = total[-1], list[int]()
    for count in range(2, 2 * math.isqrt(n) + 2):
        edges = np.searchsorted(total, np.linspace(0, total[-1], count + 1)[1:-1])
        half = max(1, n // count // 2)
        cuts = sorted({lo + int(crossing[lo : e + half].argmin()) for e in edges for lo in [max(0, e - half)]})
        segments = np.diff([0, *total[cuts], total[-1]])
        if (needed := crossing[cuts].sum() + segments.max()) < least:
            least, ends = needed, cuts
    return {v for v, end in last_read.items()
            for e in [bisect_left(ends, position[v])] if e < len(ends) and ends[e] < end}


def _count_bytes(v: Value) -> int:
    """The bytes of a value, where symbolic sizes count as 1."""
    return math.prod(d for d in v.shape or () if isinstance(d, int)) * v.dtype.itemsize

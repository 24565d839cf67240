"""How does a model compute the same in fewer nodes? `simplify`, before it is differentiated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from ortpartial.autodiff import one_of
from ortpartial.graph import Node, Value, build, constant, make_node, make_rewriter, op, topological
from ortpartial.model import Model

from .transposes import cancel_transposes

__all__ = ["simplify"]

#: Operators that are computed when all they read is constant and no longer than this; sizes, mostly.
_FEW = 64
_FOLDED = frozenset({"Abs", "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather",
                     "Greater", "Identity", "Less", "Max", "Min", "Mul", "Neg", "Not", "Pow", "Range", "Reciprocal",
                     "ReduceProd", "Reshape", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
                     "Where"})


def simplify(model: Model, *, dropout: bool = False) -> Model:
    """The same function in fewer nodes.

    What sizes alone decide is computed now: onnxruntime does so, too, but for each graph apart, and a backward graph
    would be handed it each time. An idle Dropout is left out. Where attention moves elements twice, it does so once,
    and Relu comes behind a pool.

    Parameters
    ----------
    model : Model
        The model.
    dropout : bool
        Whether even an idle Dropout stays, since it is to be turned on.

    Returns
    -------
    Model
    """

    picks, pooled = _picks(model), _pooled(model)
    parts: dict[Any, tuple[Sequence[Value], list[int]]] = {}

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        if node.op_type in ("Shape", "Size") and not node.attributes and inputs[0].is_static:
            sizes = np.asarray(inputs[0].shape, np.int64)
            return [constant(sizes if node.op_type == "Shape" else sizes.prod())]
        if node.op_type == "Reshape":
            y = make_node(node.schema, inputs, node.attributes).outputs[0]
            if (moved := _moved(inputs[0], _sizes(y))) is not None:
                return [moved]
        if (pick := picks.get(id(node))) is not None:
            of, axis, i, n = pick
            if (of, axis) not in parts:
                parts[of, axis] = _slices(inputs[0], axis, n)
            slices, ones = parts[of, axis]
            if inputs[1].rank and ones == [axis]:
                return [slices[i]]
            part = op.Squeeze(slices[i], ones)
            return [op.Unsqueeze(part, [axis]) if inputs[1].rank else part]
        if node in pooled:
            return [op.Relu(make_node(node.schema, inputs[0].node.inputs, node.attributes).outputs[0])]
        if node.op_type == "Dropout" and not dropout and _is_idle(inputs):
            return [inputs[0], *node.outputs[1:]]
        known = all(x is None or (x.array is not None and x.array.size <= _FEW) for x in inputs)
        if not known or node.op_type not in _FOLDED or node.domain:
            return None
        y = make_node(node.schema, inputs, node.attributes).outputs[0]
        try:
            with np.errstate(all="ignore"):
                (found,) = ReferenceEvaluator(build([], {"y": y})).run(None, {})
        except Exception:  # What onnx cannot compute is left to the runtime, which says what is wrong.
            return None
        found = np.asarray(found)
        return [constant(found)] if found.size <= _FEW and found.dtype == y.dtype else None

    new = make_rewriter(list(model.outputs.values()), {}, change)
    return replace(model, outputs=cancel_transposes({n: new(v) for n, v in model.outputs.items()}))


def _picks(model: Model) -> dict[int, tuple[Value, int, int, int]]:
    """Gathers that together pick every slice of a tensor, as attention does its queries, keys and values.

    By the node: the tensor, the axis, which slice, of how many. The gradient of a Split is one Concat, that of n
    Gathers as many tensors of the whole size and their sum.
    """
    found: dict[tuple[Value, int], dict[int, list[Node]]] = {}
    for node in topological(list(model.outputs.values())):
        if node.op_type == "Gather" and not node.domain and (x := node.inputs[0]) is not None and x.shape:
            axis, indices = node.attribute("axis") % len(x.shape), node.inputs[1]
            if indices is not None and (alone := one_of(x, indices, axis)) is not None:
                found.setdefault((x, axis), {}).setdefault(alone[0], []).append(node)
    return {id(node): (x, axis, i, len(slices)) for (x, axis), slices in found.items()
            if 1 < len(slices) == (x.shape or ())[axis] for i, nodes in slices.items() for node in nodes}


def _moved(y: Value, shape: Sequence[int] | None) -> Value | None:
    """y = Transpose(Reshape(x)) in a shape that cuts its axes apart, as Transpose(Reshape(x)); None where y is not so.

    torch moves the heads of attention so, as one axis with the batch that is taken apart later. A runtime fuses a
    product with a Transpose next to it, not with one behind a Reshape.
    """
    transpose, before = _moving(y, "Transpose")
    reshape, x = _moving(before, "Reshape")
    sizes = _sizes(before)
    if transpose is None or before is None or reshape is None or sizes is None or shape is None:
        return None
    perm = _perm(transpose, before)
    found = _runs(shape, [sizes[a] for a in perm])
    if found is None:
        return None
    runs = dict(zip(perm, found, strict=True))
    starts = list(accumulate((len(runs[a]) for a in range(len(perm))), initial=0))
    apart = op.Reshape(x, [n for a in range(len(perm)) for n in runs[a]])
    return op.Transpose(apart, perm=[starts[a] + i for a, run in runs.items() for i in range(len(run))])


def _sizes(v: Value | None) -> list[int] | None:
    """The shape of a value, where all of it is known."""
    found = [] if v is None or v.shape is None else [n for n in v.shape if isinstance(n, int)]
    return found if v is not None and v.shape is not None and len(found) == len(v.shape) else None


def _runs(fine: Sequence[int], coarse: Sequence[int]) -> list[list[int]] | None:
    """Sizes in runs whose products are the coarse ones; None where there are no such."""
    rest, found = list(fine), []
    for n in coarse:
        run = [rest.pop(0)] if rest else []
        while rest and 0 < np.prod(run) < n:
            run.append(rest.pop(0))
        found.append(run)
    return found if not rest and [np.prod(run) for run in found] == list(coarse) else None


def _slices(x: Value, axis: int, n: int) -> tuple[list[Value], list[int]]:
    """All slices of x along an axis, cut off before this axis was moved to its place, if no other one was.

    And their axes of one element that those of x do not have.
    """
    u, axes = x, list(range(x.rank))
    while (behind := _behind(u)) is not None:
        came = [a for i in axes if (a := behind[1][i]) is not None]
        if len(came) < len(axes):
            break
        u, axes = behind[0], came
    rest = axes[:axis] + axes[axis + 1 :]
    if rest != sorted(rest):
        u, axes, rest = x, list(range(x.rank)), [a for a in range(x.rank) if a != axis]
    return op.Split(u, axis=axes[axis], num_outputs=n), [a for a in range(u.rank) if a not in rest]


def _behind(v: Value) -> tuple[Value, list[int | None]] | None:
    """What v is made of by moving axes or those of size 1, and where each axis comes from; None where it is not."""
    node, x = _moving(v, "Squeeze", "Transpose", "Unsqueeze")
    if node is None or x is None:
        return None
    if node.op_type == "Transpose":
        return x, [*_perm(node, x)]
    named = node.inputs[1].array if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if named is None:
        return None
    ones = {int(a) % max(x.rank, v.rank) for a in named}
    if node.op_type == "Squeeze":
        return x, [a for a in range(x.rank) if a not in ones]
    rest = iter(range(x.rank))
    return x, [None if a in ones else next(rest) for a in range(v.rank)]


def _moving(v: Value | None, *types: str) -> tuple[Node, Value] | tuple[None, None]:
    """The node that makes v and what it moves, where it is of one of these types."""
    node = v.node if v is not None else None
    if node is None or node.op_type not in types or (x := node.inputs[0]) is None or x.shape is None:
        return None, None
    return node, x


def _perm(transpose: Node, x: Value) -> list[int]:
    """Where each axis of a Transpose of x comes from."""
    return list(transpose.attribute("perm") or reversed(range(x.rank)))


def _pooled(model: Model) -> set[Node]:
    """Pools that alone read a Relu: of the pool of what it reads, which is smaller, Relu gives the same."""
    roots = list(model.outputs.values())
    nodes = topological(roots)
    times = Counter([*roots, *(v for node in nodes for v in node.reads)])
    pools = (node for node in nodes if node.op_type == "MaxPool" and not node.domain)
    return {n for n in pools if (x := n.reads[0]).node and x.node.op_type == "Relu" and times[x] == 1
            and not times[n.outputs[1]]}


def _is_idle(inputs: Sequence[Value | None]) -> bool:
    """Whether a Dropout with these inputs is not in training."""
    training = inputs[2] if len(inputs) > 2 else None
    return training is None or (training.array is not None and not training.array)

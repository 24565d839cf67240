"""Sequences of known tensors, which are read as these tensors, and of tensors of the same shape, as a stack of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from ortpartial.annotations import Attributes
from ortpartial.graph import Node, Subgraph, Value, constant, make_node, op

from .walk import walk_graphs

__all__ = ["Elements", "Joins", "Stack", "find_joins", "read_element", "sequence_elements", "stack_appended"]


@dataclass(frozen=True)
class Stack:
    """The tensors of a sequence, which have the same shape, along the first axis of a tensor."""

    tensor: Value


#: The elements of a sequence: its tensors, or a stack of them where their number is not known.
Elements = list[Value] | Stack

#: The axes along which a sequence is joined, and whether they are new axes.
Joins = list[tuple[int, bool]]


def sequence_elements(op_type: str, inputs: Sequence[Value | None], attributes: Attributes,
                      sequences: Mapping[Value, Elements]) -> Elements | None:
    """The tensors of the sequence that an operator gives, as far as they are known.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    inputs : sequence of Value or None
        Its inputs.
    attributes : mapping of str to object
        Its attributes.
    sequences : mapping of Value to list of Value or Stack
        The elements of other sequences.

    Returns
    -------
    list of Value, Stack, or None

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> sequence_elements("SplitToSequence", [variable("x", "float32", ["N", 3]), constant([2, 1])], {"axis": 1},
    ...                   {})
    [<Value Split float32[Nx2]>, <Value Split float32[Nx1]>]
    """
    if op_type in ("SequenceConstruct", "SequenceEmpty"):
        return [x for x in inputs if x is not None]
    x = inputs[0] if inputs else None
    if op_type == "Identity":
        return None if x is None else sequences.get(x)
    if op_type == "SequenceInsert" and x is not None and len(inputs) == 2 and inputs[1] is not None:
        return [*tensors, inputs[1]] if isinstance(tensors := sequences.get(x), list) else None
    if op_type != "SplitToSequence" or x is None or x.shape is None:
        return None
    return _split(x, inputs[1] if len(inputs) > 1 else None, attributes.get("axis", 0), attributes.get("keepdims", 1))


def _split(x: Value, split: Value | None, axis: int, keepdims: int) -> Elements | None:
    """The tensors that SplitToSequence gives, as far as they are known."""
    assert x.shape is not None
    sizes = _sizes(x.shape[axis], split)
    is_one = split is None or (split.array is not None and split.array.shape == () and split.array == 1)
    # onnxruntime follows keepdims beside a split of 1 as well, where ONNX ignores it.
    drops = is_one and not keepdims
    if sizes is None:
        slices = _move_first(x, axis % x.rank)
        return Stack(slices if drops else op.Unsqueeze(slices, [axis % x.rank + 1])) if is_one else None
    tensors = list(op.Split(x, constant(sizes, np.int64), axis=axis, n_outputs=len(sizes)))
    if drops:
        return [op.Squeeze(t, [axis]) for t in tensors]
    return tensors


def _move_first(x: Value, axis: int) -> Value:
    """x with an axis moved to the front."""
    return op.Transpose(x, perm=[axis, *(a for a in range(x.rank) if a != axis)]) if axis else x


def _sizes(n: int | str | None, split: Value | None) -> list[int] | None:
    """The sizes of the tensors along the axis that is split."""
    if split is not None and split.array is None:
        return None
    if split is not None and split.array is not None and split.array.ndim:
        return [int(k) for k in split.array] or None
    if not isinstance(n, int) or n == 0:
        return None
    k = 1 if split is None or split.array is None else int(split.array)
    return None if k < 1 else [min(k, n - start) for start in range(0, n, k)]


def read_element(op_type: str, tensors: Elements, inputs: Sequence[Value | None],
                 attributes: Attributes) -> Value | None:
    """The output of an operator that reads a sequence of known tensors; None where it cannot be told.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    tensors : list of Value, or Stack
        The tensors.
    inputs : sequence of Value or None
        The inputs of the operator, the sequence first.
    attributes : mapping of str to object
        Its attributes.

    Returns
    -------
    Value or None

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, y = variable("x", "float32", [2]), variable("y", "float32", [3])
    >>> read_element("SequenceAt", [x, y], [None, constant(-1)], {})
    <Value y float32[3]>
    """
    if isinstance(tensors, Stack):
        return _read_stack(op_type, tensors.tensor, inputs, attributes)
    if op_type == "SequenceLength":
        return constant(len(tensors), np.int64)
    if op_type == "SequenceAt" and (i := inputs[1]) is not None and i.array is not None:
        k = int(i.array)
        return tensors[k] if -len(tensors) <= k < len(tensors) else None
    if op_type == "ConcatFromSequence" and tensors:
        axis = attributes["axis"]
        if attributes.get("new_axis", 0):
            tensors = [op.Unsqueeze(t, [axis]) for t in tensors]
        return op.Concat(*tensors, axis=axis)
    return None


def _read_stack(op_type: str, stack: Value, inputs: Sequence[Value | None],
                attributes: Attributes) -> Value | None:
    """The output of an operator that reads a sequence whose tensors are stacked along the first axis."""
    if op_type == "SequenceLength":
        return op.Gather(op.Shape(stack, end=1), 0)
    if op_type == "SequenceAt" and (i := inputs[1]) is not None and i.shape is not None:
        return op.Gather(stack, i if not i.shape else op.Reshape(i, constant([])))
    if op_type != "ConcatFromSequence":
        return None
    new, axis = attributes.get("new_axis", 0), attributes["axis"]
    axis %= stack.rank - 1 + new
    y = op.Transpose(stack, perm=[*range(1, axis + 1), 0, *range(axis + 1, stack.rank)]) if axis else stack
    if new:
        return y
    joined = op.ReduceProd(op.Shape(y, start=axis, end=axis + 2), keepdims=1)
    sizes = op.Concat(op.Shape(y, end=axis), joined, op.Shape(y, start=axis + 2), axis=0)
    return op.Reshape(y, sizes, allowzero=1).stated([*y.shape[:axis], None, *y.shape[axis + 2 :]] if y.shape else None)


def stack_appended(loop: Node, sequences: Mapping[Value, Elements], joins: Sequence[Joins | None]
                   ) -> tuple[list[Value], dict[Value, Elements]]:
    """The outputs of a Loop whose outputs are the tensors that it appends to lists, and the elements of these lists.

    The Loop that carries the lists remains for other nodes that read them, and computes nothing where none does.

    Parameters
    ----------
    loop : Node
        The Loop.
    sequences : mapping of Value to list of Value or Stack
        The elements of sequences.
    joins : sequence of list of tuple, or None
        For each carried value how it is joined, as `find_joins` tells it.

    Returns
    -------
    outputs : list of Value
    sequences : dict of Value to list of Value or Stack
    """
    body, n = loop.bodies[0], len(loop.inputs) - 2
    appended = _list_appended(loop, sequences, joins)
    if not appended or any(node.is_random for node in body.nodes):
        return list(loop.outputs), {}
    kept = [j for j in range(n) if j not in appended]
    outputs = [body.outputs[0], *(body.outputs[1 + j] for j in kept), *body.outputs[1 + n :],
               *(v for _, v in appended.values())]
    new = Subgraph([*body.inputs[:2], *(body.inputs[2 + j] for j in kept)], outputs, body.inside)
    trips, going = loop.inputs[:2]
    inputs = [trips, constant(True) if going is None else going, *(loop.inputs[2 + j] for j in kept)]
    order = [*kept, *range(n, len(loop.outputs))]
    stacking = make_node(loop.schema, inputs, {**loop.attributes, "body": new}, name=loop.name,
                         hints=[loop.outputs[j].hint for j in order])
    results = list(loop.outputs)
    for j, y in zip(order, stacking.outputs, strict=False):
        results[j] = y
    stacks: dict[Value, Elements] = {}
    for (j, (tensors, _)), y in zip(appended.items(), stacking.outputs[len(order) :], strict=True):
        rows = [op.Unsqueeze(x, [0]) for x in tensors]
        stacks[results[j]] = Stack(op.Concat(*rows, y, axis=0) if rows else y)
    return results, stacks


def _list_appended(loop: Node, sequences: Mapping[Value, Elements], joins: Sequence[Joins | None]
                   ) -> dict[int, tuple[list[Value], Value]]:
    """By number of a list that a Loop carries, its first tensors, and the tensor of the body that is appended."""
    body, n = loop.bodies[0], len(loop.inputs) - 2
    appended: dict[int, tuple[list[Value], Value]] = {}
    for j, first in enumerate(loop.inputs[2:]):
        tensors = None if first is None else sequences.get(first)
        v = _find_appended(body, j, n)
        if v is None or not isinstance(tensors, list) or not _has_one_shape(v, body, n, joins[j]):
            continue
        if all(x.type_key == v.type_key for x in tensors):
            appended[j] = tensors, v
    return appended


def _find_appended(body: Subgraph, j: int, n: int) -> Value | None:
    """The tensor that every iteration appends to the j-th of n carried values; None if it does more with it."""
    before, after = body.inputs[2 + j], body.outputs[1 + j]
    insert = after.node
    if insert is None or insert not in body.own or insert.op_type != "SequenceInsert" or len(insert.inputs) != 2:
        return None
    others = [*body.outputs[: 1 + j], *body.outputs[2 + j :]]
    readers = [node for node in body.nodes if before in node.reads or after in node.reads]
    if insert.inputs[0] != before or readers != [insert] or before in others or after in others:
        return None
    return insert.inputs[1]


def _has_one_shape(v: Value, body: Subgraph, n: int, joins: Joins | None) -> bool:
    """Whether a tensor has the same shape in all iterations: its sizes are numbers, or sizes of values from outside.

    Tensors that are joined have to be of one shape but for the axis along which they are.
    """
    if v.shape is None:
        return False
    outside = {d for x in (*body.captured, *body.inputs[2 : 2 + n]) for d in x.shape or () if isinstance(d, str)}
    steady = [isinstance(d, int) or d in outside for d in v.shape]
    return all(steady) or (bool(joins) and all(new or steady[axis] for axis, new in joins or ()))


def find_joins(graph: GraphProto) -> dict[str, Joins | None]:
    """How sequences are read that are joined and nothing else: by name the axes, and whether they are new.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, with its bodies.

    Returns
    -------
    dict of str to list of tuple, or None
        None for all that is read otherwise.
    """
    joins: dict[str, Joins | None] = {}
    for g in walk_graphs(graph):
        for o in g.output:
            joins[o.name] = None
        for node in g.node:
            for name in node.input:
                known = joins.setdefault(name, [])
                if node.op_type != "ConcatFromSequence":
                    joins[name] = None
                elif known is not None:
                    attributes = {a.name: a.i for a in node.attribute}
                    known.append((attributes.get("axis", 0), bool(attributes.get("new_axis", 0))))
    return joins

"""Sizes: the first value of a graph of which an axis is as long as one of another value.

Guards that compare with a size read it there, so that those of all layers of a model are one.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ortpartial.graph import Node, Value

__all__ = ["find_size_source"]

#: A value, and one of its axes.
Axis = tuple[Value, int]

#: Operators whose first output has the shape of their first input.
_SHAPED = frozenset({
    "Abs", "Cast", "Clip", "Elu", "Erf", "Exp", "Gelu", "Identity", "LayerNormalization", "LeakyRelu", "Log",
    "LogSoftmax", "Neg", "Reciprocal", "RMSNormalization", "Relu", "Sigmoid", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "Softmax", "Softplus", "Sqrt", "Swish", "Tanh"})

#: Those of two inputs that are broadcast.
_BROADCAST = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})

#: Products of rows by a matrix, whose other axes are those of the first input.
_BY_MATRIX = frozenset({"MatMul", "MatMulNBits"})

#: How many operators are looked through at once; what is behind them was looked through for an earlier value.
_FAR = 100

#: None where it is the value itself, which would keep itself alive.
_SOURCES: WeakKeyDictionary[Value, dict[int, Axis | None]] = WeakKeyDictionary()


def find_size_source(x: Value, axis: int) -> Axis:
    """The first value of which an axis has the size of another one, whatever names sizes have.

    Parameters
    ----------
    x : Value
        A value of known rank.
    axis : int
        Its axis, from 0 on.

    Returns
    -------
    (Value, int)

    Examples
    --------
    >>> from ortpartial import constant, op, variable
    >>> x = variable("x", "float32", ["N", "S", 2])
    >>> y = op.Relu(x @ constant([[1.0, 2.0], [3.0, 4.0]], "float32")) + x
    >>> find_size_source(y, 1) == (x, 1)
    True
    """
    return _find(x, axis, _FAR)


def _find(x: Value, axis: int, most: int) -> Axis:
    sources = _SOURCES.setdefault(x, {})
    if axis not in sources:
        before = _step(x, axis, most) if most else None
        sources[axis] = None if before is None else _find(*before, most - 1)
    return sources[axis] or (x, axis)


def _step(x: Value, axis: int, most: int) -> Axis | None:
    """The input of the node of a value, and its axis, which has the same size; None where none is known to have it."""
    node = x.node
    if node is None or x is not node.outputs[0]:
        return None
    first, second = (*node.inputs, None, None)[:2]
    if first is None or first.shape is None or (second is not None and second.shape is None):
        return None
    if node.op_type in _SHAPED or (node.op_type == "GroupQueryAttention" and axis < 2):
        return first, axis
    return None if second is None else _step_of_two(node, first, second, axis, most)


def _step_of_two(node: Node, first: Value, second: Value, axis: int, most: int) -> Axis | None:
    """The same for a node whose second input counts."""
    rank = node.outputs[0].rank
    if node.op_type in _BY_MATRIX and axis < rank - 1 and (node.domain or second.rank == 2) and first.rank == rank:
        return first, axis
    if node.op_type == "Gather" and node.attribute("axis") == 0 and axis < second.rank:
        return second, axis
    return _meet(first, second, rank, axis, most) if node.op_type in _BROADCAST else None


def _meet(a: Value, b: Value, rank: int, axis: int, most: int) -> Axis | None:
    """The operand that has the size of an axis of two that are broadcast: one beside ones, or both alike."""
    axes = [(v, axis - rank + v.rank) for v in (a, b)]
    wide = [(v, k) for v, k in axes if k >= 0 and (v.shape or ())[k] != 1]
    if len(wide) == 1:
        return wide[0]
    sources = {_find(v, k, most - 1) for v, k in wide}
    return sources.pop() if len(sources) == 1 else None

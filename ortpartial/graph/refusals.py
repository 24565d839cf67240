"""Refusals: the ranges of the indices, labels and lengths that operators read, and the error for a number outside.

Engines that run a graph in onnxruntime leave the checks to it, and translate its errors; compiled steps and guards
check themselves. All of them use the ranges and the words of this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .traits import LABEL_LOSSES
from .values import Node, Value

__all__ = ["GUARD", "LEAST_GUARDED", "REFUSING", "SHIFT", "Bound", "describe_bound", "describe_refusal", "find_bound",
           "find_refused", "name_node", "state_refusal"]

#: The prefix of a guard's name (ortpartial/model/run_time_guards.py): the error follows.
GUARD = "guard: "

#: By how much the index of a guard is more than the number that it refuses, and the least number that it tells.
SHIFT, LEAST_GUARDED = 2**62, -(2**61)

#: A range with both ends.
Ends = tuple[int, int]


@dataclass(frozen=True)
class Bound:
    """The range of the whole numbers of an input.

    Parameters
    ----------
    position : int
        The number of the input.
    what : str
        A word for its numbers, as "an index".
    ranges : tuple of (int, int) or None
        The range of all of them, or the ranges of the numbers along its last axis; None where a size is not known.
    ignored : int, optional
        A number that may be outside.
    """

    position: int
    what: str
    ranges: tuple[Ends, ...] | None
    ignored: int | None = None


def find_bound(node: Node) -> Bound | None:
    """The range of the numbers by which an operator reads, writes, cuts or counts; None for other operators.

    Parameters
    ----------
    node : Node
        A node.

    Returns
    -------
    Bound or None
    """
    rule = _BOUNDS.get(node.op_type) if not node.domain else None
    return None if rule is None else rule(node)


def find_refused(bound: Bound, numbers: np.ndarray) -> int | None:
    """The first number that is out of a range; None where all are inside, or they have no common range.

    Parameters
    ----------
    bound : Bound
        The range.
    numbers : numpy.ndarray
        Whole numbers.

    Returns
    -------
    int or None

    Examples
    --------
    >>> find_refused(Bound(1, "a label", ((0, 3),), -1), np.array([2, -1, 4, 5]))
    4
    """
    if bound.ranges is None or len(set(bound.ranges)) != 1:
        return None
    low, high = bound.ranges[0]
    outside = (numbers < low) | (numbers > high)
    if bound.ignored is not None:
        outside &= numbers != bound.ignored
    return int(numbers[outside][0]) if outside.any() else None


def describe_refusal(node: Node) -> str:
    """The error for a number out of the range of a node, up to the number; empty where a node has no range.

    Parameters
    ----------
    node : Node
        A node.

    Returns
    -------
    str
        A guard is a node whose name is `GUARD` and the error, with blanks behind it where several have the same.

    Examples
    --------
    >>> from ortpartial import op, variable
    >>> x, i = variable("x", "float32", [4]), variable("i", "int64", [2])
    >>> describe_refusal(op.Gather(x, i).node)
    'A Gather has an index that is not in -4 to 3:'
    """
    if node.name.startswith(GUARD):
        return node.name.rstrip()
    bound = find_bound(node)
    return "" if bound is None else describe_bound(name_node(node.name, node.op_type, node.outputs[0].hint), bound)


def describe_bound(where: str, bound: Bound) -> str:
    """The error for a number out of range, up to the number.

    Parameters
    ----------
    where : str
        The node or the input, as a sentence begins with it.
    bound : Bound
        The range.

    Returns
    -------
    str
    """
    if bound.ranges is None:
        return f"{where} has {bound.what} that is out of range:"
    ranges = " and ".join(f"{low} to {high}" for low, high in dict.fromkeys(bound.ranges))
    return f"{where} has {bound.what} that is not in {ranges}{'' if bound.ignored is None else f' or {bound.ignored}'}:"


def state_refusal(refusal: str, number: int | None = None) -> str:
    """The whole error.

    Parameters
    ----------
    refusal : str
        The result of `describe_refusal`, or a sentence without a number.
    number : int, optional
        The number, where it is known; of a guard, its index.

    Returns
    -------
    str

    Examples
    --------
    >>> state_refusal("A Gather has an index that is not in -4 to 3:", 7)
    'A Gather has an index that is not in -4 to 3: 7.'
    """
    if refusal.startswith(GUARD):
        refusal = refusal.removeprefix(GUARD)
        number = None if number is None else (number - SHIFT + 2**63) % 2**64 - 2**63
    return f"{refusal} {number}." if number is not None and refusal.endswith(":") else f"{refusal.rstrip(':')}."


def name_node(name: str, op_type: str, output: str) -> str:
    """A node as an error names it: by its name, else by that of its output, where a model has them.

    Parameters
    ----------
    name, op_type : str
        Its name, and its operator.
    output : str
        Its first output.

    Returns
    -------
    str
    """
    if name and not re.fullmatch(rf"{op_type}_node_\d+", name):
        return f"Node {name!r} ({op_type})"
    if output and not re.fullmatch(rf"{op_type}_\d+", output):
        return f"{op_type} of {output!r}"
    return f"An {op_type}" if op_type.startswith(tuple("AEIOU")) else f"A {op_type}"


# -- ranges by operator


def _size(x: Value | None, axis: int) -> int | None:
    """The size of an axis, where it is known."""
    shape = None if x is None else x.shape
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


def _around(sizes: list[int | None]) -> tuple[Ends, ...] | None:
    """Ranges of indices that may count from the end."""
    known = [n for n in sizes if n is not None]
    return tuple((-n, n - 1) for n in known) if len(known) == len(sizes) else None


def _from_zero(size: int | None, *, is_open: bool = True) -> tuple[Ends, ...] | None:
    """A range from 0 on, below a size or up to it."""
    return None if size is None else ((0, size - is_open),)


def _along_axis(node: Node) -> Bound:
    return Bound(1, "an index", _around([_size(node.inputs[0], node.attribute("axis"))]))


def _of_parts(node: Node) -> Bound:
    n, first = _size(node.inputs[1], -1), node.attribute("batch_dims") if node.op_type == "GatherND" else 0
    sizes: list[int | None] = [None] if n is None else [_size(node.inputs[0], first + i) for i in range(n)]
    return Bound(1, "an index", _around(sizes))


def _of_labels(node: Node) -> Bound:
    return Bound(1, "a label", _from_zero(_size(node.inputs[0], 1)), node.attribute("ignore_index"))


def _of_lengths(node: Node) -> Bound | None:
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return None
    steps = _size(node.inputs[0], node.attribute("layout"))
    return Bound(4, "a length of a sequence", _from_zero(steps, is_open=False))


def _of_turned(node: Node) -> Bound:
    size = _size(node.inputs[0], node.attribute("time_axis"))
    return Bound(1, "a length of a sequence", _from_zero(size, is_open=False))


def _of_keys(node: Node) -> Bound | None:
    """The keys that count, in the attention of opset 24."""
    if len(node.inputs) < 7 or node.inputs[6] is None:
        return None
    return Bound(6, "a length of a sequence", _from_zero(_size(node.inputs[1], -2), is_open=False))


def _of_positions(node: Node) -> Bound | None:
    if len(node.inputs) < 4 or node.inputs[3] is None:
        return None
    return Bound(3, "a position", _from_zero(_size(node.inputs[1], 0)))


_BOUNDS: dict[str, Callable[[Node], Bound | None]] = {
    **dict.fromkeys(("Gather", "GatherElements", "ScatterElements"), _along_axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _of_parts),
    **dict.fromkeys(LABEL_LOSSES, _of_labels),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _of_lengths),
    "Attention": _of_keys, "ReverseSequence": _of_turned, "RotaryEmbedding": _of_positions,
}

#: The operators with such ranges.
REFUSING = frozenset(_BOUNDS)

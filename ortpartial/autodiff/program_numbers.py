"""Constants that a program computes with and no training changes: angles, tables of positions, and masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ortpartial.graph import Node, Value, topological

__all__ = ["explain_program_numbers", "is_mask"]

#: Operators that move elements, or repeat them.
_MOVES = frozenset({"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze",
                    "Tile", "Transpose", "Unsqueeze"})

#: Operators between frequencies and angles.
_ANGLES = _MOVES | {"Add", "Div", "Einsum", "Gemm", "MatMul", "Mul", "Neg", "Reciprocal", "Sub"}

#: Operators that read a table of positions, or of their sines and cosines.
_TABLES = _MOVES | {"Add", "Mul", "Sub"}

#: Operators that read a mask.
_MASKS = _MOVES - {"Gather"} | {"Add"}

#: From here on, numbers that are added to scores hide them from Softmax.
_HIDING = -1e4

#: How many rows of a table of positions are looked at.
_ROWS = 64


def explain_program_numbers(outputs: Sequence[Value], readers: Mapping[Value, Sequence[Node]]) -> dict[Value, str]:
    """Constants that no training changes unless they are named, and why.

    `readers` has the constants of real numbers and the nodes that read each. The use of a constant decides, and its
    numbers, too, where the use is not certain:

    * the frequencies of a rotary embedding: steadily rising or falling positive numbers, which meet nothing but
      positions on their way to sines and cosines of the same angles;
    * a table of the sines and cosines of positions, which is gathered from, added or multiplied;
    * a mask, which is added, and hides scores from Softmax.
    """
    vectors = {v for v in readers if _is_frequency(v)}
    consumers = _list_consumers(outputs) if vectors else {}
    reasons = {v: "angles of a rotary embedding, which feed cos and sin alone: trained by name only"
               for v in vectors if _feeds_angles(v, consumers, outputs, vectors)}
    for v, nodes in readers.items():
        used = {node.op_type for node in nodes}
        if v in reasons or v.array is None or not used or not used <= _TABLES:
            continue
        if is_sinusoidal(v.array):
            reasons[v] = "a table of the sines and cosines of positions: trained by name only"
        elif used <= _MASKS and is_mask(v.array) and v.array.any():
            reasons[v] = f"a mask that {nodes[0].op_type} reads"
    return reasons


def is_mask(a: np.ndarray) -> bool:
    """Whether an array hides scores from Softmax where it is not 0."""
    return a.ndim > 1 and bool(((a == 0) | (a <= _HIDING)).all())


def is_sinusoidal(a: np.ndarray) -> bool:
    """Whether each column of a table is sin ωk or cos ωk at the positions k = 0, 1, 2 ..., and some turn visibly.

    Then it is 0 or 1 at k = 0, and a(k+1) + a(k-1) = 2 cos ω · a(k).
    """
    shape = [n for n in a.shape if n != 1]
    if len(shape) != 2 or shape[0] < 4 or not np.isin(a.reshape(shape)[0], (0, 1)).all():
        return False
    rows = a.reshape(shape)[:_ROWS].astype(float)
    inner, around = rows[1:-1], rows[2:] + rows[:-2]
    squares = (inner * inner).sum(0)
    factor = (inner * around).sum(0) / np.where(squares, squares, 1)
    return bool(np.abs(around - factor * inner).max() < 1e-3 and np.ptp(rows, axis=0).max() > 0.5)


def _is_frequency(v: Value) -> bool:
    """Whether a constant is a vector of positive numbers that rise or fall all along it."""
    a = v.array
    if a is None or not a.size or max(a.shape, default=0) != a.size or not (a >= 0).all():
        return False
    steps = np.diff(a.reshape(-1).astype(float))
    return bool((steps > 0).all() or (steps < 0).all())


def _list_consumers(outputs: Sequence[Value]) -> dict[Value, list[Node]]:
    """The nodes that read each value which outputs depend on."""
    consumers: dict[Value, list[Node]] = {}
    for node in topological(list(outputs)):
        for x in node.reads:
            consumers.setdefault(x, []).append(node)
    return consumers


def _feeds_angles(v: Value, consumers: Mapping[Value, Sequence[Node]], outputs: Iterable[Value],
                  vectors: Collection[Value]) -> bool:
    """Whether all that is computed from a constant are sines and cosines, of angles that it makes with positions."""
    ends, seen, stack, final = set(), {v}, [v], set(outputs)
    while stack:
        x = stack.pop()
        if x in final:
            return False
        for node in consumers.get(x, ()):
            if node.op_type in ("Cos", "Sin") and not node.domain:
                ends.add(node.op_type)
            elif node.op_type not in _ANGLES or node.domain or not all(
                    _is_position(y, vectors) for y in node.reads if y not in seen):
                return False
            else:
                stack += [y for y in node.outputs if y not in seen]
                seen.update(node.outputs)
    return ends == {"Cos", "Sin"}


def _is_position(v: Value, vectors: Collection[Value]) -> bool:
    """Whether real numbers follow from whole numbers, single numbers and vectors that rise or fall."""
    seen, stack = {v}, [v]
    while stack:
        x = stack.pop()
        if not x.is_float:
            continue
        if x.array is not None:
            if x.array.size > 1 and x not in vectors:
                return False
        elif x.node is None or x.node.bodies:
            return False
        else:
            stack += [y for y in x.node.reads if y not in seen]
            seen.update(x.node.reads)
    return True

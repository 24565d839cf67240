"""Walks through expressions: what values depend on, and where one part of a graph meets another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from .ops import Value, topological

__all__ = ["find_boundary", "find_inputs", "find_reached"]


def find_boundary(gradients: Iterable[Value], outputs: Sequence[Value], leaves: Collection[Value]) -> list[Value]:
    """What gradients read of the forward expression: its leaves, and values that lead to its outputs.

    Parameters
    ----------
    gradients : iterable of Value
        What the backward half computes.
    outputs : sequence of Value
        What the forward half computes.
    leaves : collection of Value
        Where the forward half starts.

    Returns
    -------
    list of Value
        In the order in which the gradients read them.
    """
    forward = {id(node) for node in topological(outputs)}
    read: dict[Value, None] = {}
    stack, seen = list(gradients), set()
    while stack:
        v = stack.pop()
        if v in leaves or (v.node is not None and id(v.node) in forward):
            read.setdefault(v)
        elif v.node is not None and id(v.node) not in seen:
            seen.add(id(v.node))
            stack.extend(v.node.reads)
    return list(read)


def find_inputs(values: Iterable[Value], inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Those inputs that some values depend on.

    Parameters
    ----------
    values : iterable of Value
        What is computed.
    inputs : dict of str to Value
        From what it may be computed.

    Returns
    -------
    dict of str to Value
    """
    seen: set[Value] = set()
    stack = list(values)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            stack.extend(x for x in (v.node.reads if v.node else ()) if x not in seen)
    return {n: v for n, v in inputs.items() if v in seen}


def find_reached(roots: Iterable[Value], cut: Iterable[Value]) -> set[Value]:
    """Those values of a cut that roots are computed from.

    Parameters
    ----------
    roots : iterable of Value
        What is computed.
    cut : iterable of Value
        Where the walk back ends.

    Returns
    -------
    set of Value
    """
    found, seen, cut, stack = set(), set(), set(cut), list(roots)
    while stack:
        v = stack.pop()
        if v in cut:
            found.add(v)
        elif v.node is not None and id(v.node) not in seen:
            seen.add(id(v.node))
            stack.extend(v.node.reads)
    return found

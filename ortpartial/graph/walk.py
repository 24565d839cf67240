"""Walks over expressions: topological order, dependencies, and the boundary between forward and backward graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .values import Node, Value

__all__ = ["find_boundary", "find_inputs", "find_reached", "topological", "walk_back", "walk_nodes"]


def topological(roots: Sequence[Value], cut: Collection[Value] = (), within: Collection[Node] | None = None,
                also: Mapping[Node, Sequence[Node]] | None = None) -> list[Node]:
    """Nodes that some values need, each after those it reads, in the order in which expressions were written.

    Parameters
    ----------
    roots : sequence of Value
        What is computed.
    cut : collection of Value
        Values that the walk does not go beyond.
    within : collection of Node, optional
        The nodes to which the walk is confined; all by default.
    also : dict of Node to sequence of Node, optional
        Further nodes that are to come before a node.

    Returns
    -------
    list of Node
    """
    cut = cut if isinstance(cut, (set, frozenset, Mapping)) else set(cut)
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Node, bool]] = [(v.node, False) for v in reversed(roots) if v.node and v not in cut]
    while stack:
        node, ready = stack.pop()
        if id(node) in done or (within is not None and node not in within):
            continue
        if ready:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        if also:
            stack.extend((n, False) for n in also.get(node, ()) if id(n) not in done)
        stack.extend(
            (v.node, False)
            for v in reversed(node.reads)
            if v.node is not None and v not in cut and id(v.node) not in done
        )
    return order


def walk_back(roots: Iterable[Value], stop: Callable[[Value], bool]) -> Iterator[Value]:
    """Values that some values are computed from, themselves first.

    Parameters
    ----------
    roots : iterable of Value
        What is computed.
    stop : callable
        Whether the walk does not go beyond a value.

    Yields
    ------
    Value
        A value that is read several times may come as often.
    """
    expanded: set[int] = set()
    stack = list(roots)
    while stack:
        v = stack.pop()
        yield v
        if v.node is not None and id(v.node) not in expanded and not stop(v):
            expanded.add(id(v.node))
            stack.extend(v.node.reads)


def walk_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, and those inside their bodies.

    Parameters
    ----------
    nodes : iterable of Node
        Nodes.

    Yields
    ------
    Node
    """
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(n for body in node.bodies for n in body.nodes)


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
    forward, leaves = {id(node) for node in topological(outputs)}, set(leaves)

    def is_forward(v: Value) -> bool:
        return v in leaves or (v.node is not None and id(v.node) in forward)

    return list(dict.fromkeys(v for v in walk_back(gradients, is_forward) if is_forward(v)))


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
    reached = set(walk_back(values, lambda v: False))
    return {n: v for n, v in inputs.items() if v in reached}


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
    cut = set(cut)
    return {v for v in walk_back(roots, cut.__contains__) if v in cut}

"""Walks over expressions: bodies, dependencies, and the boundary between forward and backward graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .values import Node, Value, topological, walk_back

__all__ = ["find_boundary", "find_inputs", "find_reached", "walk_nodes"]


def walk_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, and the nodes inside their bodies.

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
    """Values of the forward expression that gradients read: its leaves, and values that lead to its outputs.

    Parameters
    ----------
    gradients : iterable of Value
        The results of the backward half.
    outputs : sequence of Value
        The results of the forward half.
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
    """The inputs that some values depend on.

    Parameters
    ----------
    values : iterable of Value
        The computed values.
    inputs : dict of str to Value
        The inputs they may be computed from.

    Returns
    -------
    dict of str to Value
    """
    reached = set(walk_back(values, lambda v: False))
    return {n: v for n, v in inputs.items() if v in reached}


def find_reached(roots: Iterable[Value], cut: Iterable[Value]) -> set[Value]:
    """The values of a cut that roots are computed from.

    Parameters
    ----------
    roots : iterable of Value
        The computed values.
    cut : iterable of Value
        Where the walk back ends.

    Returns
    -------
    set of Value
    """
    cut = set(cut)
    return {v for v in walk_back(roots, cut.__contains__) if v in cut}

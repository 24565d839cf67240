"""Constants that nothing reads: onnxruntime warns of each when it loads a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnx import FunctionProto, GraphProto

from .walk import bodies, walk_graphs

__all__ = ["remove_unused"]


def remove_unused(container: GraphProto | FunctionProto, names: Iterable[str]) -> None:
    """Remove those among some constants that nothing reads: initializers, Constant nodes, and an Identity of either.

    Parameters
    ----------
    container : onnx.GraphProto or onnx.FunctionProto
        What holds the constants, in itself or in its bodies; it is changed.
    names : iterable of str
        The names of the constants.

    Examples
    --------
    >>> from onnx.parser import parse_graph
    >>> graph = parse_graph("f (float[N] x) => (float[N] y) <float[1] w = {1}> { v = Identity(w) y = Exp(x) }")
    >>> remove_unused(graph, ["v"])
    >>> [node.op_type for node in graph.node], len(graph.initializer)
    (['Exp'], 0)
    """
    graphs: list[Any] = [container, *(g for node in container.node for b in bodies(node) for g in walk_graphs(b))]
    outputs = {o if isinstance(o, str) else o.name for g in graphs for o in g.output}
    candidates = set(names)
    while True:
        unread = candidates.difference(outputs, (i for g in graphs for node in g.node for i in node.input))
        nodes = [(g, node) for g in graphs for node in g.node
                 if node.op_type in ("Constant", "Identity") and unread.issuperset(node.output)]
        if not nodes:
            break
        for g, node in nodes:
            candidates.update(node.input)
            g.node.remove(node)
    for g in graphs:
        if isinstance(g, GraphProto) and (removed := {t.name for t in g.initializer} & unread):
            for field in ("initializer", "input"):  # An initializer that is an input, too, is its default.
                kept = [t for t in getattr(g, field) if t.name not in removed]
                g.ClearField(field)
                getattr(g, field).extend(kept)

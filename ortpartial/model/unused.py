"""Nodes and constants that nothing reads: without optimization onnxruntime runs the nodes, and warns of constants."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableSequence

from google.protobuf.message import Message
from onnx import FunctionProto, GraphProto

from .walk import bodies, walk_graphs

__all__ = ["remove_named", "remove_unread", "remove_unused", "replace_messages"]


def remove_unused(container: GraphProto | FunctionProto, names: Iterable[str]) -> None:
    """Remove constants, of some names, that nothing reads: initializers, Constant nodes, and an Identity of either.

    Parameters
    ----------
    container : onnx.GraphProto or onnx.FunctionProto
        The graph or function that holds the constants, in itself or in its bodies; it is changed.
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
    graphs = [container, *(g for node in container.node for b in bodies(node) for g in walk_graphs(b))]
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
        if isinstance(g, GraphProto):
            removed = {t.name for t in g.initializer} & unread
            remove_named(g.initializer, removed)
            remove_named(g.input, removed)  # An initializer that is an input, too, is its default.


def remove_named(messages: MutableSequence[Message], names: Collection[str]) -> None:
    """Remove the messages of a repeated field that have these names; the others are not copied.

    Parameters
    ----------
    messages : repeated field
        Such as the initializers of a graph; it is changed.
    names : collection of str
        The names.
    """
    for i in reversed(range(len(messages)) if names else ()):
        if messages[i].name in names:
            del messages[i]


def replace_messages(messages: MutableSequence[Message], others: Iterable[Message]) -> None:
    """Give a repeated field other content, which may be some of its own.

    Parameters
    ----------
    messages : repeated field
        Such as the nodes of a graph; it is changed.
    others : iterable of message
        The new messages.
    """
    kept = list(others)
    del messages[:]
    messages.extend(kept)


def remove_unread(container: GraphProto | FunctionProto) -> None:
    """Remove nodes that no output is computed from, in the bodies of nodes, too.

    Parameters
    ----------
    container : onnx.GraphProto or onnx.FunctionProto
        The graph or function that holds the nodes, in any order; it is changed.

    Examples
    --------
    >>> from onnx.parser import parse_graph
    >>> graph = parse_graph("f (float[N] x) => (float[N] y) { z = Log(x) y = Exp(x) }")
    >>> remove_unread(graph)
    >>> [node.op_type for node in graph.node]
    ['Exp']
    """
    computed = {o: i for i, node in enumerate(container.node) for o in node.output if o}
    stack = [o if isinstance(o, str) else o.name for o in container.output]
    kept: set[int] = set()
    while stack:
        i = computed.get(stack.pop())
        if i is not None and i not in kept:
            kept.add(i)
            node = container.node[i]
            for body in bodies(node):
                remove_unread(body)
            inside = [g for body in bodies(node) for g in walk_graphs(body)]
            stack += [*node.input, *(n for g in inside for inner in g.node for n in inner.input),
                      *(o.name for g in inside for o in g.output)]
    replace_messages(container.node, [node for i, node in enumerate(container.node) if i in kept])

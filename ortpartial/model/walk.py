"""Walks over ONNX graphs: the graphs and the nodes inside of nodes."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from ortpartial.graph import WITH_BODIES

__all__ = ["bodies", "walk_graphs", "walk_protos"]


def bodies(node: NodeProto) -> list[GraphProto]:
    """The graphs inside a node.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.

    Returns
    -------
    list of onnx.GraphProto
    """
    if node.domain in ("", "ai.onnx") and node.op_type not in WITH_BODIES:  # most nodes: not to be looked through
        return []
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and all graphs inside it.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.

    Yields
    ------
    onnx.GraphProto
    """
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from walk_graphs(body)


def walk_protos(container: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Nodes, and the nodes of the graphs inside them, in attributes of any operator.

    Parameters
    ----------
    container : onnx.GraphProto or onnx.FunctionProto
        The graph or function that holds the nodes; it need not be valid.

    Yields
    ------
    onnx.NodeProto
    """
    for node in container.node:
        yield node
        for a in node.attribute:
            for graph in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs):
                yield from walk_protos(graph)

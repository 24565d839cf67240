"""Scopes: the module of the exported program that each node comes from, as torch's two exporters record it."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import Any

from onnx import GraphProto, NodeProto

from .walk import walk_graphs

__all__ = ["find_readers", "parse_list", "read_scope"]

#: Characters that a list of modules may take.
_LONGEST = 10_000


def read_scope(node: NodeProto) -> str | None:
    """The path of the module that a node comes from.

    The TorchScript exporter writes it into the name of the node, the dynamo exporter into its metadata.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.

    Returns
    -------
    str or None
        Such as ``"encoder.layer.0.attention"``, and ``""`` for the outermost module; None where none is recorded.

    Examples
    --------
    >>> read_scope(NodeProto(name="/encoder/layer.0/attention/MatMul_1"))
    'encoder.layer.0.attention'
    """
    metadata = {p.key: p.value for p in node.metadata_props}
    if "pkg.torch.onnx.name_scopes" in metadata:
        # A list of modules, from the outermost to the innermost, and the node of torch's graph.
        scopes = parse_list(metadata["pkg.torch.onnx.name_scopes"])
        return str(scopes[-2]) if len(scopes) > 1 else ""
    if "namespace" in metadata:  # torch 2.5, ": Net/encoder: Encoder/encoder.layer: Layer/linear_1: aten.linear"
        scopes = [part.split(": ")[0] for part in metadata["namespace"].split("/")]
        return scopes[-2] if len(scopes) > 1 else ""
    return _join_path(node.name.split("/")[1:-1]) if node.name.startswith("/") else None


def _join_path(parts: list[str]) -> str:
    """The path of a module, of which torch 2.13.0 writes the parts of a container as "layer1" and "layer1.0"."""
    path: list[str] = []
    for part in parts:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


def parse_list(text: str) -> list[Any]:
    """A list that Python has written; an empty list for other texts.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    list
    """
    try:
        value = ast.literal_eval(text) if len(text) < _LONGEST else []
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return []
    return value if isinstance(value, list) else []


def find_readers(graph: GraphProto) -> dict[str, list[tuple[NodeProto, int]]]:
    """The nodes that read each initializer, and the number of the input.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph; the graphs inside it count as well.

    Returns
    -------
    dict of str to list of tuple of onnx.NodeProto and int
        By initializer. A node that reads it through Identity counts: exporters merge equal initializers in this way.
    """
    graphs = list(walk_graphs(graph))
    origin = {t.name: t.name for g in graphs for t in g.initializer}
    readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
    for node in (node for g in graphs for node in g.node):
        if node.op_type == "Identity" and not node.domain and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
            continue
        for i, name in enumerate(node.input):
            if name in origin:
                readers[origin[name]].append((node, i))
    return readers

"""Inlining of GraphCall, the operator by which training algorithms of ONNX 1.7 run the inference graph."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto, helper

from ortpartial.exceptions import ModelError
from ortpartial.model import bodies
from ortpartial.texts import reserve_name

from .operators import DOMAIN

__all__ = ["inline_call", "is_call"]


def is_call(node: NodeProto) -> bool:
    """Whether a node is a GraphCall.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.

    Returns
    -------
    bool
    """
    return node.op_type == "GraphCall" and node.domain == DOMAIN


def inline_call(node: NodeProto, graph: GraphProto, where: str, prefix: str, taken: set[str]) -> list[NodeProto]:
    """Copy the nodes of the inference graph, its inputs and outputs replaced by the GraphCall's.

    Parameters
    ----------
    node : onnx.NodeProto
        The GraphCall.
    graph : onnx.GraphProto
        The inference graph.
    where : str
        The place of the node, for error messages.
    prefix : str
        A prefix for the names of tensors.
    taken : set of str
        Names in use; new names are added.

    Returns
    -------
    list of onnx.NodeProto

    Raises
    ------
    ModelError
        The node calls another graph, or does not fit the inputs and outputs of this graph.
    """
    names = _bind_inputs(node, graph, where)
    results = {o.name: r for o, r in zip(graph.output, node.output, strict=False) if r}
    copies = []
    for source in graph.node:
        for o in source.output:
            names[o] = results.get(o) or reserve_name(f"{prefix}_{o}", taken) if o else ""
        copy = NodeProto()
        copy.CopyFrom(source)
        _rename(copy, names, prefix, taken)
        copies.append(copy)
    # An output of the graph that no node computes under the caller's name, such as an input, is passed on.
    passed = [(names[o], r) for o, r in results.items() if names[o] != r]
    return [*copies, *(helper.make_node("Identity", [source], [r]) for source, r in passed)]


def _bind_inputs(node: NodeProto, graph: GraphProto, where: str) -> dict[str, str]:
    """Map the inputs and initializers of the called graph to the names of the caller."""
    name = next((a.s.decode() for a in node.attribute if a.name == "graph_name"), "")
    if name != graph.name:
        raise ModelError(f"{where}: a GraphCall names the graph {name!r}, and the only one that it may call, the "
                         f"inference graph, is {graph.name!r}.")
    if len(node.input) > len(graph.input) or len(node.output) > len(graph.output):
        raise ModelError(f"{where}: a GraphCall has {len(node.input)} inputs and {len(node.output)} outputs, the graph "
                         f"{name!r} has {len(graph.input)} and {len(graph.output)}.")
    names = {t.name: t.name for t in graph.initializer}
    arguments = [*node.input, *[""] * len(graph.input)]
    for i, argument in zip(graph.input, arguments, strict=False):
        if not argument and i.name not in names:
            raise ModelError(f"{where}: a GraphCall leaves out the input {i.name!r}, which has no initializer.")
        names[i.name] = argument or i.name
    return names


def _rename(node: NodeProto, names: Mapping[str, str], prefix: str, taken: set[str]) -> None:
    """Rename a node and its tensors, also in its bodies."""
    if node.name:
        node.name = f"{prefix}_{node.name}"
    node.input[:] = [names.get(i, i) for i in node.input]
    node.output[:] = [names.get(o, o) for o in node.output]
    if node.domain == DOMAIN and node.op_type == "Gradient":
        for a in node.attribute:
            if a.name in ("xs", "zs"):
                a.strings[:] = [names.get(s.decode(), s.decode()).encode() for s in a.strings]
            elif a.name == "y":
                a.s = names.get(a.s.decode(), a.s.decode()).encode()
    for body in bodies(node):
        local = [v.name for v in (*body.input, *body.initializer)] + [o for n in body.node for o in n.output if o]
        inside = {**names, **{n: reserve_name(f"{prefix}_{n}", taken) for n in dict.fromkeys(local)}}
        for v in (*body.input, *body.initializer, *body.output, *body.value_info):
            v.name = inside.get(v.name, v.name)
        for inner in body.node:
            _rename(inner, inside, prefix, taken)

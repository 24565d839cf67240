"""What does a GraphCall stand for, by which algorithms of ONNX 1.7 ran the inference graph? Its nodes, once more."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto, helper

from ortpartial.exceptions import ModelError
from ortpartial.model import bodies

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
    """The nodes of the inference graph, its inputs and outputs those of a GraphCall, position by position.

    Parameters
    ----------
    node : onnx.NodeProto
        The GraphCall.
    graph : onnx.GraphProto
        The inference graph.
    where : str
        What messages call the place of the node.
    prefix : str
        What names of tensors begin with.
    taken : set of str
        Names in use, to which those given are added.

    Returns
    -------
    list of onnx.NodeProto

    Raises
    ------
    ModelError
        The node names another graph, or does not fit its inputs and outputs.
    """
    name = next((a.s.decode() for a in node.attribute if a.name == "graph_name"), "")
    if name != graph.name:
        raise ModelError(f"{where}: a GraphCall names the graph {name!r}, and the only one that it may call, the "
                         f"inference graph, is {graph.name!r}.")
    if len(node.input) > len(graph.input) or len(node.output) > len(graph.output):
        raise ModelError(f"{where}: a GraphCall has {len(node.input)} inputs and {len(node.output)} outputs, the graph "
                         f"{name!r} has {len(graph.input)} and {len(graph.output)}.")
    stored = {t.name for t in graph.initializer}
    names = {n: n for n in stored}
    given = [*node.input, *[""] * len(graph.input)]
    for i, fed in zip(graph.input, given, strict=False):
        if not fed and i.name not in stored:
            raise ModelError(f"{where}: a GraphCall leaves out the input {i.name!r}, which has no initializer.")
        names[i.name] = fed or i.name
    results = {o.name: r for o, r in zip(graph.output, node.output, strict=False) if r}
    copies = []
    for source in graph.node:
        for o in source.output:
            names[o] = results.get(o) or _free(f"{prefix}_{o}", taken) if o else ""
        copy = NodeProto()
        copy.CopyFrom(source)
        _rename(copy, names, prefix, taken)
        copies.append(copy)
    direct = [(names[o], r) for o, r in results.items() if names[o] != r]
    return [*copies, *(helper.make_node("Identity", [source], [r]) for source, r in direct)]


def _free(name: str, taken: set[str]) -> str:
    """The name, with underscores behind it where it is taken, which it is then."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _rename(node: NodeProto, names: Mapping[str, str], prefix: str, taken: set[str]) -> None:
    """Give the tensors of a node, and those inside of it, other names."""
    if node.name:
        node.name = f"{prefix}_{node.name}"
    node.input[:] = [names.get(i, i) for i in node.input]
    node.output[:] = [names.get(o, o) for o in node.output]
    for a in node.attribute:
        if node.domain == DOMAIN and node.op_type == "Gradient" and a.name in ("xs", "zs"):
            a.strings[:] = [names.get(s.decode(), s.decode()).encode() for s in a.strings]
        elif node.domain == DOMAIN and node.op_type == "Gradient" and a.name == "y":
            a.s = names.get(a.s.decode(), a.s.decode()).encode()
    for body in bodies(node):
        own = [v.name for v in (*body.input, *body.initializer)] + [o for n in body.node for o in n.output if o]
        inside = {**names, **{n: _free(f"{prefix}_{n}", taken) for n in dict.fromkeys(own)}}
        for v in (*body.input, *body.initializer, *body.output, *body.value_info):
            v.name = inside.get(v.name, v.name)
        for inner in body.node:
            _rename(inner, inside, prefix, taken)

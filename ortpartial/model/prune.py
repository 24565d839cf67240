"""Pruning: a model with some of its outputs alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onnx import ModelProto, NodeProto

from .walk import bodies, walk_graphs

__all__ = ["prune_outputs"]


def prune_outputs(proto: ModelProto, outputs: Collection[str]) -> ModelProto:
    """A model with some of its outputs, without the nodes, inputs and initializers that only the others need.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    outputs : collection of str
        The outputs that are kept.

    Returns
    -------
    onnx.ModelProto
        Initializers and inputs that no output needs remain, as they were.

    Examples
    --------
    >>> from ortpartial.graph import build, op, variable
    >>> x, t = variable("x", "float32", ["N"]), variable("t", "float32", ["N"])
    >>> pruned = prune_outputs(build([x, t], {"y": op.Exp(x), "e": op.Exp(x) - t}), ["y"]).graph
    >>> [i.name for i in pruned.input], [node.op_type for node in pruned.node]
    (['x'], ['Exp'])
    """
    pruned = ModelProto()
    pruned.CopyFrom(proto)
    graph = pruned.graph
    wanted = _list_read(graph.node, outputs)
    others = _list_read(graph.node, [o.name for o in graph.output if o.name not in outputs])
    dropped = others - wanted
    # An output that is kept may be computed from a dropped output.
    for field, names in ((graph.output, {o.name for o in graph.output} - set(outputs)), (graph.input, dropped),
                         (graph.initializer, dropped), (graph.value_info, dropped)):
        kept = [v for v in field if v.name not in names]
        del field[:]
        field.extend(kept)
    nodes = [node for node in graph.node if wanted.intersection(node.output) or not others.intersection(node.output)]
    del graph.node[:]
    graph.node.extend(nodes)
    return pruned


def _list_read(nodes: Collection[NodeProto], outputs: Collection[str]) -> set[str]:
    """The names of all tensors that outputs are computed from, the outputs included."""
    read = set(outputs)
    for node in reversed(list(nodes)):  # Nodes are sorted.
        if read.intersection(node.output):
            read.update(_inputs(node))
    return read - {""}


def _inputs(node: NodeProto) -> Iterator[str]:
    """Names that a node reads, in its bodies, too."""
    yield from node.input
    for body in bodies(node):
        for graph in walk_graphs(body):
            yield from (name for inner in graph.node for name in inner.input)
            yield from (o.name for o in graph.output)

"""Nodes that an execution provider would compute in fewer bits than their dtypes have, as a graph for the CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper, shape_inference

from ortpartial.model import bodies, walk_graphs

__all__ = ["list_dtypes", "split_host_nodes"]

#: Operators for whose sake a graph is run elsewhere.
_HEAVY = frozenset({"Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "If", "LSTM", "Loop", "MatMul",
                    "RNN", "Scan"})


def list_dtypes(graph: GraphProto) -> set[int]:
    """The dtypes of inputs, weights and constants of a graph, and the dtypes that nodes convert to.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.

    Returns
    -------
    set of int
        Of `onnx.TensorProto.DataType`.
    """
    dtypes: set[int] = set()
    for g in walk_graphs(graph):
        dtypes |= {v.type.tensor_type.elem_type for v in g.input} | {t.data_type for t in g.initializer}
        for node in g.node:
            dtypes |= {a.i if a.name in ("to", "dtype") else a.t.data_type for a in node.attribute}
    return dtypes


def split_host_nodes(model: ModelProto, dtypes: Collection[int]) -> tuple[ModelProto | None, ModelProto | None]:
    """Split a graph in two: nodes of these dtypes with all that they are computed from, and the nodes that follow.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph, which is not changed.
    dtypes : collection of int
        Of `onnx.TensorProto.DataType`.

    Returns
    -------
    tuple of onnx.ModelProto or None
        The graph to run first, whose outputs are inputs of the second. The whole graph stands alone: second where no
        node is of these dtypes, first where products or loops would be in it, or the two do not come apart.

    Examples
    --------
    >>> from ortpartial.graph import build, op, variable
    >>> x, k = variable("x", "float32", [2]), variable("k", "float64", [])
    >>> model = build([x, k], {"y": op.Relu(x) / op.Cast(0.9**k, to=1)})
    >>> first, second = split_host_nodes(model, {11})
    >>> [[node.op_type for node in m.graph.node] for m in (first, second)]
    [['Pow', 'Cast'], ['Relu', 'Div']]
    """
    if not dtypes:
        return None, model
    kinds, types = _infer_types(model)
    first, second = _part_nodes(model, types, dtypes)
    if not first:
        return None, model
    read = {n for node in second for n in _reads(node)} | {o.name for o in model.graph.output}
    border = [n for node in first for n in node.output if n in read]
    is_heavy = not second or any(node.op_type in _HEAVY for node in first)
    if is_heavy or any(types.get(n, 0) in {0, *dtypes} for n in border):
        return model, None
    returned = {o.name: f"{o.name}_first" for o in model.graph.output if o.name in border}
    first = [_rename(node, returned) for node in first]
    second = [*(helper.make_node("Identity", [new], [old], f"{new}_node") for old, new in returned.items()), *second]
    passed = [helper.make_value_info(returned.get(n, n), kinds[n]) for n in border]
    return _extract(model, first, [], passed), _extract(model, second, passed, model.graph.output)


def _rename(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node with other names of values: an output of a graph must not be an input of it."""
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(n, n) for n in node.input]
    copy.output[:] = [names.get(n, n) for n in node.output]
    return copy


def _infer_types(model: ModelProto) -> tuple[dict[str, TypeProto], dict[str, int]]:
    """The types of values by name, as far as they are known, and the element types of these and of initializers."""
    inferred = shape_inference.infer_shapes(model).graph
    kinds = {v.name: v.type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    stored = {t.name: t.data_type for t in model.graph.initializer}
    return kinds, {**{n: kind.tensor_type.elem_type for n, kind in kinds.items()}, **stored}


def _part_nodes(model: ModelProto, types: Mapping[str, int], dtypes: Collection[int]
                ) -> tuple[list[NodeProto], list[NodeProto]]:
    """The nodes of these dtypes with all that they are computed from, and the others."""
    parts: tuple[list[NodeProto], list[NodeProto]] = [], []
    needed: set[str] = set()
    for node in reversed(model.graph.node):
        inner = {v for body in bodies(node) for v in list_dtypes(body)}
        is_first = (not needed.isdisjoint(node.output) or not inner.isdisjoint(dtypes)
                    or any(types.get(n) in dtypes for n in (*_reads(node), *node.output)))
        parts[not is_first].insert(0, node)
        needed.update(_reads(node) if is_first else ())
    return parts


def _reads(node: NodeProto) -> Iterator[str]:
    """The names of the tensors that a node and the graphs inside it read."""
    yield from node.input
    for body in bodies(node):
        for graph in walk_graphs(body):
            for inner in graph.node:
                yield from inner.input


def _extract(model: ModelProto, nodes: list[NodeProto], border: list[ValueInfoProto],
             outputs: Collection[ValueInfoProto]) -> ModelProto:
    """The graph of these nodes, whose inputs are the inputs of a graph that it needs, and values at the border."""
    read = {n for node in nodes for n in _reads(node)}
    part = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, metadata_props=model.metadata_props)
    part.graph.name = model.graph.name
    part.graph.node.extend(nodes)
    part.graph.input.extend(v for v in (*model.graph.input, *border) if v.name in read)
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    part.graph.output.extend(outputs)
    return part

"""Function bodies: an operator written out in simpler operators, as the ONNX specification defines it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from ortpartial.graph import OPSET, SMALL, Node, Value, constant, op

from .folding import fold_node
from .prepare import infer_types
from .reader import Reader

__all__ = ["expand_body"]


def expand_body(node: Node) -> list[Value] | None:
    """A node's outputs computed by its function body, as an expression; None where its operator has none."""
    function = _find_function(node)
    if function is None:
        return None
    values = {n: x for n, x in zip(function.input, node.inputs, strict=False) if x is not None}
    opsets = {o.domain: max(OPSET, o.version) for o in function.opset_import}
    graph = _make_graph(node, function, values)
    reader = Reader(opsets, infer_types(graph, opsets), {}, is_function=True)
    # Attention puts zeros where all of a row is masked. Softmax gives NaN there, which no zero stops on the way back.
    is_masked = any(inner.op_type == "ReduceMax" for inner in graph.node)
    for inner in graph.node:
        if (array := _fold(inner, values, opsets)) is not None:
            values[inner.output[0]] = constant(array)
            continue
        if inner.op_type == "Softmax" and is_masked:
            x = values[inner.input[0]]
            inner.input[0] = "finite scores"
            values["finite scores"] = op.Max(x, constant(np.finfo(x.dtype).min, x.dtype))
        reader.read_node(inner, values)
    return [values[n] for n in function.output if n in values]


def _fold(inner: NodeProto, values: Mapping[str, Value], opsets: Mapping[str, int]) -> np.ndarray | None:
    """The output of a node of a body as a constant: a static shape, or whole numbers computed from whole numbers."""
    if inner.op_type == "Shape" and (x := values[inner.input[0]]).shape is not None:
        limits = {a.name: a.i for a in inner.attribute}
        sizes = x.shape[limits.get("start") : limits.get("end")]
        return np.asarray(sizes, np.int64) if all(isinstance(n, int) for n in sizes) else None
    inputs = {n: values[n].array for n in inner.input if n in values}
    return fold_node(inner, {n: a for n, a in inputs.items() if a is not None}, opsets)


def _make_graph(node: Node, function: onnx.FunctionProto, inputs: Mapping[str, Value]) -> onnx.GraphProto:
    """The body of a node as a graph with its attributes and the types of its inputs, for shape inference."""
    graph = onnx.GraphProto(name="body", node=function.node)
    for n, x in inputs.items():
        if x.array is not None and x.array.size <= SMALL:
            graph.initializer.append(numpy_helper.from_array(x.array, n))
        else:
            graph.input.append(onnx.ValueInfoProto(name=n, type=x.type))
    absent = set(function.input) - inputs.keys()
    for inner in graph.node:
        inner.name = f"{node.name}.{inner.op_type}" if node.name else ""
        inner.input[:] = ["" if i in absent else i for i in inner.input]
        attributes = [a for a in inner.attribute if not a.ref_attr_name]
        for a in inner.attribute:
            if a.ref_attr_name and (value := node.attribute(a.ref_attr_name)) is not None:
                attributes.append(helper.make_attribute(a.name, value, attr_type=a.type))
        del inner.attribute[:]
        inner.attribute.extend(attributes)
    return graph


def _find_function(node: Node) -> onnx.FunctionProto | None:
    """The function body of an operator, made for these inputs where the schema asks for them."""
    schema: Any = node.schema  # onnx 1.23.2 does not declare the types of its functions
    if schema.has_context_dependent_function:
        proto = helper.make_node(node.op_type, ["" if x is None else f"i{i}" for i, x in enumerate(node.inputs)],
                                 [f"o{i}" for i in range(len(node.outputs))], domain=node.domain)
        proto.attribute.extend(node.protos())
        types = [onnx.TypeProto().SerializeToString() if x is None else x.type.SerializeToString() for x in node.inputs]
        raw = schema.get_context_dependent_function(proto.SerializeToString(), types)
        return onnx.FunctionProto.FromString(raw) if raw else None
    return schema.function_body if schema.has_function else None

"""What does an operator compute, in others? `expand_body` writes out its body in the ONNX specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, helper, numpy_helper

from ortpartial.graph import OPSET, SMALL, Node, Value, attribute_value, constant, make_node, op, schema_of

from .prepare import bodies, fold_node, infer_types, read_constant
from .reader import Reader

__all__ = ["expand_body"]


def expand_body(node: Node) -> list[Value] | None:
    """A node's outputs computed by its body in the ONNX specification, as an expression; None where it has none."""
    function = _body(node)
    if function is None:
        return None
    given = dict(zip(function.input, node.inputs, strict=False))
    values: dict[str, Value | None] = {"": None, **given}
    versions = {o.domain: max(OPSET, o.version) for o in function.opset_import}
    graph = _typed(node, function, {n: x for n, x in given.items() if x is not None})
    types, reader = infer_types(graph, versions), Reader(versions, {}, {})
    # Attention puts zeros where all of a row is masked. Softmax gives NaN there, which no zero stops on the way back.
    masked = any(inner.op_type == "ReduceMax" for inner in graph.node)
    for inner in graph.node:
        attributes = {a.name: attribute_value(a) for a in inner.attribute if a.type != AttributeProto.GRAPH}
        if inner.op_type == "Constant":
            values[inner.output[0]] = read_constant(attributes)
            continue
        inputs = [values.get(i) for i in inner.input]
        if (found := _folded(inner, inputs, versions)) is not None:
            values[inner.output[0]] = constant(found)
            continue
        schema = schema_of(inner.op_type, inner.domain, versions.get(inner.domain, OPSET))
        if inner.op_type == "Softmax" and masked:
            inputs = [op.Max(x, constant(np.finfo(x.dtype).min, x.dtype)) for x in inputs if x is not None]
        if bodies(inner):
            known = {n: v for n, v in values.items() if v is not None}
            attributes |= reader.bodies(inner, inputs, attributes, known)
        made = make_node(schema, inputs, attributes, n_outputs=len(inner.output),
                         name=f"{node.name}.{inner.op_type}" if node.name else "")
        for name, v in zip(inner.output, made.outputs, strict=True):
            values[name] = v.stated(Value(types[name]).shape) if name in types else v
    return [y for name in function.output if (y := values.get(name)) is not None]


def _folded(inner: NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]) -> np.ndarray | None:
    """What a node of a body computes of whole numbers or of a shape that is known; None where it is not known yet."""
    if inner.op_type == "Shape" and (x := inputs[0]) is not None and x.shape is not None:
        known = x.shape[slice(*(next((a.i for a in inner.attribute if a.name == k), None) for k in ("start", "end")))]
        return np.asarray(known, np.int64) if all(isinstance(n, int) for n in known) else None
    arrays = {n: v.array for n, v in zip(inner.input, inputs, strict=True) if v is not None and v.array is not None}
    return fold_node(inner, arrays, opsets)


def _typed(node: Node, function: onnx.FunctionProto, given: Mapping[str, Value]) -> onnx.GraphProto:
    """The body of a node as a graph whose inputs have the types of what the node is given, for shape inference."""
    graph = onnx.GraphProto(name="body", node=function.node)
    for n, x in given.items():
        if x.array is not None and x.array.size <= SMALL:
            graph.initializer.append(numpy_helper.from_array(x.array, n))
        else:
            graph.input.append(onnx.ValueInfoProto(name=n, type=x.type))
    for inner in graph.node:
        written = [a for a in inner.attribute if not a.ref_attr_name]
        for a in inner.attribute:
            if a.ref_attr_name and (value := node.attribute(a.ref_attr_name)) is not None:
                written.append(helper.make_attribute(a.name, value, attr_type=a.type))
        del inner.attribute[:]
        inner.attribute.extend(written)
    return graph


def _body(node: Node) -> onnx.FunctionProto | None:
    """The function body of an operator, written for these inputs where the schema asks for them."""
    schema: Any = node.schema  # onnx 1.23.2 does not declare the types of what is asked of it here
    if schema.has_context_dependent_function:
        proto = helper.make_node(node.op_type, ["" if x is None else f"i{i}" for i, x in enumerate(node.inputs)],
                                 [f"o{i}" for i in range(len(node.outputs))], domain=node.domain)
        proto.attribute.extend(node.protos())
        types = [onnx.TypeProto().SerializeToString() if x is None else x.type.SerializeToString() for x in node.inputs]
        raw = schema.get_context_dependent_function(proto.SerializeToString(), types)
        return onnx.FunctionProto.FromString(raw) if raw else None
    return schema.function_body if schema.has_function else None

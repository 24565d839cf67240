"""How is a graph of a file read? A `Reader` turns each of its nodes into values, in place of the names."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, numpy_helper

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import (
    CONTROL,
    OPSET,
    Subgraph,
    Value,
    attribute_value,
    body_inputs,
    check_required,
    constant,
    defaults,
    is_gradient_stop,
    make_node,
    schema_of,
    widen_body,
)

from .crash_guards import check_node, guard_inputs
from .prepare import bodies, read_constant
from .sequences import read_element, sequence_elements
from .straight_through import pass_straight_through
from .validation import check_size

__all__ = ["EXPANSIONS", "Reader"]

#: Operators that are read as what they compute: from inputs, attributes and which outputs are wanted to the outputs.
EXPANSIONS: dict[tuple[str, str], Callable[[Sequence[Any], Mapping[str, Any], Sequence[bool]], list[Value | None]]] = {}


@dataclass(frozen=True)
class Reader:
    """What the graphs of one model have in common."""

    opsets: Mapping[str, int]
    types: Mapping[str, Any]
    initializers: Mapping[str, Value]
    straight_through: bool = False
    #: Sequences whose tensors are known.
    sequences: dict[Value, list[Value]] = field(default_factory=dict)

    def read(self, graph: onnx.GraphProto, values: MutableMapping[str, Value]) -> list[Value]:
        """The outputs of a graph, in which values are known by their names; others are added to them."""
        for t in graph.initializer:
            if t.name not in values:
                known = self.initializers.get(t.name)
                values[t.name] = constant(numpy_helper.to_array(t), hint=t.name) if known is None else known
        for node in graph.node:
            _read_node(node, values, self)
        if missing := [o.name for o in graph.output if o.name not in values]:
            raise ModelError(f"No node computes the output {missing[0]!r}.")
        return [values[o.name] for o in graph.output]

    def bodies(self, node: NodeProto, inputs: list[Value | None], attributes: dict[str, Any],
               values: MutableMapping[str, Value]) -> dict[str, Subgraph]:
        """The graphs among the attributes of a node."""
        found = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        return {name: self.body(node.op_type, graph, inputs, attributes, values) for name, graph in found.items()}

    def body(self, op_type: str, graph: onnx.GraphProto, inputs: Sequence[Value | None], attributes: dict[str, Any],
             values: MutableMapping[str, Value]) -> Subgraph:
        """A graph inside a node that has these inputs, in which values are known by their names."""
        names = [i.name for i in graph.input]

        def outputs(*given: Value) -> list[Value]:
            found = self.read(graph, ChainMap(dict(zip(names, given, strict=True)), values))
            return [_of_rank(v, o.type) for v, o in zip(found, graph.output, strict=True)]

        def loop(kinds: Sequence[Value]) -> Subgraph:
            return Subgraph.of(outputs, *body_inputs("Loop", [None, None, *kinds], {}, names))

        if op_type == "Loop":
            return widen_body(loop, [x for x in inputs[2:] if x is not None])
        return Subgraph.of(outputs, *(body_inputs(op_type, inputs, attributes, names) if op_type == "Scan" else ()))


def _read_node(node: NodeProto, values: MutableMapping[str, Value], reader: Reader) -> None:
    """Turn one node into values, in place of its outputs' names."""
    where = f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0]!r})"
    if bodies(node) and node.op_type not in CONTROL:
        raise ModelError(f"{where} has a subgraph; of the operators that have one, {', '.join(CONTROL)} are read.")
    opsets, types = reader.opsets, reader.types
    attributes = {a.name: attribute_value(a) for a in node.attribute if a.type != AttributeProto.GRAPH}
    if unknown := [i for i in node.input if i and i not in values]:
        raise ModelError(f"{where} reads {unknown[0]!r}, which nothing computes before it.")
    try:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            content = read_constant(attributes)
            values[node.output[0]] = Value(content.type, array=content.array, hint=node.output[0])
            return
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = schema_of(node.op_type, domain, opsets.get(node.domain, OPSET))
        if is_gradient_stop(node):
            schema = schema_of("StopGradient", "ortpartial", 1)
        inputs = [values[i] if i else None for i in node.input]
        if (schema.domain, schema.name) in EXPANSIONS:
            found = _expanded(node, schema, inputs, attributes)
            values.update((n, v) for n, v in zip(node.output, found, strict=False) if n and v is not None)
            return
        check_required(schema, inputs, schema.name)
        if not schema.domain:
            check_node(schema.name, inputs, attributes, where)
            inputs = guard_inputs(schema.name, inputs, attributes, node.name or f"{node.op_type} of {node.output[0]!r}")
        if node.op_type == "If" and (condition := inputs[0]) is not None and condition.array is not None:
            # Exporters write conditions that they could have decided.
            name = "then_branch" if condition.array.item() else "else_branch"
            (taken,) = [a.g for a in node.attribute if a.name == name]
            values.update(zip(node.output, reader.read(taken, ChainMap({}, values)), strict=True))
            return
        if inputs and inputs[0] in reader.sequences:
            known_parts = reader.sequences[inputs[0]]
            if (part := read_element(schema.name, known_parts, inputs, attributes)) is not None:
                values[node.output[0]] = part
                return
        attributes |= reader.bodies(node, inputs, attributes, values)
        owned = max(len(node.output), _owned(schema, attributes))
        made = make_node(schema, inputs, attributes, name=node.name, n_outputs=owned, hints=node.output)
        if not schema.domain and (parts := sequence_elements(schema.name, inputs, attributes)) is not None:
            reader.sequences[made.outputs[0]] = parts
    except GraphError as e:
        raise ModelError(f"{where} cannot be read: {e}") from None
    for name, v in zip(node.output, made.outputs, strict=False):
        if name:
            if reader.straight_through and schema.name == "DequantizeLinear" and (q := inputs[0]) is not None:
                v = pass_straight_through(q.node, v) if q.node is not None and q.node.op_type == "QuantizeLinear" else v
            known = types.get(name)
            if known is not None and known.tensor_type.elem_type == v.type.tensor_type.elem_type:
                shape = Value(known).shape
                v = v.stated(_reshaped(inputs[0], shape) if schema.name == "Reshape" else shape)
            check_size(v, where)
            values[name] = v


def _of_rank(v: Value, declared: onnx.TypeProto) -> Value:
    """A value with as many axes as it is declared with, where they cannot be inferred: onnxruntime's Scan asks."""
    kind = declared.tensor_type
    if v.shape is not None or kind.elem_type != v.type.tensor_type.elem_type or not kind.HasField("shape"):
        return v
    return v.stated([None] * len(kind.shape.dim))


def _reshaped(x: Value | None, shape: tuple[int | str | None, ...] | None) -> tuple[int | str | None, ...] | None:
    """The shape of a Reshape, whose one new size follows from the number of elements where the names cancel out."""
    if x is None or x.shape is None or shape is None or None in (*x.shape, *shape):
        return shape
    new = [i for i, n in enumerate(shape) if isinstance(n, str) and n not in x.shape]
    others = [n for i, n in enumerate(shape) if i not in new]
    if len(new) != 1 or Counter(n for n in x.shape if isinstance(n, str)) != Counter(
        n for n in others if isinstance(n, str)
    ):
        return shape
    before, after = (int(np.prod([n for n in sizes if isinstance(n, int)])) for sizes in (x.shape, others))
    return (*shape[: new[0]], before // after, *shape[new[0] + 1 :]) if after and before % after == 0 else shape


def _expanded(node: NodeProto, schema: onnx.defs.OpSchema, inputs: Sequence[Value | None],
              attributes: Mapping[str, Any]) -> list[Value | None]:
    """What an operator of `EXPANSIONS` computes, once it has the inputs and attributes that it needs."""
    given = {**defaults(schema), **attributes}
    if wrong := sorted(set(given) ^ {n for n, a in schema.attributes.items() if a.required or n in given}):
        raise GraphError(f"{schema.name} {'has no' if wrong[0] in given else 'needs the'} attribute {wrong[0]!r}.")
    if len(inputs) < schema.min_input:
        raise GraphError(f"{schema.name} takes {schema.min_input} or more inputs, {len(inputs)} given.")
    found = EXPANSIONS[schema.domain, schema.name](inputs, given, [bool(o) for o in node.output])
    if len(node.output) > len(found):
        raise GraphError(f"{schema.name} has {len(found)} outputs and not {len(node.output)}.")
    return found


def _owned(schema: onnx.defs.OpSchema, attributes: Mapping[str, Any]) -> int:
    """How many outputs every node of an operator has, reached or not; a variadic operator says it itself."""
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if schema.name == "BatchNormalization" and not attributes.get("training_mode"):
        return 1  # the others, the running statistics, are outputs of training alone
    return 0 if any(o.option == variadic for o in schema.outputs) else len(schema.outputs)

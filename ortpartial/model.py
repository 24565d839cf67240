"""What is in an ONNX file? `load` turns a ModelProto into values, its weights into values that can be inputs."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .exceptions import GraphError, ModelError
from .graph import OPSET, Node, Value, _newest, attribute_value, constant, make_node, variable
from .passes import constant_of, prepared, shapes

__all__ = ["Model", "expand", "load", "read", "replace_weights"]


@dataclass(frozen=True)
class Model:
    """An ONNX model as values.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model as it was given; never written to.
    inputs, outputs : dict of str to Value
        What the graph reads and gives.
    initializers : dict of str to Value
        Its initializers: variables where `load` was told so, else constants.
    arrays : dict of str to numpy.ndarray
        The content of the initializers.
    values : dict of str to Value
        Every tensor of the graph by its name.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N", 3])
    >>> list(load(build([x], {"y": op.Exp(x)})).outputs)
    ['y']
    """

    proto: ModelProto
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    initializers: Mapping[str, Value]
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Value]


def read(source: ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """A ModelProto from a ModelProto (returned as it is), its bytes, or a path (external data included).

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The model.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The file does not exist, or the bytes are no ONNX model.

    Examples
    --------
    >>> read(b"not a model")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: The 11 bytes given are no ONNX model, or one that was cut short.
    """
    if isinstance(source, ModelProto):
        model, what = source, "The ModelProto given is"
    elif isinstance(source, (bytes, bytearray)):
        model, what = ModelProto(), f"The {len(source)} bytes given are"
        try:
            model.ParseFromString(bytes(source))
        except DecodeError:
            model = ModelProto()
    elif isinstance(source, (str, os.PathLike)):
        path, what = Path(source), f"{str(source)!r} is"
        if not path.is_file():
            raise ModelError(f"There is no file {str(source)!r}; give a path to an ONNX model, bytes or a ModelProto.")
        try:
            model = onnx.load(path)
        except DecodeError:
            model = ModelProto()
        except (FileNotFoundError, onnx.checker.ValidationError) as e:
            raise ModelError(f"The external data of {str(source)!r} cannot be read: {e}") from None
    else:
        raise ModelError(f"A model is a ModelProto, bytes or a path, not {type(source).__name__}.")
    if not model.graph.output:
        raise ModelError(f"{what} no ONNX model, or one that was cut short.")
    if apart := [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]:
        raise ModelError(f"The data of {apart[0]!r} stand in another file (external data); give the path of the model.")
    return model


def load(source: ModelProto | bytes | str | os.PathLike[str], *,
         batch: int | Mapping[str, Sequence[int]] | None = None, variables: Collection[str] = ()) -> Model:  # fmt: skip
    """An ONNX model as values: local functions inlined, older opsets upgraded, Constant nodes turned into constants.

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The model; it is not written to.
    batch : int or dict of str to sequence of int, optional
        Number of rows of every input whose first size is not static, or all the sizes of inputs by their names, so that
        what is built is made for them alone.
    variables : collection of str
        Initializers that will change: nothing that is built counts on their content.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        The model cannot be read, upgraded or understood; the message names the node.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import constant, op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> list(load(build([x], {"y": op.MatMul(x, w)})).initializers)
    ['w']
    """
    proto = read(source)
    graph, opsets = prepared(proto, batch)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    initializers = {
        n: variable(n, a.dtype, a.shape) if n in variables else constant(a, hint=n) for n, a in arrays.items()
    }
    added = {t.name: constant(numpy_helper.to_array(t), hint=t.name) for t in graph.initializer}
    if graph.sparse_initializer:
        raise ModelError("Sparse initializers are not supported; make them dense.")
    inputs = {}
    for i in graph.input:
        if i.name not in initializers:
            if not i.type.HasField("tensor_type"):
                raise ModelError(f"Input {i.name!r} is no tensor.")
            inputs[i.name] = Value(i.type, hint=i.name)
    values: dict[str, Value] = {**added, **inputs, **initializers}
    types = shapes(graph, opsets)
    for node in graph.node:
        _read_node(node, values, opsets, types)
    if missing := [o.name for o in graph.output if o.name not in values]:
        raise ModelError(f"No node computes the output {missing[0]!r}.")
    return Model(proto, inputs, {o.name: values[o.name] for o in graph.output}, initializers, arrays, values)


def _read_node(node: NodeProto, values: dict[str, Value], opsets: Mapping[str, int], types: Mapping[str, Any]) -> None:
    """Turn one node into values, in place of its outputs' names."""
    where = f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0]!r})"
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
        raise ModelError(f"{where} has a subgraph; control flow is not supported yet.")
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    if unknown := [i for i in node.input if i and i not in values]:
        raise ModelError(f"{where} reads {unknown[0]!r}, which nothing computes before it.")
    try:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            content = constant_of(attributes)
            values[node.output[0]] = Value(content.type, array=content.array, hint=node.output[0])
            return
        schema = _newest(node.op_type, "" if node.domain == "ai.onnx" else node.domain, opsets.get(node.domain, OPSET))
        inputs = [values[i] if i else None for i in node.input]
        owned = max(len(node.output), _owned(schema, attributes))
        made = make_node(schema, inputs, attributes, name=node.name, n_outputs=owned, hints=node.output)
    except GraphError as e:
        raise ModelError(f"{where} cannot be read: {e}") from None
    for name, v in zip(node.output, made.outputs, strict=False):
        if name:
            known = types.get(name)
            if known is not None and known.tensor_type.elem_type == v.type.tensor_type.elem_type:
                v = v.stated(Value(known).shape)
            values[name] = v


def _owned(schema: onnx.defs.OpSchema, attributes: Mapping[str, Any]) -> int:
    """How many outputs every node of an operator has, reached or not; a variadic operator says it itself."""
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if schema.name == "BatchNormalization" and not attributes.get("training_mode"):
        return 1  # the others, the running statistics, are outputs of training alone
    return 0 if any(o.option == variadic for o in schema.outputs) else len(schema.outputs)


def expand(node: Node) -> list[Value] | None:
    """A node's outputs computed by its body in the ONNX specification, as an expression; None where it has none."""
    function = _body(node)
    if function is None:
        return None
    values: dict[str, Value | None] = {"": None}
    values.update(zip(function.input, node.inputs, strict=False))
    versions = {o.domain: o.version for o in function.opset_import}
    for inner in function.node:
        attributes = {}
        for a in inner.attribute:
            value = node.attribute(a.ref_attr_name) if a.ref_attr_name else attribute_value(a)
            if value is not None:
                attributes[a.name] = value
        if inner.op_type == "Constant":
            values[inner.output[0]] = constant_of(attributes)
            continue
        schema = _newest(inner.op_type, inner.domain, max(OPSET, versions.get(inner.domain, 1)))
        made = make_node(schema, [values.get(i) for i in inner.input], attributes, n_outputs=len(inner.output),
                         name=f"{node.name}.{inner.op_type}" if node.name else "")  # fmt: skip
        values.update(zip(inner.output, made.outputs, strict=True))
    found = [values.get(name) for name in function.output]
    return [y for y in found if y is not None]


def _body(node: Node) -> onnx.FunctionProto | None:
    """The function body of an operator, written for these inputs where the schema asks for them."""
    schema: Any = node.schema  # onnx 1.23.2 does not declare the types of what is asked of it here
    if schema.has_context_dependent_function:
        proto = helper.make_node(node.op_type, ["" if x is None else f"i{i}" for i, x in enumerate(node.inputs)],
                                 [f"o{i}" for i in range(len(node.outputs))], domain=node.domain)  # fmt: skip
        proto.attribute.extend(node.protos())
        types = [onnx.TypeProto().SerializeToString() if x is None else x.type.SerializeToString() for x in node.inputs]
        raw = schema.get_context_dependent_function(proto.SerializeToString(), types)
        return onnx.FunctionProto.FromString(raw) if raw else None
    return schema.function_body if schema.has_function else None


def replace_weights(proto: ModelProto, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy of a model in which the initializers named have new content and nothing else is changed.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    weights : dict of str to numpy.ndarray
        New content, of the same shape and dtype.

    Returns
    -------
    onnx.ModelProto
    """
    copy = ModelProto()
    copy.CopyFrom(proto)
    for t in copy.graph.initializer:
        if t.name in weights:
            new = numpy_helper.from_array(np.ascontiguousarray(weights[t.name]).reshape(t.dims), t.name)
            if t.HasField("doc_string"):
                new.doc_string = t.doc_string
            new.metadata_props.extend(t.metadata_props)
            t.CopyFrom(new)
    return copy

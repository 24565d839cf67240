"""Tensors as a model stores them, of any initializer or attribute: a check of content against shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, helper

from ortpartial.exceptions import ModelError

__all__ = ["check_names", "check_tensors", "list_tensors", "measure_bytes"]

#: Bits of an element in memory of the types that are packed.
_PACKED = {"FLOAT4E2M1": 4, "INT2": 2, "INT4": 4, "UINT2": 2, "UINT4": 4}

#: Axes that numpy 1.26 takes, and bytes that an index can count.
_AXES, _BYTES = 32, 2**62


def check_tensors(proto: ModelProto) -> None:
    """Refuse tensors whose content contradicts their shapes and element types, which no reader expects.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, not validated yet; tensors in other files are left out.

    Raises
    ------
    ModelError
        The message names the tensor.

    Examples
    --------
    >>> from onnx import helper
    >>> graph = helper.make_graph([], "g", [], [])
    >>> graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=bytes(12))  # doctest: +ELLIPSIS
    dims: 4...
    >>> check_tensors(helper.make_model(graph))
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: The tensor 'w' is FLOAT of shape (4,), which takes 16 bytes, and has 12.
    """
    for what, t in list_tensors(proto):
        if t.data_location != TensorProto.EXTERNAL:
            try:
                _check(t)
            except ValueError as e:
                raise ModelError(f"The tensor {what} {e}") from None


def check_names(proto: ModelProto) -> None:
    """Refuse names not in UTF-8, which Python reads as bytes, opsets beyond 32 bits, and operators without outputs.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, not validated yet.

    Raises
    ------
    ModelError
        The message has the name.
    """
    for name in _list_names(proto):
        if not isinstance(name, str):
            raise ModelError(f"The model has the name {name!r:.200}, which is no text in UTF-8.")
    for o in (*proto.opset_import, *(o for function in proto.functions for o in function.opset_import)):
        if not -(2**31) <= o.version < 2**31:
            raise ModelError(f"The model imports opset {o.version} of the domain {o.domain!r}, which is none.")


def _list_names(proto: ModelProto) -> Iterator[Message]:
    """The names in a model."""
    for o in proto.opset_import:
        yield o.domain
    for p in proto.metadata_props:
        yield from (p.key, p.value)
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
        yield from (o.domain for o in function.opset_import)
        yield from _list_node_names(function)
    infos = [(i.initialization, i.algorithm) for i in proto.training_info]
    for graph in (proto.graph, *(g for pair in infos for g in pair)):
        yield from _list_graph_names(graph)
    for info in proto.training_info:
        for b in (*info.update_binding, *info.initialization_binding):
            yield from (b.key, b.value)


def _list_graph_names(graph: GraphProto) -> Iterator[Message]:
    yield graph.name
    yield from (t.name for t in graph.initializer)
    yield from (t.values.name for t in graph.sparse_initializer)
    for v in (*graph.input, *graph.output, *graph.value_info):
        yield v.name
        yield from (d.dim_param for d in v.type.tensor_type.shape.dim)
        for p in v.metadata_props:
            yield from (p.key, p.value)
    yield from _list_node_names(graph)


def _list_node_names(container: GraphProto | FunctionProto) -> Iterator[Message]:
    for node in container.node:
        if not node.output and node.domain in ("", "ai.onnx"):
            raise ModelError(f"Node {node.name!r} ({node.op_type}) has no outputs.")
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for p in node.metadata_props:
            yield from (p.key, p.value)
        for a in node.attribute:
            yield from (a.name, a.ref_attr_name)
            for graph in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
                yield from _list_graph_names(graph)


def _check(t: TensorProto) -> None:
    size, kind = measure_bytes(t), TensorProto.DataType.Name(t.data_type)
    shape = tuple(t.dims)
    if t.HasField("segment"):
        raise ValueError("is stored in segments, which ONNX has no reader for.")
    if t.HasField("raw_data") and t.data_type != TensorProto.STRING:
        if len(t.raw_data) != size:
            raise ValueError(f"is {kind} of shape {shape}, which takes {size} bytes, and has {len(t.raw_data)}.")
        return
    numbers = size if kind in _PACKED else math.prod(shape) * (2 if kind.startswith("COMPLEX") else 1)
    stored = len(getattr(t, helper.tensor_dtype_to_field(t.data_type)))
    if stored != numbers:
        raise ValueError(f"is {kind} of shape {shape}, which takes {numbers} numbers, and has {stored}.")


def measure_bytes(t: TensorProto) -> int:
    """Bytes of a tensor in a file.

    Parameters
    ----------
    t : onnx.TensorProto
        The tensor, not validated yet; for texts, the elements count.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        Its element type is none, or its shape.
    """
    if t.data_type == TensorProto.UNDEFINED or t.data_type not in TensorProto.DataType.values():
        raise ValueError(f"has the element type {t.data_type}, which is none of ONNX.")
    if len(t.dims) > _AXES or any(d < 0 for d in t.dims) or math.prod(max(d, 1) for d in t.dims) * 16 > _BYTES:
        raise ValueError(f"has the shape {tuple(t.dims)[: _AXES + 1]}, which no tensor can have.")
    bits = _PACKED.get(TensorProto.DataType.Name(t.data_type))
    if bits is None:
        bits = 8 if t.data_type == TensorProto.STRING else 8 * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
    return -(-math.prod(t.dims) * bits // 8)


def list_tensors(proto: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """All tensors of a model: dense and sparse initializers, attributes, and the tensors of its training.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, which need not be valid.

    Yields
    ------
    what : str
        The name of the tensor in messages.
    tensor : onnx.TensorProto
    """
    yield from _list_inside(proto.graph)
    for function in proto.functions:
        for what, t in _list_inside(function):
            yield f"{what} of the function {function.name!r}", t
    for i, info in enumerate(proto.training_info):
        for part, graph in (("initialization", info.initialization), ("algorithm", info.algorithm)):
            for what, t in _list_inside(graph):
                yield f"{what} of training_info[{i}].{part}", t


def _list_inside(container: GraphProto | FunctionProto) -> Iterator[tuple[str, TensorProto]]:
    """The tensors of a graph or a function, also of the graphs inside it."""
    if isinstance(container, GraphProto):
        for t in container.initializer:
            yield repr(t.name), t
        for s in container.sparse_initializer:
            yield from _list_parts(s, repr(s.values.name))
    else:
        for a in container.attribute_proto:
            yield from _list_attribute(a, f"the attribute {a.name!r}")
    for node in container.node:
        for a in node.attribute:
            yield from _list_attribute(a, f"the attribute {a.name!r} of {node.name or ''.join(node.output[:1])!r}")


def _list_attribute(a: AttributeProto, what: str) -> Iterator[tuple[str, TensorProto]]:
    """The tensors of an attribute, in whatever field they are; a reference to an attribute of a function has none."""
    if a.HasField("t") or (a.type == AttributeProto.TENSOR and not a.ref_attr_name):
        yield what, a.t
    for t in a.tensors:
        yield what, t
    for s in (*((a.sparse_tensor,) if a.HasField("sparse_tensor") else ()), *a.sparse_tensors):
        yield from _list_parts(s, what)
    for graph in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
        yield from _list_inside(graph)


def _list_parts(s: Any, what: str) -> Iterator[tuple[str, TensorProto]]:
    """The two tensors of a sparse tensor."""
    yield what, s.values
    yield f"{what} (indices)", s.indices

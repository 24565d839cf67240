"""Opaque operators: unknown to ONNX, held by a graph as nodes, and typed by a runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import AttributeProto, NodeProto, TypeProto, helper

from ortpartial.annotations import Attributes
from ortpartial.exceptions import GraphError, UnknownOperatorError

from .opaque_schema import OpaqueSchema
from .schemas import attribute_value
from .values import Node

__all__ = ["OpaqueSchema", "describe_opaque", "infer_opaque", "register_type_finder"]

#: Find the types of the outputs of a node that is not finished; rooms above fill it by `register_type_finder`.
_FINDERS: list[Callable[[Node], Sequence[TypeProto]]] = []


def describe_opaque(node: NodeProto, version: int,
                    declared: Sequence[TypeProto | None]) -> tuple[OpaqueSchema, Attributes]:
    """A schema for the operator of a node, and the attributes of the node as Python values.

    Parameters
    ----------
    node : onnx.NodeProto
        A node of an operator that ONNX does not know.
    version : int
        The version of its domain.
    declared : sequence of onnx.TypeProto or None
        The types of its outputs that the file declares. Of a shape the rank alone is taken: exporters declare the sizes
        of the batch that they traced.

    Returns
    -------
    tuple of OpaqueSchema and dict of str to object

    Examples
    --------
    >>> node = helper.make_node("Scale", ["x"], ["y"], domain="my.domain", by=2.0)
    >>> schema, attributes = describe_opaque(node, 1, [None])
    >>> schema.name, attributes
    ('my.domain.Scale', {'by': 2.0})
    """
    schema = OpaqueSchema(node.domain, node.op_type, version, len(node.input), tuple(map(bool, node.output)),
                          tuple((a.name, a.type) for a in node.attribute), tuple(map(_without_sizes, declared)))
    return schema, {a.name: _attribute_value(a) for a in node.attribute}


def _attribute_value(a: AttributeProto) -> Any:
    """The value of an attribute; strings that are no text stay bytes."""
    try:
        for s in (a.s, *a.strings):
            s.decode()
    except UnicodeDecodeError:
        return helper.get_attribute_value(a)
    return attribute_value(a)


def _without_sizes(kind: TypeProto | None) -> bytes:
    """A type with unknown sizes."""
    if kind is None:
        return b""
    bare = TypeProto()
    bare.CopyFrom(kind)
    for d in bare.tensor_type.shape.dim if bare.HasField("tensor_type") else ():
        d.Clear()
    return bare.SerializeToString(deterministic=True)


def register_type_finder(finder: Callable[[Node], Sequence[TypeProto]]) -> None:
    """Let a runtime find the types of operators that ONNX does not know.

    Parameters
    ----------
    finder : callable
        From a node, which has no outputs yet, to their types, without a shape where the rank is not known. A GraphError
        says why it finds none.
    """
    _FINDERS.append(finder)


def infer_opaque(node: Node) -> list[TypeProto]:
    """The types of the outputs of an opaque node: found by the runtime, else declared by the file.

    Parameters
    ----------
    node : Node
        A node of an `OpaqueSchema`.

    Returns
    -------
    list of onnx.TypeProto

    Raises
    ------
    UnknownOperatorError
        Neither tells the type of an output.
    """
    schema: Any = node.schema
    types, reason = [TypeProto.FromString(b) for b in schema.declared], ""
    try:
        for finder in _FINDERS:
            types = [_complete(a, b) for a, b in zip(finder(node), types, strict=True)]
    except GraphError as e:
        reason = f" ({e})"
    if any(is_named and kind.WhichOneof("value") is None for is_named, kind in zip(schema.named, types, strict=True)):
        raise UnknownOperatorError(
            f"Neither ONNX nor the installed onnxruntime has an operator {schema.name} for these inputs{reason}, and "
            f"the model declares no types of its outputs. If a library of custom operators has it, give its path by "
            f"load(model, custom_ops_library=path). If other operators can compute it, say how by ortpartial.model."
            f"register_expansion({schema.operator!r}, {schema.domain!r}, formula).")
    return types


def _complete(kind: TypeProto, declared: TypeProto) -> TypeProto:
    """The type that a runtime has found, with the declared rank where it knows none."""
    if kind.WhichOneof("value") is None:
        return declared
    tensor, other = kind.tensor_type, declared.tensor_type
    is_ranked = not kind.HasField("tensor_type") or tensor.HasField("shape")
    return kind if is_ranked or tensor.elem_type != other.elem_type else declared

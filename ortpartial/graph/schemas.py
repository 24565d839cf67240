"""Operator schemas: the versions, inputs and attributes of operators in the ONNX specification."""

from __future__ import annotations

import atexit
import difflib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper
from onnx.shape_inference import InferenceContext

from ortpartial.annotations import Attributes
from ortpartial.exceptions import GraphError, UnknownOperatorError

from .opaque_schema import OpaqueSchema

__all__ = ["OPSET", "accepted_types", "attribute_value", "check_required", "defaults", "list_operators", "np_dtype",
           "onnx_type", "parameter", "register_schema", "schema_of"]

#: Rules are written against this opset; a built graph declares it at least.
OPSET = 21


@cache
def schema_of(op_type: str, domain: str, version: int) -> defs.OpSchema:
    """The schema of an operator at an opset; an operator younger than the opset has the schema of its first version."""
    try:
        if defs.has(op_type, version, domain):
            return defs.get_schema(op_type, version, domain)
        return defs.get_schema(op_type, domain)
    except defs.SchemaError:
        error = UnknownOperatorError(_unknown(op_type, domain, version))
        error.name = op_type  # Python would add a guess of its own to an AttributeError without a name
        raise error from None


def register_schema(schema: defs.OpSchema, infer: Callable[[InferenceContext], None]) -> None:
    """Register the schema of an operator and its type inference, a function of the context of onnx's.

    Before 1.23, onnx frees the function after Python has ended and crashes, so that the schema leaves before.
    """
    schema.set_type_and_shape_inference_function(infer)
    defs.register_schema(schema)
    atexit.register(_deregister, schema.name, schema.since_version, schema.domain)


def _deregister(op_type: str, version: int, domain: str) -> None:
    if defs.has(op_type, version, domain):  # a user may have done so
        defs.deregister_schema(op_type, version, domain)


def list_operators(domain: str) -> list[str]:
    """The names of the operators of a domain in their latest versions, in alphabetical order."""
    return sorted(s.name for s in defs.get_all_schemas() if s.domain == domain and not s.deprecated)


def _unknown(op_type: str, domain: str, version: int) -> str:
    """Advice about an operator without a schema."""
    names = {n.lower(): n for n in list_operators(domain)}
    close = difflib.get_close_matches(op_type.lower(), names, n=1)
    guess = f" Did you mean {names[close[0]]}?" if close else ""
    if not domain:
        return f"ONNX has no operator {op_type} at opset {version}.{guess}"
    return (f"ONNX has no operator {domain}.{op_type} at opset {version}.{guess} If other operators can compute it, "
            f"say how by ortpartial.model.register_expansion({op_type!r}, {domain!r}, formula); else declare it by "
            f"onnx.defs.register_schema, and its gradient by ortpartial.vjp({op_type!r}, {domain!r}).")


_default_cache: dict[tuple[str, str, int], dict[str, Any]] = {}


def defaults(schema: defs.OpSchema | OpaqueSchema) -> Attributes:
    """Default values of an operator's attributes, as Python values."""
    key = schema.name, schema.domain, schema.since_version
    if key not in _default_cache:
        _default_cache[key] = {
            name: attribute_value(a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.type != AttributeProto.UNDEFINED
        }
    return _default_cache[key]


def attribute_value(proto: AttributeProto) -> Any:
    """The value of an attribute in Python: int, float, str, tuples of them, or an array for a tensor."""
    value = helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if proto.type == AttributeProto.STRINGS:
        return tuple(v.decode("utf-8", "replace") for v in value)
    if proto.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return tuple(value)
    return value


def parameter(schema: defs.OpSchema | OpaqueSchema, i: int) -> defs.OpSchema.FormalParameter:
    """The formal parameter of the i-th input (the last may be variadic)."""
    inputs = _inputs(schema)
    return inputs[min(i, len(inputs) - 1)]


@cache
def _inputs(schema: defs.OpSchema | OpaqueSchema) -> tuple[defs.OpSchema.FormalParameter, ...]:
    """The formal parameters of an operator, which onnx makes anew at each call."""
    return tuple(schema.inputs)


@cache
def accepted_types(schema: defs.OpSchema | OpaqueSchema, i: int) -> frozenset[str]:
    """The types of the i-th input that the specification allows, such as `tensor(int64)`.

    The types are read from its type variable: `FormalParameter.types` raises a TypeError in onnx 1.20.
    """
    type_str = parameter(schema, i).type_str
    for constraint in schema.type_constraints:
        if constraint.type_param_str == type_str:
            return frozenset(constraint.allowed_type_strs)
    return frozenset({type_str} if "(" in type_str else ())


@cache
def np_dtype(type_str: str) -> np.dtype:
    """`tensor(int64)` as a numpy dtype."""
    name = type_str.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


@cache
def onnx_type(dtype: np.dtype) -> str:
    """A numpy dtype as the schema spells it, `tensor(float)`."""
    name = np.dtype(dtype).name
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(name, name) })"


def check_required(schema: defs.OpSchema | OpaqueSchema, arguments: Sequence[object], where: str) -> None:
    """Refuse too few or too many inputs, and the lack of a required input."""
    if not schema.min_input <= len(arguments) <= schema.max_input:
        raise GraphError(f"{where} takes {schema.min_input} to {schema.max_input} inputs, {len(arguments)} given.")
    optional = defs.OpSchema.FormalParameterOption.Optional
    for i, a in enumerate(arguments):
        if a is None and parameter(schema, i).option != optional:
            raise GraphError(f"{where} requires its input {parameter(schema, i).name!r}.")

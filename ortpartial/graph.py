"""What is an expression? A `Value`, made by a `Node` that applies an operator to other values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper

from .exceptions import GraphError

__all__ = ["OPSET", "Node", "Operators", "Value", "constant", "op", "variable"]

#: Rules are written against this opset; a built graph declares at least this one.
OPSET = 21

#: Operators that draw random numbers: two equal calls are two draws, never one node.
RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                    "RandomUniformLike"})  # fmt: skip

#: Constants above this many elements are data, never sizes or axes: shape inference does without them.
SMALL = 1024


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that does not exist yet: its type, and the node, if any, that will compute it.

    Values are immutable and typed when they are made. They carry Python's arithmetic, so ``a * b + 1`` is the
    expression ``Add(Mul(a, b), 1)``. A value without a node is an input (`variable`) or, with an array, a `constant`.

    Parameters
    ----------
    type : onnx.TypeProto
        Element type and, as far as it is known, shape.
    node : Node, optional
        The node that computes the value.
    index : int
        Which of the node's outputs it is.
    array : numpy.ndarray, optional
        The content of a constant.
    hint : str
        The name the value bore in the model it was loaded from; used again where it is unique.

    Examples
    --------
    >>> x = variable("x", "float32", ["N", 3])
    >>> (2 * x).shape
    ('N', 3)
    """

    type: TypeProto
    node: Node | None = None
    index: int = 0
    array: np.ndarray | None = None
    hint: str = ""

    @cached_property
    def dtype(self) -> np.dtype:
        """Element type as numpy spells it."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.type.tensor_type.elem_type))

    @cached_property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """Sizes: an int where static, a name where symbolic, None where unknown; None as a whole without a rank."""
        tensor = self.type.tensor_type
        if not tensor.HasField("shape"):
            return None
        return tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
        )  # fmt: skip

    @property
    def rank(self) -> int:
        """Number of axes; an error where the rank is not known."""
        if self.shape is None:
            raise GraphError(f"The rank of {self!r} is not known; declare the shape of the model's inputs.")
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the value is a tensor of real floating-point numbers, so that it can have a gradient."""
        return self.type.tensor_type.elem_type in _FLOATS

    def stated(self, shape: Sequence[int | str | None] | None) -> Value:
        """The same value with a shape that the caller knows and shape inference does not."""
        if shape is None or (self.shape is not None and None not in self.shape):
            return self
        kind = helper.make_tensor_type_proto(self.type.tensor_type.elem_type, shape)
        return Value(kind, self.node, self.index, self.array, self.hint)

    def _key(self) -> tuple[int, int]:
        return (id(self), -1) if self.node is None else (id(self.node), self.index)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same output of the same node (not an element-wise comparison)."""
        return self is other or (isinstance(other, Value) and self.node is not None and self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value before it is computed; use op.Where to choose.")

    def __repr__(self) -> str:
        shape = "?" if self.shape is None else "x".join("?" if d is None else str(d) for d in self.shape)
        what = self.hint or (self.node.op_type if self.node else "constant" if self.array is not None else "input")
        dtype = self.dtype if self.type.tensor_type.elem_type else "?"
        return f"<Value {what} {dtype}[{shape}]>"

    # numpy would otherwise loop over the elements of `array * value` itself.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Value:
        return op.Add(self, other)

    def __radd__(self, other: Any) -> Value:
        return op.Add(other, self)

    def __sub__(self, other: Any) -> Value:
        return op.Sub(self, other)

    def __rsub__(self, other: Any) -> Value:
        return op.Sub(other, self)

    def __mul__(self, other: Any) -> Value:
        return op.Mul(self, other)

    def __rmul__(self, other: Any) -> Value:
        return op.Mul(other, self)

    def __truediv__(self, other: Any) -> Value:
        return op.Div(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return op.Div(other, self)

    def __pow__(self, other: Any) -> Value:
        return op.Pow(self, other)

    def __matmul__(self, other: Any) -> Value:
        return op.MatMul(self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return op.MatMul(other, self)

    def __neg__(self) -> Value:
        return op.Neg(self)

    def __abs__(self) -> Value:
        return op.Abs(self)

    def __gt__(self, other: Any) -> Value:
        return op.Greater(self, other)

    def __ge__(self, other: Any) -> Value:
        return op.GreaterOrEqual(self, other)

    def __lt__(self, other: Any) -> Value:
        return op.Less(self, other)

    def __le__(self, other: Any) -> Value:
        return op.LessOrEqual(self, other)


_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})


@dataclass(frozen=True, eq=False)
class Node:
    """One operator applied to values. It owns all the outputs of its schema; `build` emits those that are reached."""

    schema: defs.OpSchema
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    name: str = ""
    outputs: tuple[Value, ...] = field(default=(), init=False)

    @property
    def op_type(self) -> str:
        """Name of the operator."""
        return self.schema.name

    @property
    def domain(self) -> str:
        """Domain of the operator; the default domain is empty."""
        return self.schema.domain

    def attribute(self, name: str) -> Any:
        """An attribute, or the default that the specification gives it, or None."""
        return self.attributes[name] if name in self.attributes else _defaults(self.schema).get(name)

    def protos(self) -> list[AttributeProto]:
        """The attributes as ONNX stores them."""
        kinds = self.schema.attributes
        return [
            helper.make_attribute(k, numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v,
                                  attr_type=getattr(kinds[k].type, "value"))  # noqa: B009 - unknown to onnx's stubs
            for k, v in sorted(self.attributes.items())
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Node {self.name or '(unnamed)'}: {self.op_type}>"


@cache
def _newest(op_type: str, domain: str, version: int) -> defs.OpSchema:
    """Schema of an operator at an opset; one that is younger than the opset is taken as it first appeared."""
    try:
        if domain:
            return defs.get_schema(op_type, domain)
        if defs.has(op_type, version, domain):
            return defs.get_schema(op_type, version, domain)
        return defs.get_schema(op_type, defs.onnx_opset_version(), domain)
    except defs.SchemaError:
        known = f"{domain}.{op_type}" if domain else op_type
        raise GraphError(f"ONNX has no operator {known} at opset {version}.") from None


_default_cache: dict[tuple[str, str, int], dict[str, Any]] = {}


def _defaults(schema: defs.OpSchema) -> dict[str, Any]:
    """Default values of an operator's attributes, in Python's types."""
    key = schema.name, schema.domain, schema.since_version
    if key not in _default_cache:
        _default_cache[key] = {
            name: attribute_value(a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.type != AttributeProto.UNDEFINED
        }
    return _default_cache[key]


def attribute_value(proto: AttributeProto) -> Any:
    """An attribute in Python's own types: int, float, str, tuples of them, or an array for a tensor."""
    value = helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if proto.type in (AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS):
        return tuple(v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value)
    return value


def variable(name: str, dtype: Any, shape: Sequence[int | str | None] | None) -> Value:
    """An input of a graph to be.

    Parameters
    ----------
    name : str
        Its name.
    dtype : numpy dtype or its name
        Element type.
    shape : sequence of int, str or None, or None
        A size, a symbolic name, or None for a size that is not known; None as a whole for an unknown rank.

    Returns
    -------
    Value

    Examples
    --------
    >>> variable("x", "float32", ["N", 3])
    <Value x float32[Nx3]>
    """
    return Value(helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape), hint=name)


def constant(array: Any, dtype: Any = None, hint: str = "") -> Value:
    """A tensor known when the graph is made.

    Parameters
    ----------
    array : array_like
        The content; Python's floats become float32 and its integers int64 unless `dtype` says otherwise.
    dtype : numpy dtype or its name, optional
        Element type.
    hint : str
        A name, used where it is unique.

    Returns
    -------
    Value

    Examples
    --------
    >>> constant([1, 2])
    <Value constant int64[2]>
    """
    if not isinstance(array, np.ndarray):
        array = np.asarray(array, dtype)
        if dtype is None and (array.dtype == np.float64 or array.size == 0):
            array = array.astype(np.float32 if array.size else np.int64)
    elif dtype is not None:
        array = array.astype(dtype)
    kind = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    return Value(kind, array=array, hint=hint)


def _parameter(schema: defs.OpSchema, i: int) -> defs.OpSchema.FormalParameter:
    """The formal parameter that the i-th input stands for (the last one may be variadic)."""
    return schema.inputs[min(i, len(schema.inputs) - 1)]


def _coerce(schema: defs.OpSchema, arguments: Sequence[Any]) -> tuple[Value | None, ...]:
    """Numbers and arrays beside values become constants; their dtype is that of the schema's type variable.

    A variable that no value binds takes the dtype of the first floating-point value, else Python's own.
    """
    bound: dict[str, np.dtype] = {}
    first = None
    for i, a in enumerate(arguments):
        if isinstance(a, Value) and a.type.HasField("tensor_type"):
            p = _parameter(schema, i)
            if p.is_homogeneous:
                known = bound.setdefault(p.type_str, a.dtype)
                if known != a.dtype:
                    raise GraphError(f"{schema.name}: input {p.name!r} is {a.dtype} where {known} was expected, the "
                                     f"type of another input; cast one of them.")  # fmt: skip
            first = first or (a.dtype if a.is_float else None)

    def coerce(i: int, a: Any) -> Value | None:
        if a is None or isinstance(a, Value):
            return a
        if isinstance(a, np.ndarray):
            return constant(a)
        p = _parameter(schema, i)
        if p.type_str in bound:
            return constant(a, bound[p.type_str])
        if len(p.types) == 1:
            return constant(a, _np_dtype(next(iter(p.types))))
        if first is not None and _onnx_type(first) in p.types:
            return constant(a, first)
        return constant(a)

    return tuple(coerce(i, a) for i, a in enumerate(arguments))


@cache
def _np_dtype(type_str: str) -> np.dtype:
    """`tensor(int64)` as a numpy dtype."""
    name = type_str.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))


@cache
def _onnx_type(dtype: np.dtype) -> str:
    """A numpy dtype as the schema spells it, `tensor(float)`."""
    name = np.dtype(dtype).name
    return f"tensor({ {'float32': 'float', 'float64': 'double'}.get(name, name) })"


def make_node(
    schema: defs.OpSchema,
    arguments: Sequence[Any],
    attributes: Mapping[str, Any],
    *,
    n_outputs: int | None = None,
    name: str = "",
    hints: Sequence[str] = (),
) -> Node:
    """One operator applied to values, its outputs typed by ONNX's own shape inference.

    Raises
    ------
    GraphError
        Too few or too many inputs, an unknown or missing attribute, or types and shapes that do not fit.
    """
    where = f"{schema.name}{f' (node {name!r})' if name else ''}"
    # An input that is left out at the end is the same as none, and kills onnxruntime 1.19 to 1.31 now and then.
    arguments = arguments[: next((i for i in range(len(arguments), 0, -1) if arguments[i - 1] is not None), 0)]
    if not schema.min_input <= len(arguments) <= schema.max_input:
        raise GraphError(f"{where} takes {schema.min_input} to {schema.max_input} inputs, {len(arguments)} given.")
    attributes = {k: v for k, v in attributes.items() if v is not None}
    if unknown := set(attributes) - set(schema.attributes):
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise GraphError(f"{where} has no attribute {sorted(unknown)[0]!r}; its attributes are: {known}.")
    optional = defs.OpSchema.FormalParameterOption.Optional
    for i, a in enumerate(arguments):
        if a is None and _parameter(schema, i).option != optional:
            raise GraphError(f"{where} cannot do without its input {_parameter(schema, i).name!r}.")
    inputs = _coerce(schema, arguments)
    node = Node(schema, inputs, attributes, name)
    if n_outputs is None:
        variadic = schema.outputs and schema.outputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic
        n_outputs = int(attributes.get("num_outputs", 1)) if variadic else len(schema.outputs)
    proto = NodeProto(op_type=schema.name, domain=schema.domain, name=name, attribute=node.protos())
    proto.input.extend("" if v is None else f"i{i}" for i, v in enumerate(inputs))
    proto.output.extend(f"o{i}" for i in range(n_outputs))
    types = {f"i{i}": v.type for i, v in enumerate(inputs) if v is not None}
    data = {
        f"i{i}": numpy_helper.from_array(v.array)
        for i, v in enumerate(inputs)
        if v is not None and v.array is not None and v.array.size <= SMALL
    }
    opset = helper.make_opsetid(schema.domain, max(OPSET, schema.since_version))
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=[opset])
    except Exception as e:
        given = ", ".join(map(repr, inputs))
        raise GraphError(f"{where} does not accept ({given}): {_reason(e)}") from None
    unknown_type = TypeProto()
    hint = dict(enumerate(hints))
    outputs = tuple(
        Value(found.get(f"o{i}", unknown_type), node, i, hint=hint.get(i, "")) for i in range(n_outputs)
    )  # fmt: skip
    object.__setattr__(node, "outputs", outputs)  # a node and its outputs know each other: the only late assignment
    return node


def _reason(e: Exception) -> str:
    """The last sentence of an error of shape inference, without its place in the source."""
    return str(e).strip().splitlines()[-1].split("] ")[-1].strip()


class Operators:
    """Every operator of a domain as a function of values, spelled as in the specification: ``op.Softmax(x, axis=1)``.

    Tensors are positional, attributes are keywords. An operator whose further outputs are optional returns its first
    output (the others are ``value.node.outputs``); one with several required outputs returns a tuple.

    Parameters
    ----------
    domain : str
        Domain of the operators.
    opset : int
        Opset whose operators are meant; an operator younger than it is taken as it first appeared.

    Examples
    --------
    >>> x = variable("x", "float32", ["N", 3])
    >>> op.ReduceSum(op.Exp(x), [1], keepdims=0).shape
    ('N',)
    """

    def __init__(self, domain: str = "", opset: int = OPSET):
        self._domain, self._opset = domain, opset

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        schema = _newest(op_type, self._domain, self._opset)

        def call(*arguments: Any, n_outputs: int | None = None, **attributes: Any) -> Any:
            node = make_node(schema, arguments, attributes, n_outputs=n_outputs)
            single = schema.max_output == 1 or (schema.min_output == 1 and n_outputs is None and len(node.outputs) > 0)
            if single and "num_outputs" not in attributes:
                return node.outputs[0]
            return node.outputs

        call.__name__ = op_type
        call.__doc__ = schema.doc
        setattr(self, op_type, call)
        return call


op: Any = Operators()

"""What is an expression? A `Value`, made by a `Node` that applies an operator to other values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper

from .exceptions import GraphError
from .inferred import mend

__all__ = ["OPSET", "Node", "Operators", "Subgraph", "Value", "constant", "op", "topological", "variable"]

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
    inner : Value, optional
        A value inside a body of the node, which the node hands out: see `Node.tap`.

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
    inner: Value | None = None

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
        return Value(kind, self.node, self.index, self.array, self.hint, self.inner)

    def _key(self) -> tuple[int, Any]:
        if self.node is None:
            return id(self), -1
        return id(self.node), self.index if self.inner is None else self.inner

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

#: Numbers the nodes in the order in which they are written.
_serial = itertools.count()


@dataclass(frozen=True, eq=False)
class Node:
    """One operator applied to values. It owns all the outputs of its schema; `build` emits those that are reached."""

    schema: defs.OpSchema
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    name: str = ""
    outputs: tuple[Value, ...] = field(default=(), init=False)
    serial: int = field(init=False)
    #: The graphs among the attributes: the branches of If, the body of Loop and of Scan.
    bodies: tuple[Subgraph, ...] = field(default=(), init=False)
    #: All that the node depends on: its inputs, and what its bodies capture.
    reads: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        reads = tuple([x for x in self.inputs if x is not None])
        if self.attributes and any(isinstance(a, Subgraph) for a in self.attributes.values()):
            bodies = tuple(a for _, a in sorted(self.attributes.items()) if isinstance(a, Subgraph))
            reads = tuple(dict.fromkeys((*reads, *(x for b in bodies for x in b.captured))))
            object.__setattr__(self, "bodies", bodies)
        object.__setattr__(self, "reads", reads)
        object.__setattr__(self, "serial", next(_serial))

    def tap(self, inner: Value) -> Value:
        """A value inside a body as an output of the node, which `build` adds where it is reached.

        Loop and Scan stack it over the iterations, in their order; If gives what the branch taken computed, and no
        elements where the other branch has it.
        """
        kind = inner.type
        if self.op_type != "If" and inner.shape is not None:
            length = None
            if self.op_type == "Scan":
                read = self.inputs[-self.attributes["num_scan_inputs"]]
                axis = (self.attributes.get("scan_input_axes") or [0])[0]
                length = read.shape[axis] if read is not None and read.shape is not None else None
            kind = helper.make_tensor_type_proto(inner.type.tensor_type.elem_type, (length, *inner.shape))
        return Value(kind, self, inner=inner)

    @property
    def op_type(self) -> str:
        """Name of the operator."""
        return self.schema.name

    @property
    def domain(self) -> str:
        """Domain of the operator; the default domain is empty."""
        return self.schema.domain

    @property
    def is_random(self) -> bool:
        """Whether the node, or one inside it, draws random numbers."""
        return self.op_type in RANDOM or any(n.is_random for b in self.bodies for n in b.nodes)

    def attribute(self, name: str) -> Any:
        """An attribute, or the default that the specification gives it, or None."""
        return self.attributes[name] if name in self.attributes else _defaults(self.schema).get(name)

    def protos(self) -> list[AttributeProto]:
        """The attributes as ONNX stores them, but for the bodies, whose names `build` gives."""
        if not self.attributes:
            return []
        kinds = self.schema.attributes
        return [
            helper.make_attribute(k, numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v,
                                  attr_type=getattr(kinds[k].type, "value"))  # noqa: B009 - unknown to onnx's stubs
            for k, v in sorted(self.attributes.items())
            if not isinstance(v, Subgraph)
        ]  # fmt: skip

    def __repr__(self) -> str:
        return f"<Node {self.name or '(unnamed)'}: {self.op_type}>"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A graph inside a node: a branch of If, the body of Loop or of Scan.

    Whatever the outputs depend on may be reached, inside or outside: what does not depend on the inputs of the body is
    *captured*, that is computed once, around the node. A branch of If has no inputs and computes all that is its own,
    so that what is not taken is not computed.

    Parameters
    ----------
    inputs : sequence of Value
        What an iteration is given; like the inputs of a graph, they may be computed values.
    outputs : sequence of Value
        What it gives.
    inside : frozenset of Node, optional
        The nodes written for the body, the only ones that it may compute: `Subgraph.of` finds them. Without it, a body
        has the nodes that depend on its inputs, and a branch of If those that neither the other one nor the condition
        depends on.

    Examples
    --------
    >>> s, x = variable("s", "float32", [2]), variable("x", "float32", [2])
    >>> w = variable("w", "float32", [2])
    >>> body = Subgraph([s, x], [s + op.Exp(w) * x])
    >>> [node.op_type for node in body.nodes], body.captured
    (['Mul', 'Add'], (<Value Exp float32[2]>,))
    """

    inputs: Sequence[Value]
    outputs: Sequence[Value]
    inside: frozenset[Node] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))

    @classmethod
    def of(cls, function: Callable[..., Any], *inputs: Value) -> Subgraph:
        """The body that a function of its inputs writes; what is written outside of the function is captured."""
        since = next(_serial)
        outputs = function(*inputs)
        return cls.since(since, inputs, [outputs] if isinstance(outputs, Value) else outputs)

    @classmethod
    def since(cls, serial: int, inputs: Sequence[Value], outputs: Sequence[Value]) -> Subgraph:
        """The body whose nodes were written after a moment."""
        cut = set(inputs)
        found: set[Node] = set()
        stack = list(outputs)
        while stack:
            v = stack.pop()
            if v.node is not None and v not in cut and v.node.serial > serial and v.node not in found:
                found.add(v.node)
                stack.extend(v.node.reads)
        return cls(inputs, outputs, frozenset(found))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """What the body computes, each node after those it reads."""
        cut = set(self.inputs)
        every = self.inside is not None and not cut
        inner: dict[Node, None] = {}
        for node in topological(self.outputs, cut, self.inside):
            # What is random was written inside to be drawn in every iteration.
            if every or (self.inside is not None and node.is_random) or any(
                x in cut or x.node in inner for x in node.reads
            ):  # fmt: skip
                inner[node] = None
        return tuple(inner)

    @cached_property
    def own(self) -> frozenset[Node]:
        """The same nodes, to look them up."""
        return frozenset(self.nodes)

    @cached_property
    def captured(self) -> tuple[Value, ...]:
        """Values and constants around the body that it reads."""
        own, cut = self.own, set(self.inputs)
        read = (x for xs in (*(node.reads for node in self.nodes), self.outputs) for x in xs)
        return tuple(dict.fromkeys(x for x in read if x not in cut and x.node not in own))


def topological(roots: Sequence[Value], cut: Collection[Value] = (), within: Collection[Node] | None = None,
                also: Mapping[Node, Sequence[Node]] | None = None) -> list[Node]:  # fmt: skip
    """Nodes that the roots need, each after those it reads, in the order in which expressions were written.

    The walk stops at values of `cut` and at nodes beyond `within`; `also` names nodes that are to come before others.
    """
    order: list[Node] = []
    done: set[int] = set()
    stack: list[tuple[Node, bool]] = [(v.node, False) for v in reversed(roots) if v.node and v not in cut]
    while stack:
        node, ready = stack.pop()
        if id(node) in done or (within is not None and node not in within):
            continue
        if ready:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        if also:
            stack.extend((n, False) for n in also.get(node, ()) if id(n) not in done)
        stack.extend(
            (v.node, False)
            for v in reversed(node.reads)
            if v.node is not None and v not in cut and id(v.node) not in done
        )
    return order


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


def check_required(schema: defs.OpSchema, arguments: Sequence[Any], where: str) -> None:
    """Refuse too few or too many inputs, and to leave one out that the operator cannot do without."""
    if not schema.min_input <= len(arguments) <= schema.max_input:
        raise GraphError(f"{where} takes {schema.min_input} to {schema.max_input} inputs, {len(arguments)} given.")
    optional = defs.OpSchema.FormalParameterOption.Optional
    for i, a in enumerate(arguments):
        if a is None and _parameter(schema, i).option != optional:
            raise GraphError(f"{where} cannot do without its input {_parameter(schema, i).name!r}.")


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
    check_required(schema, arguments, where)
    attributes = {k: v for k, v in attributes.items() if v is not None}
    if attributes and (unknown := set(attributes) - set(schema.attributes)):
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise GraphError(f"{where} has no attribute {sorted(unknown)[0]!r}; its attributes are: {known}.")
    inputs = _coerce(schema, arguments)
    if schema.name in CONTROL and not schema.domain:
        attributes, kinds = CONTROL[schema.name](where, inputs, attributes)
        return _outputs(Node(schema, inputs, attributes, name), kinds, hints)
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
    kinds = [found.get(f"o{i}", TypeProto()) for i in range(n_outputs)]
    if not schema.domain:
        mend(schema.name, [None if v is None else v.type for v in inputs], attributes, kinds)
    return _outputs(node, kinds, hints)


def _outputs(node: Node, types: Sequence[TypeProto], hints: Sequence[str]) -> Node:
    """The node with outputs of these types."""
    hint = dict(enumerate(hints))
    outputs = tuple(Value(kind, node, i, hint=hint.get(i, "")) for i, kind in enumerate(types))
    object.__setattr__(node, "outputs", outputs)  # a node and its outputs know each other: the only late assignment
    return node


#: Operators with bodies: from their inputs and attributes to the attributes and the types of the outputs.
CONTROL: dict[str, Callable[..., tuple[dict[str, Any], list[TypeProto]]]] = {}


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
            if node.bodies:
                return node.outputs[0] if len(node.outputs) == 1 else node.outputs
            single = schema.max_output == 1 or (schema.min_output == 1 and n_outputs is None and len(node.outputs) > 0)
            if single and "num_outputs" not in attributes:
                return node.outputs[0]
            return node.outputs

        call.__name__ = op_type
        call.__doc__ = schema.doc
        setattr(self, op_type, call)
        return call


op: Any = Operators()

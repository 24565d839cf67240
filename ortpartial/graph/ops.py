"""The operators of ONNX as functions of values, and the variables and constants that expressions start from."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TypeProto, defs, helper, numpy_helper

from ortpartial.annotations import Attributes, DTypeLike, Inputs, Reduced
from ortpartial.exceptions import GraphError

from .arithmetic import Arithmetic, complete_arithmetic
from .body_types import CONTROL
from .casting import to_dtype
from .eager import evaluate
from .mode import MODE
from .opaque import infer_opaque
from .opaque_schema import OpaqueSchema
from .schemas import (
    OPSET,
    accepted_types,
    check_required,
    defaults,
    list_operators,
    np_dtype,
    onnx_type,
    parameter,
    schema_of,
)
from .shape_inference import MISTAKEN_DEFAULTS, fix_shapes, name_size
from .values import Node, Value

__all__ = ["SMALL", "Operators", "attach_outputs", "constant", "make_node", "op", "register_guard", "register_writer",
           "variable", "without_guards"]

#: Constants of more elements are data, never sizes or axes: shape inference does without them.
SMALL = 1024


def variable(name: str, dtype: DTypeLike, shape: Sequence[int | str | None] | None) -> Value:
    """An input of a graph.

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
    if isinstance(shape, (str, int)):
        raise GraphError(f"variable: the shape of {name!r} is {shape!r}; a sequence was expected, such as [{shape!r}].")
    element_type = _find_element_type(dtype)
    try:
        sizes = shape if shape is None else [int(n) if isinstance(n, np.integer) else n for n in shape]
        tensor_type = helper.make_tensor_type_proto(element_type, sizes)
    except (TypeError, ValueError):
        raise GraphError(f"variable: the shape of {name!r} is {shape!r}; expected sizes, names or None.") from None
    return Value(tensor_type, hint=name)


def _find_element_type(dtype: DTypeLike) -> int:
    """The number of an element type of ONNX."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (KeyError, TypeError, ValueError, RecursionError):
        raise GraphError(f"dtype is {dtype!r}; an element type of ONNX was expected, such as 'float32'.") from None


def constant(array: Any, dtype: DTypeLike | None = None, hint: str = "") -> Value:
    """A tensor that is known when the graph is built.

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

    Raises
    ------
    GraphError
        The dtype cannot hold the numbers, such as uint8 257, -1 or 0.5.

    Examples
    --------
    >>> constant([1, 2])
    <Value constant int64[2]>
    """
    if dtype is not None:
        _find_element_type(dtype)
    if not isinstance(array, np.ndarray):
        array = _to_array(array, hint)
        if dtype is None and (array.dtype == np.float64 or array.size == 0):
            array = array.astype(np.float32 if array.size else np.int64)
        elif dtype is None and array.dtype == object and isinstance(array.flat[0], int):
            dtype = np.int64  # which does not hold it
    if dtype is not None:
        array = to_dtype(array, dtype, f"The constant {hint}".rstrip(), GraphError)
    tensor_type = helper.make_tensor_type_proto(_find_element_type(array.dtype), array.shape)
    return Value(tensor_type, array=array, hint=hint)


def _to_array(numbers: Any, hint: str) -> np.ndarray:
    """Numbers, or texts in a list, as an array; a text alone is taken for a mistake."""
    try:
        array = np.asarray(numbers)
    except ValueError:
        array = np.asarray(None)
    is_number = array.dtype != object or (array.size > 0 and isinstance(array.flat[0], (int, str)))
    if not is_number or isinstance(numbers, (str, bytes)):
        raise GraphError(f"The constant {hint!r} is {numbers!r}, where numbers of one shape were expected; an input is "
                         f"variable(name, dtype, shape)." if hint else
                         f"A constant is made of numbers of one shape, and {numbers!r} is none; an input is "
                         f"variable(name, dtype, shape).")
    return array


def _coerce(schema: defs.OpSchema | OpaqueSchema, arguments: Sequence[object]) -> tuple[Value | None, ...]:
    """Arguments as values: numbers become constants of the dtype that the schema's type variable is bound to.

    A type variable that no value binds takes the dtype of the first floating-point value, else Python's own.
    """
    arguments = [a if isinstance(a, Value) else constant(a) if isinstance(a, np.ndarray)
                 else a.value if isinstance(a, Arithmetic) else a for a in arguments]
    bound: dict[str, np.dtype] = {}
    first = None
    for i, a in enumerate(arguments):
        if isinstance(a, Value) and a.type.HasField("tensor_type"):
            p = parameter(schema, i)
            if p.is_homogeneous:
                expected = bound.setdefault(p.type_str, a.dtype)
                if expected != a.dtype:
                    raise GraphError(f"{schema.name}: input {p.name!r} is {a.dtype} where {expected} was expected, the "
                                     f"type of another input; cast one of them.")
            first = first or (a.dtype if a.is_float else None)

    def choose_dtype(types: frozenset[str], type_str: str) -> np.dtype | None:
        if type_str in bound or len(types) == 1:
            return bound[type_str] if type_str in bound else np_dtype(next(iter(types)))
        return first if first is not None and onnx_type(first) in types else None

    def coerce(i: int, a: object) -> Value | None:
        if a is None or isinstance(a, Value):
            return a
        p, types = parameter(schema, i), accepted_types(schema, i)
        try:
            return _coerce_numbers(a, choose_dtype(types, p.type_str), types, f"{schema.name}: input {p.name!r}")
        except GraphError:
            raise
        except (KeyError, TypeError, ValueError):
            raise TypeError(f"{schema.name}: input {p.name!r} is {reprlib.repr(a)}, of type {type(a).__name__}, where "
                            f"a Value, an array or a number was expected.") from None

    return tuple(coerce(i, a) for i, a in enumerate(arguments))


def _coerce_numbers(numbers: object, dtype: np.dtype | None, types: frozenset[str], what: str) -> Value:
    """Numbers as a constant of this dtype or, without a dtype, of their own or of int64, as an input accepts it."""
    array = np.asarray(numbers)
    if array.dtype.kind in "USmM" or (array.dtype == object and not all(isinstance(n, Number) for n in array.flat)):
        raise TypeError
    counts = types != {"tensor(bool)"} and not any("float" in t or "double" in t for t in types)
    if dtype is None and "tensor(int64)" in types and (counts or array.dtype == object):
        dtype = array.dtype if onnx_type(array.dtype) in types else np.dtype(np.int64)
    return constant(numbers if dtype is None else to_dtype(array, dtype, what, GraphError, counts=counts))


#: From an operator, its inputs and its attributes to inputs that do not end the process.
Guard = Callable[["defs.OpSchema | OpaqueSchema", Inputs, Attributes], Inputs]

#: The guard of all that is written in the notation, which a room above registers.
_GUARDS: list[Guard] = []

_IS_GUARDED = ContextVar("_IS_GUARDED", default=True)


def register_guard(guard: Guard) -> None:
    """Let a function see each operator that is written before it is applied, refuse it, or replace its inputs.

    Parameters
    ----------
    guard : callable
        From a schema, inputs and attributes to inputs.
    """
    _GUARDS[:] = [guard]


#: From a node to its outputs, computed by other nodes; to None for one that is written as it is.
Writer = Callable[[Node], "Sequence[Value] | None"]

#: By operator, what writes it otherwise, where runtimes disagree about it; a room above registers it.
_WRITERS: dict[str, Writer] = {}


def register_writer(*op_types: str, writer: Writer) -> None:
    """Let a function compute operators of ONNX by other nodes where they are written in Python.

    Parameters
    ----------
    *op_types : str
        Names of the operators.
    writer : callable
        From a node to its outputs, or to None.
    """
    _WRITERS.update(dict.fromkeys(op_types, writer))


@contextmanager
def without_guards() -> Iterator[None]:
    """Leave out guards in rules of this library, whose indices and lengths a guard of the forward graph has seen."""
    token = _IS_GUARDED.set(False)
    try:
        yield
    finally:
        _IS_GUARDED.reset(token)


def make_node(
    schema: defs.OpSchema | OpaqueSchema,
    arguments: Sequence[object],
    attributes: Attributes,
    *,
    n_outputs: int | None = None,
    fewest: int = 1,
    name: str = "",
    hints: Sequence[str] = (),
    guard: Guard | None = None,
) -> Node:
    """An operator applied to values, its outputs typed by ONNX's own shape inference.

    It has `n_outputs` outputs, all of its schema by default, or `fewest` where its inputs rule out the others. `guard`
    checks its inputs, and replaces them, before it is typed.

    Raises
    ------
    GraphError
        Too few or too many inputs, an unknown or missing attribute, or types and shapes that do not fit.
    """
    where = f"{schema.name}{f' (node {name!r})' if name else ''}"
    # Inputs left out at the end are dropped: an empty name there kills onnxruntime 1.19 to 1.31 now and then.
    arguments = arguments[: next((i for i in range(len(arguments), 0, -1) if arguments[i - 1] is not None), 0)]
    check_required(schema, arguments, where)
    attributes = {**MISTAKEN_DEFAULTS.get(schema.name, {}), **{k: v for k, v in attributes.items() if v is not None}}
    if attributes and (unknown := set(attributes) - set(schema.attributes)):
        names = ", ".join(sorted(schema.attributes)) or "none"
        raise GraphError(f"{where} has no attribute {sorted(unknown)[0]!r}; its attributes are: {names}.")
    inputs = _coerce(schema, arguments)
    if schema.name in CONTROL and not schema.domain:
        attributes, types = CONTROL[schema.name](where, inputs, attributes)
        inputs = inputs if guard is None else tuple(guard(schema, inputs, attributes))
        return attach_outputs(Node(schema, inputs, attributes, name), types, hints)
    inputs = inputs if guard is None else tuple(guard(schema, inputs, attributes))
    node = Node(schema, inputs, attributes, name)
    if node.is_opaque:
        return attach_outputs(node, infer_opaque(node), hints)
    if n_outputs is None:
        variadic = schema.outputs and schema.outputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic
        n_outputs = int(attributes.get("num_outputs", 1)) if variadic else len(schema.outputs)
    return attach_outputs(node, _infer_types(node, n_outputs, fewest, where), hints)


#: Inferred types by operator, types and sizes of inputs and attributes: a graph repeats most of its nodes' types.
_INFERRED: dict[Hashable, list[TypeProto]] = {}
_MOST_INFERRED = 2**14


def _infer_types(node: Node, n_outputs: int, fewest: int, where: str) -> list[TypeProto]:
    """The types of a node's outputs, by ONNX's own shape inference; they are shared and never written to."""
    attributes = node.protos()
    arrays = [None if v is None or v.array is None or v.array.size > SMALL else v.array for v in node.inputs]
    key = (
        node.schema.name, node.schema.domain, node.schema.since_version, n_outputs,
        tuple([None if v is None else v.type_key for v in node.inputs]),
        tuple([None if a is None else a.tobytes() for a in arrays]),
        b"".join([a.SerializeToString(deterministic=True) for a in attributes]),
    )
    if (outputs := _INFERRED.get(key)) is None:
        try:
            outputs = _infer(node, n_outputs, arrays, attributes)
        except Exception as e:
            if fewest < n_outputs and node.schema.min_output < len(node.schema.outputs):
                # Attention 24 and 25 refuse the outputs of a cache beside nonpad_kv_seqlen.
                return _infer_types(node, fewest, fewest, where)
            raise GraphError(f"{where} does not accept ({', '.join(map(repr, node.inputs))}): {_reason(e)}") from None
        if len(_INFERRED) >= _MOST_INFERRED:
            _INFERRED.clear()
        _INFERRED[key] = outputs
    return outputs


def _infer(node: Node, n_outputs: int, arrays: Sequence[np.ndarray | None],
           attributes: Sequence[AttributeProto]) -> list[TypeProto]:
    """A call of shape inference, with the content of small constants."""
    schema: Any = node.schema
    inputs = {f"i{i}": v for i, v in enumerate(node.inputs) if v is not None}
    proto = NodeProto(op_type=schema.name, domain=schema.domain, name=node.name, attribute=attributes)
    proto.input.extend("" if v is None else f"i{i}" for i, v in enumerate(node.inputs))
    proto.output.extend(f"o{i}" for i in range(n_outputs))
    data = {f"i{i}": numpy_helper.from_array(a) for i, a in enumerate(arrays) if a is not None}
    opset = helper.make_opsetid(schema.domain, max(OPSET, schema.since_version))
    inferred = onnx.shape_inference.infer_node_outputs(
        schema, proto, {n: v.type for n, v in inputs.items()}, data, opset_imports=[opset])
    outputs = [inferred.get(f"o{i}", TypeProto()) for i in range(n_outputs)]
    if not schema.domain:
        fix_shapes(schema.name, [None if v is None else v.type for v in node.inputs], node.attributes, outputs)
    if schema.name == "Reshape" and arrays[1] is not None and not node.attributes.get("allowzero"):
        name_size(inputs["i0"].type, arrays[1].tolist(), outputs[0])
    return outputs


def attach_outputs(node: Node, types: Sequence[TypeProto], hints: Sequence[str]) -> Node:
    """The node with outputs of these types, computed while `evaluating`."""
    hint = dict(enumerate(hints))
    outputs = tuple(Value(t, node, i, hint=hint.get(i, "")) for i, t in enumerate(types))
    object.__setattr__(node, "outputs", outputs)  # a node and its outputs know each other: the only late assignment
    if MODE.is_on:
        evaluate(node)
    return node


def _reason(e: Exception) -> str:
    """The last line of an error of shape inference, without the file and line of its source."""
    return str(e).strip().splitlines()[-1].split("] ")[-1].strip()


class Operator:
    """An operator as a function of values, as `Operators` describes it.

    Parameters
    ----------
    schema : onnx.defs.OpSchema
        The specification of the operator.
    family : Operators
        The operators to which it belongs.
    """

    def __init__(self, schema: defs.OpSchema, family: Operators):
        self.schema, self._family = schema, family
        self.__name__, self.__doc__ = schema.name, schema.doc

    def __call__(self, *arguments: object, n_outputs: int | None = None, **attributes: object) -> Value:
        # Typed for editors as the value that most operators return.
        schema, guard = self.schema, _GUARDS[-1] if _GUARDS and _IS_GUARDED.get() else None
        node = make_node(schema, arguments, attributes, n_outputs=n_outputs, guard=guard)
        writer = _WRITERS.get(schema.name) if not schema.domain else None
        outputs: Any = node.outputs if writer is None else writer(node) or node.outputs
        if node.bodies:
            return outputs[0] if len(outputs) == 1 else outputs
        single = schema.max_output == 1 or (schema.min_output == 1 and n_outputs is None and len(outputs) > 0)
        return outputs[0] if single and "num_outputs" not in attributes else outputs

    @property
    def __signature__(self) -> inspect.Signature:
        """Inputs, which are positional, and attributes, for `help` and editors."""
        kind, option = inspect.Parameter, defs.OpSchema.FormalParameterOption
        inputs = [
            kind(x.name, kind.VAR_POSITIONAL) if x.option == option.Variadic
            else kind(x.name, kind.POSITIONAL_ONLY, default=None if x.option == option.Optional else kind.empty)
            for x in self.schema.inputs
        ]
        names = {x.name for x in self.schema.inputs}
        attributes = [
            kind(n, kind.KEYWORD_ONLY, default=kind.empty if a.required else defaults(self.schema).get(n))
            for n, a in self.schema.attributes.items() if n not in names
        ]
        return inspect.Signature([*inputs, *attributes])

    def __reduce__(self) -> Reduced:
        return getattr, (self._family, self.schema.name)

    def __repr__(self) -> str:
        name = f"{self.schema.domain}.{self.schema.name}" if self.schema.domain else self.schema.name
        return f"<operator {name}{self.__signature__}, opset {self.schema.since_version}>"


class Operators:
    """Every operator of a domain as a function of values, spelled as in the specification: ``op.Softmax(x, axis=1)``.

    Tensors are positional, attributes are keywords. An operator whose further outputs are optional returns its first
    output (the others are ``value.node.outputs``); an operator with several required outputs returns a tuple. ``dir``
    lists the operators, ``help(op.Softmax)`` shows a specification.

    Parameters
    ----------
    domain : str
        Domain of the operators. ``onnx.defs.register_schema`` declares operators of domains other than ONNX's own.
    opset : int
        Opset whose operators are meant; an operator younger than it is taken as it first appeared.

    Examples
    --------
    >>> x = variable("x", "float32", ["N", 3])
    >>> op.ReduceSum(op.Exp(x), [1], keepdims=0).shape
    ('N',)
    >>> op.Softmax
    <operator Softmax(input, /, *, axis=-1), opset 13>
    """

    def __init__(self, domain: str = "", opset: int = OPSET):
        self._domain, self._opset = domain, opset

    if TYPE_CHECKING:
        DynamicQuantizeLinear: Callable[..., tuple[Value, Value, Value]]
        Split: Callable[..., tuple[Value, ...]]
        TopK: Callable[..., tuple[Value, Value]]

    def __getattr__(self, op_type: str) -> Callable[..., Value]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        operator = Operator(schema_of(op_type, self._domain, self._opset), self)
        setattr(self, op_type, operator)
        return operator

    def __dir__(self) -> list[str]:
        return list_operators(self._domain)

    def __reduce__(self) -> str | Reduced:
        return "op" if self is op else (Operators, (self._domain, self._opset))

    def __repr__(self) -> str:
        return f"<{len(dir(self))} operators of {self._domain or 'ONNX'}, opset {self._opset}>"


op = Operators()
complete_arithmetic(op=op)

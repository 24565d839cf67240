"""Expressions: a `Value` is computed by a `Node`, which applies an operator to other values."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, TypeProto, defs, helper, numpy_helper

from ortpartial.annotations import Attributes, Formula
from ortpartial.exceptions import GraphError
from ortpartial.texts import printable

from .arithmetic import Arithmetic
from .immutable import Immutable, cached_property
from .mode import deferring
from .opaque_schema import OpaqueSchema
from .schemas import defaults
from .traits import FLOATS, RANDOM

__all__ = ["Immutable", "Node", "Subgraph", "Value", "topological", "walk_back"]


@dataclass(frozen=True, eq=False)
class Value(Arithmetic["Value"], Immutable):
    """A symbolic tensor: its type, and the node, if any, that computes it.

    Values are immutable and typed at construction. They support Python's arithmetic, so ``a * b + 1`` is the
    expression ``Add(Mul(a, b), 1)``, and the indexing, methods and functions of numpy: ``x[:, -1].mean()``,
    ``np.exp(x)``. A value without a node is an input (`variable`) or, with an array, a `constant`. ``==`` compares
    identity, as values are keys of dicts, but beside arrays of numpy; ``op.Equal`` compares elements.

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
        The name of the value in the model that it was loaded from; `build` uses it where it is unique.
    inner : Value, optional
        A value inside a body of the node, of which this value is an output: see `Node.tap`.

    Examples
    --------
    >>> from ortpartial.graph import variable
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
        """Element type as a numpy dtype."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.type.tensor_type.elem_type))

    @cached_property
    def shape(self) -> tuple[int | str | None, ...] | None:
        """Sizes: an int where static, a name where symbolic, None where unknown; None as a whole without a rank."""
        tensor = self.type.tensor_type
        if not tensor.HasField("shape"):
            return None
        return tuple(
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim
        )

    @cached_property
    def type_key(self) -> bytes:
        """The type as bytes, equal for equal types."""
        return self.type.SerializeToString(deterministic=True)

    @property
    def rank(self) -> int:
        """Number of axes; an error where the rank is not known."""
        if self.shape is None:
            where = "this tensor in value_info" if self.node and self.node.is_opaque else "the model's inputs"
            raise GraphError(f"The rank of {self!r} is not known; declare the shape of {where}.")
        return len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @cached_property
    def is_float(self) -> bool:
        """Whether the value is a tensor of real floating-point numbers, so that it can have a gradient."""
        return self.type.tensor_type.elem_type in FLOATS

    def stated(self, shape: Sequence[int | str | None] | None) -> Value:
        """The same value with a shape that shape inference does not find."""
        if shape is None or (self.shape is not None and None not in self.shape):
            return self
        kind = helper.make_tensor_type_proto(self.type.tensor_type.elem_type, shape)
        return Value(kind, self.node, self.index, self.array, self.hint, self.inner)

    @cached_property
    def identity(self) -> tuple[int, Hashable]:
        """Numbers of the node and of its output: equal where two values are the same output of the same node."""
        if self.node is None:
            return id(self), -1
        return id(self.node), self.index if self.inner is None else self.inner

    def __eq__(self, other: object) -> bool:
        """Whether both are the same output of the same node; beside an array or a scalar of numpy, `op.Equal`."""
        if self is other:
            return True
        if isinstance(other, (np.ndarray, np.generic)):  # `array == value` is np.equal, which numpy asks of the value.
            return self._op.Equal(self, other)
        return isinstance(other, Value) and self.node is not None and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def type_name(self) -> str:
        """Element type and shape in words, such as ``float32[Nx3]``."""
        shape = "?" if self.shape is None else "x".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype if self.type.tensor_type.elem_type else '?'}[{shape}]"

    def _numbers(self) -> Any:
        return self._find_numbers()

    def __repr__(self) -> str:
        what = self.hint or (self.node.op_type if self.node else "constant" if self.array is not None else "input")
        return f"<Value {printable(f'{what} {self.type_name}')}{self._describe_numbers()}>"

    def _describe_numbers(self) -> str:
        """The numbers of a value that is computed or was given numbers, shortened as by numpy, in a line."""
        numbers = self._numbers() if self.array is None else None
        if not isinstance(numbers, np.ndarray):
            return ""
        text = np.array2string(numbers, max_line_width=sys.maxsize, precision=4, threshold=20, edgeitems=2)
        return " " + " ".join(text.split())


#: Numbers the nodes in the order of their construction.
counter = itertools.count()


@dataclass(frozen=True, eq=False)
class Node(Immutable):
    """An operator applied to values. It has all the outputs of its schema; `build` emits the outputs that are read."""

    schema: defs.OpSchema | OpaqueSchema
    inputs: tuple[Value | None, ...]
    attributes: Attributes
    name: str = ""
    outputs: tuple[Value, ...] = field(default=(), init=False)
    serial: int = field(init=False)
    #: The graphs among the attributes: the branches of If, the body of Loop and of Scan.
    bodies: tuple[Subgraph, ...] = field(default=(), init=False)
    #: All that the node depends on: its inputs, and the captured values of its bodies.
    reads: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        reads = tuple([x for x in self.inputs if x is not None])
        if self.attributes and any(isinstance(a, Subgraph) for a in self.attributes.values()):
            bodies = tuple(a for _, a in sorted(self.attributes.items()) if isinstance(a, Subgraph))
            reads = tuple(dict.fromkeys((*reads, *(x for b in bodies for x in b.captured))))
            object.__setattr__(self, "bodies", bodies)
        object.__setattr__(self, "reads", reads)
        object.__setattr__(self, "serial", next(counter))

    def tap(self, inner: Value) -> Value:
        """A value inside a body as a further output of the node, which `build` adds where it is read.

        Loop and Scan stack it over the iterations. If gives it where its branch is taken, and else a value that means
        nothing.
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
        """Name of the operator, after its domain where it is opaque."""
        return self.schema.name

    @property
    def is_opaque(self) -> bool:
        """Whether the operator is known to a runtime alone, and not to ONNX."""
        return isinstance(self.schema, OpaqueSchema)

    @property
    def key(self) -> tuple[str, str]:
        """Domain and name of the operator as a model has them."""
        schema = self.schema
        return schema.domain, schema.operator if isinstance(schema, OpaqueSchema) else schema.name

    @property
    def domain(self) -> str:
        """Domain of the operator; the default domain is empty."""
        return self.schema.domain

    @property
    def is_random(self) -> bool:
        """Whether the node, or a node inside it, draws random numbers; an opaque node may."""
        return self.op_type in RANDOM or self.is_opaque or any(n.is_random for b in self.bodies for n in b.nodes)

    def attribute(self, name: str) -> Any:
        """An attribute, or the default that the specification gives it, or None."""
        return self.attributes[name] if name in self.attributes else defaults(self.schema).get(name)

    def protos(self) -> list[AttributeProto]:
        """The attributes as ONNX stores them, but for the bodies, whose names `build` gives."""
        if not self.attributes:
            return []
        return [self._proto(k, v) for k, v in sorted(self.attributes.items()) if not isinstance(v, Subgraph)]

    def _proto(self, name: str, value: object) -> AttributeProto:
        """An attribute as ONNX stores it."""
        kind = self.schema.attributes[name].type
        stored = numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        try:
            return helper.make_attribute(name, stored, attr_type=getattr(kind, "value"))  # noqa: B009 - not in the stubs
        except (AssertionError, TypeError, ValueError):
            wanted = str(kind).rpartition(".")[2]
            raise GraphError(f"The attribute {name!r} of {self.op_type} is of type {wanted}, and {value!r} was "
                             f"given.") from None

    def __repr__(self) -> str:
        return f"<Node {printable(self.name) or '(unnamed)'}: {printable(self.op_type)}>"


@dataclass(frozen=True, eq=False)
class Subgraph(Immutable):
    """A graph inside a node: a branch of If, the body of Loop or of Scan.

    A value that does not depend on the inputs of the body is *captured*: computed once, outside the node. A branch of
    If has no inputs; it computes the nodes that it alone needs, so that only the branch taken is computed.

    Parameters
    ----------
    inputs : sequence of Value
        The inputs of an iteration; like the inputs of a graph, they may be computed values.
    outputs : sequence of Value
        Its outputs.
    inside : frozenset of Node, optional
        The nodes written for the body, the only nodes that it may compute: `Subgraph.of` finds them. Without it, a body
        has the nodes that depend on its inputs, and a branch of If the nodes that neither the other branch nor the
        condition depends on.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
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
    def of(cls, function: Formula, *inputs: Value) -> Subgraph:
        """The body that a function of its inputs writes; values from outside the function are captured."""
        since = next(counter)
        with deferring():
            outputs = function(*inputs)
        return cls.since(since, inputs, [outputs] if isinstance(outputs, Value) else outputs)

    @classmethod
    def since(cls, serial: int, inputs: Sequence[Value], outputs: Sequence[Value]) -> Subgraph:
        """The body whose nodes are younger than a serial number."""
        cut = set(inputs)

        def is_outside(v: Value) -> bool:
            return v in cut or v.node is None or v.node.serial <= serial

        nodes = (v.node for v in walk_back(outputs, is_outside) if not is_outside(v))
        return cls(inputs, outputs, frozenset(node for node in nodes if node is not None))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the body, each after its inputs."""
        cut = set(self.inputs)
        every = self.inside is not None and not cut
        inner: dict[Node, None] = {}
        for node in topological(self.outputs, cut, self.inside):
            # A random node was written inside to be drawn in every iteration.
            if every or (self.inside is not None and node.is_random) or any(
                x in cut or x.node in inner for x in node.reads
            ):
                inner[node] = None
        return tuple(inner)

    @cached_property
    def own(self) -> frozenset[Node]:
        """The same nodes as a set."""
        return frozenset(self.nodes)

    @cached_property
    def captured(self) -> tuple[Value, ...]:
        """Values and constants that the body reads from outside."""
        nodes, cut = self.own, set(self.inputs)
        read = (x for xs in (*(node.reads for node in self.nodes), self.outputs) for x in xs)
        return tuple(dict.fromkeys(x for x in read if x not in cut and x.node not in nodes))


def topological(roots: Sequence[Value], cut: Collection[Value] = (), within: Collection[Node] | None = None,
                also: Mapping[Node, Sequence[Node]] | None = None) -> list[Node]:
    """Nodes that some values need, each after its inputs, in the order in which expressions were written.

    Parameters
    ----------
    roots : sequence of Value
        The computed values.
    cut : collection of Value
        Values that the walk does not go beyond.
    within : collection of Node, optional
        The nodes to which the walk is confined; all by default.
    also : dict of Node to sequence of Node, optional
        Further nodes that are to come before a node.

    Returns
    -------
    list of Node
    """
    cut = cut if isinstance(cut, (set, frozenset, Mapping)) else set(cut)
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


def walk_back(roots: Iterable[Value], stop: Callable[[Value], bool]) -> Iterator[Value]:
    """Values that some values are computed from, themselves first.

    Parameters
    ----------
    roots : iterable of Value
        The computed values.
    stop : callable
        Whether the walk does not go beyond a value.

    Yields
    ------
    Value
        A value that is read several times may come as often.
    """
    expanded: set[int] = set()
    stack = list(roots)
    while stack:
        v = stack.pop()
        yield v
        if v.node is not None and id(v.node) not in expanded and not stop(v):
            expanded.add(id(v.node))
            stack.extend(v.node.reads)

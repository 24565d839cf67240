"""Pickles of expressions: the nodes of a value as a flat list, as nodes that hold nodes would recurse."""

from __future__ import annotations

import copyreg
import threading
from collections.abc import Iterable
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from onnx import defs

from ortpartial.annotations import Reduced
from ortpartial.exceptions import GraphError

from .opaque_schema import OpaqueSchema
from .ops import attach_outputs
from .values import Node, Subgraph, Value

__all__ = ["NodeList"]


class _Alive(threading.local):
    """The lists alive in a thread, by the serial numbers of their nodes."""

    def __init__(self) -> None:
        self.lists: WeakValueDictionary[int, NodeList] = WeakValueDictionary()


_alive = _Alive()


class NodeList:
    """Nodes, each after its inputs, which a pickle holds once for all values that they compute.

    A pickler keeps alive the objects that it has written, so that a list is found again, by its nodes, as long as it is
    at work: values of a pickle share their nodes, as before.

    Parameters
    ----------
    nodes : iterable of Node
        The nodes.
    """

    def __init__(self, nodes: Iterable[Node]):
        self.nodes = list(nodes)
        self.positions = {node.serial: i for i, node in enumerate(self.nodes)}

    @classmethod
    def of(cls, values: Iterable[Value]) -> NodeList:
        """A list of the nodes that values need, except nodes in living lists."""
        nodes: dict[int, Node] = {}
        stack = [v.node for v in values if v.node is not None]
        while stack:
            node = stack.pop()
            if node.serial not in nodes and node.serial not in _alive.lists:
                nodes[node.serial] = node
                stack += _dependencies(node)
        # Nodes are numbered as they are made, so that each comes after its inputs.
        new = cls(nodes[serial] for serial in sorted(nodes))
        _alive.lists.update(dict.fromkeys(nodes, new))
        return new

    @classmethod
    def holding(cls, node: Node) -> NodeList:
        """The living list that holds a node, or a new list."""
        return _alive.lists.get(node.serial) or cls.of(node.outputs)

    def __reduce__(self) -> Reduced:
        return _restore_nodes, ([self._describe(node) for node in self.nodes],)

    def _describe(self, node: Node) -> Reduced:
        """A node without references to nodes."""
        schema = node.schema
        attributes = {k: a for k, a in node.attributes.items() if not isinstance(a, Subgraph)}
        bodies = {
            k: ([self.refer(v) for v in a.inputs], [self.refer(v) for v in a.outputs],
                None if a.inside is None else sorted(map(self._place, a.inside), key=str))
            for k, a in node.attributes.items() if isinstance(a, Subgraph)
        }
        outputs = [(v.type, v.hint) for v in node.outputs]
        described = schema if isinstance(schema, OpaqueSchema) else (schema.name, schema.domain, schema.since_version)
        return (described, [self.refer(v) for v in node.inputs], attributes,
                bodies, node.name, outputs)

    def _place(self, node: Node) -> Any:
        """Where a node is: its position here, or another list and the position there."""
        if node.serial in self.positions:
            return self.positions[node.serial]
        other = NodeList.holding(node)
        return other, other.positions[node.serial]

    def refer(self, v: Value | None) -> Any:
        """A value without references to nodes of this list."""
        return v if v is None or v.node is None else _reference(v, self._place(v.node), self.refer(v.inner))


def _reference(v: Value, place: object, inner: object) -> Reduced:
    """A value as an output of the node at a place; differences from that output are added."""
    if v.node is not None and v.inner is None and v is v.node.outputs[v.index]:
        return place, v.index
    return place, v.index, v.type, v.array, v.hint, inner


def _dependencies(node: Node) -> Iterable[Node]:
    """The nodes that a node refers to, inside its bodies as well."""
    values = [*node.inputs, *(v for body in node.bodies for v in (*body.inputs, *body.outputs))]
    nodes = [n for body in node.bodies for n in body.inside or ()]
    while values:
        v = values.pop()
        if v is not None and v.node is not None:
            nodes.append(v.node)
            values.append(v.inner)
    return nodes


def _restore_nodes(described: Iterable[Reduced]) -> NodeList:
    """The list of these nodes."""
    restored = NodeList([])
    for schema, inputs, attributes, bodies, name, outputs in described:
        for k, (body_inputs, body_outputs, inside) in bodies.items():
            attributes[k] = Subgraph([_resolve(v, restored) for v in body_inputs],
                                     [_resolve(v, restored) for v in body_outputs],
                                     None if inside is None else frozenset(_find(place, restored) for place in inside))
        schema = schema if isinstance(schema, OpaqueSchema) else _schema(*schema)
        node = Node(schema, tuple(_resolve(v, restored) for v in inputs), attributes, name)
        restored.nodes.append(attach_outputs(node, [kind for kind, _ in outputs], [hint for _, hint in outputs]))
    return restored


def _find(place: Any, nodes: NodeList) -> Node:
    """The node at a place."""
    other, position = (nodes, place) if isinstance(place, int) else place
    return other.nodes[position]


def _resolve(reference: object, nodes: NodeList) -> Any:
    """The value of a reference."""
    if not isinstance(reference, tuple):
        return reference
    place, index, *differing = reference
    node = _find(place, nodes)
    if not differing:
        return node.outputs[index]
    kind, array, hint, inner = differing
    return Value(kind, node, index, array, hint, _resolve(inner, nodes))


@cache
def _schema(name: str, domain: str, version: int) -> defs.OpSchema:
    """The schema of an operator in the version that a pickle names."""
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        raise GraphError(f"The pickle has version {version} of the operator {f'{domain}.' * bool(domain)}{name}, which "
                         f"is not known here; import what declares it first, or install a newer onnx.") from None


def _reduce_value(v: Value) -> Reduced:
    if v.node is None:
        return Value, (v.type, None, 0, v.array, v.hint)
    nodes = NodeList.holding(v.node)
    return _resolve, (nodes.refer(v), nodes)


def _reduce_node(node: Node) -> Reduced:
    nodes = NodeList.holding(node)
    return _find, (nodes.positions[node.serial], nodes)


copyreg.pickle(Value, _reduce_value)
copyreg.pickle(Node, _reduce_node)
copyreg.pickle(Subgraph, lambda body: (Subgraph, (body.inputs, body.outputs, body.inside)))

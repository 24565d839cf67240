"""Rewriting expressions: replace values and nodes by others, inside bodies as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ortpartial.annotations import Attributes

from .mode import deferring
from .ops import attach_outputs, make_node
from .values import Node, Subgraph, Value, counter, topological

__all__ = ["make_rewriter", "rewrite"]

Formula = Callable[[Node, Sequence["Value | None"]], "Sequence[Value] | None"]


def rewrite(outputs: Sequence[Value], new: Mapping[Value, Value], formula: Formula | None = None,
              cut: Sequence[Value] = (), within: frozenset[Node] | None = None) -> list[Value]:
    """Expressions with some values replaced by others, inside bodies as well.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.
    new : dict of Value to Value
        Replacements, by the values that they replace.
    formula : callable, optional
        From a node and its new inputs to values in place of its outputs, or None to keep the node.
    cut : sequence of Value
        Where the walk stops.
    within : frozenset of Node, optional
        The nodes that may be rewritten; all by default.

    Returns
    -------
    list of Value

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, y = variable("x", "float32", [2]), variable("y", "float32", [3])
    >>> rewrite([op.Exp(x)], {x: y})
    [<Value Exp float32[3]>]
    """
    current = make_rewriter(outputs, new, formula, cut, within)
    return [current(y) for y in outputs]


Current = Callable[[Value], Value]


def make_rewriter(outputs: Sequence[Value], new: Mapping[Value, Value], formula: Formula | None = None,
              cut: Sequence[Value] = (), within: frozenset[Node] | None = None) -> Current:
    """A function from each value of an expression to its replacement, for a rewrite of some outputs.

    Parameters
    ----------
    outputs, new, formula, cut, within : object
        As for `rewrite`.

    Returns
    -------
    callable
    """
    replaced = dict(new)
    remade: dict[Node, tuple[Node, Sequence[tuple[Subgraph, Current]]]] = {}

    def current(v: Value) -> Value:
        if v in replaced:
            return _stated(replaced[v], v)
        if v.inner is not None and v.node in remade:
            node, bodies = remade[v.node]
            inner = next((f(v.inner) for body, f in bodies if v.inner.node in body.own), v.inner)
            return Value(v.type, node, inner=inner)
        return v

    for node in topological(outputs, {*new, *cut}, within):
        inputs = [None if v is None else current(v) for v in node.inputs]
        instead = formula(node, inputs) if formula is not None else None
        if instead is not None:
            replaced.update(zip(node.outputs, instead, strict=False))
            continue
        attributes, bodies = dict(node.attributes), []
        for name, body in node.attributes.items():
            if isinstance(body, Subgraph):
                attributes[name], inside = _rewritten_body(body, current, formula)
                bodies.append((body, inside))
        if inputs != list(node.inputs) or any(attributes[k] is not node.attributes[k] for k in attributes):
            twin = _remake(node, inputs, attributes)
            replaced.update((old, _stated(y, old)) for y, old in zip(twin.outputs, node.outputs, strict=True))
            remade[node] = twin, bodies
    return current


def _remake(node: Node, inputs: Sequence[Value | None], attributes: Attributes) -> Node:
    """The node with other inputs, typed by inference where their types, or the numbers of a constant, differ."""
    hints = [v.hint for v in node.outputs]
    if node.bodies or not all(_is_alike(a, b, node.op_type) for a, b in zip(node.inputs, inputs, strict=True)):
        return make_node(node.schema, inputs, attributes, n_outputs=len(node.outputs), name=node.name, hints=hints)
    twin = Node(node.schema, tuple(inputs), attributes, node.name)
    return attach_outputs(twin, [v.type for v in node.outputs], hints)


#: Operators whose shape inference reads floating-point numbers; all others read whole numbers alone.
_SIZED_BY_FLOATS = frozenset({"Range", "Resize"})


def _is_alike(a: Value | None, b: Value | None, op_type: str) -> bool:
    """Whether shape inference cannot tell two inputs apart."""
    if a is b:
        return True
    if a is None or b is None or not (a.array is b.array or (a.is_float and op_type not in _SIZED_BY_FLOATS)):
        return False
    return a.type is b.type or a.type == b.type


def _stated(v: Value, old: Value) -> Value:
    """v with the shape of the value that it replaces, which may be stated there and not inferred."""
    return v if v.node is None else v.stated(old.shape)


def _rewritten_body(body: Subgraph, around: Current, formula: Formula | None) -> tuple[Subgraph, Current]:
    """A body with its captured values replaced, itself where none is, and the rewriter of its values."""
    captured = {v: w for v in body.captured if (w := around(v)) is not v}
    values = [*body.outputs, *(y for node in body.nodes for y in node.outputs)]
    since = next(counter)
    with deferring():
        current = make_rewriter(values, captured, formula, body.inputs, body.own)
    rewritten = [current(v) for v in values]
    if all(a is b for a, b in zip(rewritten, values, strict=True)):
        return body, current
    inside = Subgraph.since(since, body.inputs, rewritten).inside or frozenset()
    return Subgraph(body.inputs, rewritten[: len(body.outputs)], inside | body.own), current

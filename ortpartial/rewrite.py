"""What is an expression with other values in it? `rewritten` puts them there, inside bodies as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .graph import Node, Subgraph, Value, _serial, make_node, topological

__all__ = ["rewritten"]

Formula = Callable[[Node, Sequence["Value | None"]], "Sequence[Value] | None"]


def rewritten(outputs: Sequence[Value], new: Mapping[Value, Value], formula: Formula | None = None,
              cut: Sequence[Value] = (), within: frozenset[Node] | None = None) -> list[Value]:  # fmt: skip
    """Expressions with some values replaced by others, inside bodies as well.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.
    new : dict of Value to Value
        What is replaced by what.
    formula : callable, optional
        From a node and its new inputs to other values in place of its outputs, or None to leave it as it is.
    cut : sequence of Value
        Where the walk stops.
    within : frozenset of Node, optional
        The nodes that may be written anew; all by default.

    Returns
    -------
    list of Value

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, y = variable("x", "float32", [2]), variable("y", "float32", [3])
    >>> rewritten([op.Exp(x)], {x: y})
    [<Value Exp float32[3]>]
    """
    found = dict(new)
    bodies: dict[Node, tuple[Node, dict[Value, Value]]] = {}

    def current(v: Value | None) -> Value | None:
        if v is None:
            return None
        if v in found:
            return _stated(found[v], v)
        if v.inner is not None and v.node in bodies:
            made, inner = bodies[v.node]
            return Value(v.type, made, inner=_stated(inner[v.inner], v.inner) if v.inner in inner else v.inner)
        return v

    for node in topological(outputs, {*new, *cut}, within):
        inputs = [current(v) for v in node.inputs]
        replaced = formula(node, inputs) if formula is not None else None
        if replaced is not None:
            found.update(zip(node.outputs, replaced, strict=False))
            continue
        attributes, inner = dict(node.attributes), dict[Value, Value]()
        for name, body in node.attributes.items():
            if isinstance(body, Subgraph):
                attributes[name] = _rewritten_body(body, current, formula, inner)
        if inputs != list(node.inputs) or any(attributes[k] is not node.attributes[k] for k in attributes):
            hints = [v.hint for v in node.outputs]
            made = make_node(node.schema, inputs, attributes, n_outputs=len(node.outputs), name=node.name, hints=hints)
            stated = [y.stated(old.shape) for y, old in zip(made.outputs, node.outputs, strict=True)]
            found.update(zip(node.outputs, stated, strict=True))
            bodies[node] = made, inner
    return [v for y in outputs if (v := current(y)) is not None]


def _stated(v: Value, old: Value) -> Value:
    """v, with the shape of what it replaces: it may be known of that value alone, not of the output of its node."""
    return v if v.node is None else v.stated(old.shape)


def _rewritten_body(body: Subgraph, current: Callable[[Value | None], Value | None], formula: Formula | None,
                    inner: dict[Value, Value]) -> Subgraph:  # fmt: skip
    """A body with what it captures replaced, itself where nothing is; what became of its values goes to `inner`."""
    captured = {v: w for v in body.captured if (w := current(v)) is not None and w is not v}
    values = [y for node in body.nodes for y in node.outputs]
    since = next(_serial)
    made = rewritten([*body.outputs, *values], captured, formula, body.inputs, body.own)
    if all(a is b for a, b in zip(made, [*body.outputs, *values], strict=True)):
        return body
    n = len(body.outputs)
    inner.update(zip(values, made[n:], strict=True))
    written = Subgraph.since(since, body.inputs, made).inside or frozenset()
    return Subgraph(body.inputs, made[:n], written | body.own)

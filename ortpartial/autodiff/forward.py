"""Forward-mode differentiation: `jvp` pushes tangents through an expression, by the transposes of the rules of `grad`.

A rule pulls a cotangent back to the inputs of a node, dx = Jᵀ dy, and is linear in dy. Its gradient by dy, with a
tangent in place of the cotangent of dx, is therefore J dx: one table of rules serves both directions. Operators that
are linear in an input have a shorter form: the operator itself, applied to the tangent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from ortpartial.annotations import Inputs
from ortpartial.exceptions import GraphError
from ortpartial.graph import Node, Value, cast, constant, make_node, op, rewrite, shape_of, without_guards, zeros_like
from ortpartial.model import expand_body

from .grad import Composition, backpropagate, nodes_between, pull, to_values
from .registry import find_rule, has_rule, rule_of

__all__ = ["jvp"]

#: Operators that are linear in their first input, whatever the others.
_LINEAR = frozenset({
    "AveragePool", "Cast", "CastLike", "Col2Im", "Compress", "CumSum", "DepthToSpace", "Expand", "Flatten",
    "Gather", "GatherElements", "GatherND", "GlobalAveragePool", "Identity", "Neg", "ReduceMean", "ReduceSum",
    "Reshape", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu",
    "Unsqueeze"})

#: Operators that are linear in each of these inputs, and in the third, which is added to the rest.
_BILINEAR = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Mul"})

#: Operators whose Jacobian is symmetric: the rule, applied to a tangent, is the tangent.
_SYMMETRIC = frozenset({"Softmax"})

#: Operators that add up their inputs, with a sign each, repeated to one shape.
_SUMS = {"Add": (1, 1), "Sub": (1, -1)}

Tangents = Mapping[Value, Value]


def jvp(outputs: Value | Sequence[Value], wrt: Sequence[Value],
        tangents: Sequence[Value | np.ndarray | float]) -> list[Value]:
    """Directional derivatives ``Σ ∂output/∂x · <tangent of x>``, as expressions that can be differentiated again.

    Parameters
    ----------
    outputs : Value or sequence of Value
        The values to differentiate.
    wrt : sequence of Value
        The values to differentiate with respect to: inputs, constants or intermediate values.
    tangents : sequence of Value, numpy.ndarray or float
        A tangent for each value of `wrt`, of its shape.

    Returns
    -------
    list of Value
        A tangent per output, of its shape; zeros where an output does not depend on `wrt`.

    Raises
    ------
    GraphError
        There are more or fewer tangents than values, or a tangent has another shape than its value.
    NoGradientError
        An operator on a path from `wrt` to the outputs has neither a rule nor a body in the ONNX specification.

    Notes
    -----
    The transpose of a transpose, J = (Jᵀ)ᵀ, by which a rule of reverse mode serves forward mode, is that of [1]_.

    References
    ----------
    .. [1] R. Frostig, M. J. Johnson, D. Maclaurin, A. Paszke, A. Radul, "Decomposing reverse-mode automatic
       differentiation", 2021, arXiv:2105.09469.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, v = variable("x", "float32", ["N"]), variable("v", "float32", ["N"])
    >>> jvp(op.Sin(x), [x], [v])
    [<Value Mul float32[N]>]
    """
    outputs = (outputs,) if isinstance(outputs, Value) else to_values("jvp", "outputs", outputs)
    wrt = to_values("jvp", "wrt", wrt)
    if wrong := [v for v in (*outputs, *wrt) if not isinstance(v, Value)]:
        raise GraphError(f"jvp differentiates values by values, not {wrong[0]!r}; load(model).values has those of a "
                         f"model by name.")
    directions = to_values("jvp", "tangents", tangents)
    if len(directions) != len(wrt):
        raise GraphError(f"jvp: there are {len(wrt)} values in wrt and {len(directions)} tangents.")
    return push_forward(outputs, {x: _to_tangent(x, t) for x, t in zip(wrt, directions, strict=True)})


def _to_tangent(x: Value, tangent: Any) -> Value:
    """A tangent as a value of the dtype and the shape of x."""
    if not isinstance(tangent, (Value, Number, np.ndarray)):
        raise GraphError(f"jvp: tangents has {tangent!r}, where a value or an array was expected.")
    t = tangent if isinstance(tangent, Value) else constant(np.asarray(tangent, x.dtype))
    if t.dtype != x.dtype:
        raise GraphError(f"jvp: the tangent of {x!r} is {t!r}; cast it to {x.dtype}.")
    if t.shape is None or x.shape is None:
        return t
    if len(t.shape) != len(x.shape) or any(isinstance(a, int) and isinstance(b, int) and a != b
                                           for a, b in zip(t.shape, x.shape, strict=True)):
        raise GraphError(f"jvp: the tangent of {x!r} is {t!r}, and a tangent has the shape of its value.")
    return t


def push_forward(outputs: Sequence[Value], tangents: Tangents) -> list[Value]:
    """The tangents of outputs from those of other values."""
    order = nodes_between(outputs, set(tangents), ())
    pushed = _push_through(order, outputs, tangents)
    return [zeros_like(y) if (t := pushed.get(y)) is None else _fit(t, y) for y in outputs]


def _push_through(order: Sequence[Node], outputs: Sequence[Value], tangents: Tangents) -> dict[Value, Value]:
    """The tangents of all values of these nodes, which stand in topological order."""
    read: dict[Node, dict[Value, None]] = defaultdict(dict)
    for v in (*outputs, *(x for node in order for x in node.reads)):
        if v.node is not None and v.is_float:
            read[v.node][v] = None
    pushed = dict(tangents)
    for node in order:
        active = {x: pushed[x] for x in node.reads if x in pushed}
        if active and read[node]:
            pushed |= {y: t for y, t in _push(node, list(read[node]), active).items() if y not in tangents}
    return pushed


def _push(node: Node, ys: Sequence[Value], active: Tangents) -> Tangents:
    """Tangents of outputs of a node from those of its inputs."""
    kind, inputs = "" if node.domain or node.is_opaque else node.op_type, _read(node)
    if kind in _SUMS:
        return _push_sum(node, active)
    if kind == "Concat":
        return _apply(node, [active.get(x, zeros_like(x)) for x in inputs])
    if kind in _LINEAR and list(active) == [inputs[0]]:
        return _apply(node, [active[inputs[0]], *inputs[1:]])
    if kind in _SYMMETRIC:
        (d,) = pull(node, list(active.values()), [True])
        return {} if d is None else {node.outputs[0]: d}
    if kind in _BILINEAR and any(x in active for x in inputs[:2]):
        return _push_bilinear(node, active)
    if kind == "Einsum":
        return _push_einsum(node, active)
    inside = None if node.bodies else _expand(node)
    if inside is not None:
        pushed = _push_through(nodes_between(inside, set(active), set(node.reads)), inside, active)
        return {y: pushed[v] for y, v in zip(node.outputs, inside, strict=False) if v in pushed}
    return _transpose(node, ys, active)


def _read(node: Node) -> Inputs:
    """The inputs of a node, for formulas that know which of them may be missing."""
    return node.inputs


def _apply(node: Node, inputs: Sequence[Value | None]) -> Tangents:
    """The operator of a node on other inputs."""
    twin = make_node(node.schema, inputs, node.attributes, n_outputs=len(node.outputs))
    return {y: t.stated(y.shape) for y, t in zip(node.outputs, twin.outputs, strict=True) if y.is_float}


def _push_sum(node: Node, active: Tangents) -> Tangents:
    """The tangents of terms, added up."""
    y, total = node.outputs[0], None
    for x, sign in zip(_read(node), _SUMS[node.op_type], strict=True):
        if x in active:
            t = active[x] if sign > 0 or total is not None else -active[x]
            total = t if total is None else total + t if sign > 0 else total - t
    assert total is not None
    return {y: _fit(total, y)}


def _push_bilinear(node: Node, active: Tangents) -> Tangents:
    """The product rule: each factor in turn has its tangent in its place."""
    y, (a, b, *rest) = node.outputs[0], _read(node)
    added = active.get(rest[0]) if rest and rest[0] is not None else None
    total = None
    for factors in ([active[a], b] if a in active else None, [a, active[b]] if b in active else None):
        if factors is not None:
            t = _apply(node, [*factors, *([added] if added is not None and total is None else [])])[y]
            total = t if total is None else total + t
    assert total is not None
    return {y: total}


def _push_einsum(node: Node, active: Tangents) -> Tangents:
    """The product rule for any number of factors; a guard sees sums over nothing."""
    total, y, inputs = None, node.outputs[0], _read(node)
    for i, x in enumerate(inputs):
        if x in active:
            factors = [*inputs[:i], active[x], *inputs[i + 1 :]]
            t = op.Einsum(*factors, equation=node.attribute("equation")).stated(y.shape)
            total = t if total is None else total + t
    assert total is not None
    return {y: total}


def _expand(node: Node) -> Sequence[Value] | None:
    """The outputs of a node in other operators, where its gradient is that of these."""
    rule = find_rule(node)
    if isinstance(rule, Composition):
        ys = rule.compose(node, node.inputs)
        return None if any(y is None for y in ys) else [y for y in ys if y is not None]
    domain, op_type = node.key
    return None if rule is not None or has_rule(op_type, domain) else expand_body(node)


def _transpose(node: Node, ys: Sequence[Value], active: Tangents) -> Tangents:
    """Tangents by the gradient of a rule: that of Σ <rule(dy), tangent> by dy."""
    dys = {y: Value(y.type) for y in ys}
    with without_guards():
        pulled = _pull_back(node, dys, active)
    pairs = [(d, active[x]) for x, d in pulled.items() if d is not None]
    if not pairs:
        return {}
    cut = {*node.reads, *node.outputs}
    pushed = backpropagate([d for d, _ in pairs], [t for _, t in pairs], list(dys.values()), cut)
    # Linear formulas read of a cotangent no more than its shape, which is that of the output.
    pairs = [(y, t) for y, t in zip(ys, pushed, strict=True) if t is not None]
    shaped = rewrite([t for _, t in pairs], {d: y for y, d in dys.items()})
    return {y: t.stated(y.shape) for (y, _), t in zip(pairs, shaped, strict=True)}


def _pull_back(node: Node, dys: Tangents, active: Tangents) -> dict[Value, Value | None]:
    """Cotangents of the inputs of a node that have tangents, by its rule."""
    if node.bodies:
        return dict(zip(active, rule_of(node)(node, dys, list(active)), strict=False))
    flags = [x is not None and x in active for x in node.inputs]
    pulled: dict[Value, Value | None] = {}
    for x, d in zip(node.inputs, pull(node, [dys.get(y) for y in node.outputs], flags), strict=True):
        if x is not None and d is not None:
            pulled[x] = d if (former := pulled.get(x)) is None else former + d
    return pulled


def _fit(t: Value, y: Value) -> Value:
    """A tangent that may lack axes or sizes of 1, repeated to the shape of y."""
    if t.shape is not None and t.shape == y.shape and None not in t.shape:
        return t
    return cast(op.Expand(t, shape_of(y)), y).stated(y.shape)

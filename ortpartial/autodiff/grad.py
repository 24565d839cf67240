"""Reverse-mode differentiation: `grad` walks an expression backwards and returns its gradient as expressions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from ortpartial.annotations import Function, Inputs
from ortpartial.checks import to_tuple
from ortpartial.exceptions import GraphError, NoGradientError
from ortpartial.graph import Node, Value, gradient_reads, ones_like, unbroadcast, without_guards, zeros_like
from ortpartial.model import expand_body

from .registry import Gradients, Rule, find_rule, has_rule, is_constant, register_rule, rule_of
from .rounding import check_rounding, is_quantized_number

__all__ = ["composed", "expand_composition", "grad"]

#: A function from an objective and the weights to the gradients of the weights.
Gradient = Callable[[Value, Sequence[Value]], Sequence[Value]]


@dataclass(frozen=True)
class Composition(Rule):
    """A rule given as a composition of other operators: its gradient is the gradient of the composition."""

    def __call__(self, node: Node, dys: Any, wanted: Sequence[Any]) -> Gradients:
        """Cotangents of the node's inputs from the cotangents of its outputs."""
        ys = self.compose(node, node.inputs)
        if any(y is None and d is not None for y, d in zip(ys, dys, strict=False)):
            raise NoGradientError(f"{node!r}: the gradient of an output that is read is not known.")
        return _through(node, ys, dys)

    def compose(self, node: Node, inputs: Inputs) -> Sequence[Value | None]:
        """The outputs of the node, None where they are not known, for these inputs."""
        values = {"y": node.outputs[0], "node": node}
        keywords = {k: values[k] if k in values else node.attribute(k) for k in self.keywords}
        ys = self.function(*inputs, **keywords)
        return [ys] if isinstance(ys, Value) else list(ys)


def expand_composition(node: Node, inputs: Inputs) -> list[Value] | None:
    """The outputs of a node whose rule is a composition, in other operators.

    Parameters
    ----------
    node : Node
        The node.
    inputs : sequence of Value or None
        Its inputs.

    Returns
    -------
    list of Value or None
        None where the operator is no composition, or not all outputs are known.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float64", ["N"])
    >>> expand_composition(op.Exp(x).node, [x]) is None
    True
    """
    rule = find_rule(node)
    if not isinstance(rule, Composition):
        return None
    ys = rule.compose(node, inputs)[: len(node.outputs)]
    complete = [y for y in ys if y is not None]
    return complete if len(complete) == len(node.outputs) else None


def composed(op_type: str, domain: str = "") -> Callable[[Function], Function]:
    """Register an operator as a composition of others: its gradient is the gradient of the composition.

    The decorated function takes the inputs of the operator as positional parameters and its attributes, ``node``, or
    ``y`` (for the shape of the output) as keyword-only parameters. It returns the outputs, None for an output without a
    gradient.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    domain : str
        Its domain.

    Returns
    -------
    callable
        A decorator that returns the function unchanged.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> @composed("Softsign")
    ... def _(x):
    ...     return x / (1 + op.Abs(x))
    """
    return register_rule(Composition, op_type, domain)


def grad(
    outputs: Value | Sequence[Value], wrt: Sequence[Value], cotangents: Sequence[Value | None] | None = None
) -> list[Value]:
    """Gradient of ``Σ <cotangent, output>`` with respect to `wrt`, as expressions that can be differentiated again.

    Parameters
    ----------
    outputs : Value or sequence of Value
        The values to differentiate.
    wrt : sequence of Value
        The values to differentiate with respect to: inputs, constants or intermediate values.
    cotangents : sequence of Value, optional
        A cotangent per output, of its shape; by default 1, so that a scalar loss needs none.

    Returns
    -------
    list of Value
        A gradient per value of `wrt`, of its shape; zeros where no output depends on it.

    Raises
    ------
    NoGradientError
        An operator on a path from `wrt` to the outputs has neither a rule nor a body in the ONNX specification.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> (dx,) = grad(op.ReduceSum(x * x, keepdims=0), [x])
    >>> dx
    <Value Mul float32[N]>
    >>> model = build([x], {"x_grad": dx})
    """
    outputs = (outputs,) if isinstance(outputs, Value) else to_values("grad", "outputs", outputs)
    wrt = to_values("grad", "wrt", wrt)
    dys = (None,) * len(outputs) if cotangents is None else to_values("grad", "cotangents", cotangents)
    if wrong := [v for v in (*outputs, *wrt) if not isinstance(v, Value)]:
        raise GraphError(f"grad differentiates values by values, not {wrong[0]!r}; load(model).values has those of a "
                         f"model by name.")
    if wrong := [d for d in dys if d is not None and not isinstance(d, (Value, Number, np.ndarray))]:
        raise GraphError(f"grad: cotangents has {wrong[0]!r}, where a value or None was expected.")
    if len(dys) != len(outputs):
        raise GraphError(f"grad: there are {len(outputs)} outputs and {len(dys)} cotangents.")
    seeds = [ones_like(y) if d is None else d for y, d in zip(outputs, dys, strict=True)]
    return [zeros_like(x) if d is None else d for x, d in zip(wrt, backpropagate(outputs, seeds, wrt), strict=True)]


def to_values(function: str, name: str, values: Any) -> tuple[Any, ...]:
    """The values of an argument of `grad` or `jvp`."""
    if isinstance(values, Value) or (listed := to_tuple(values)) is None:
        example = "grad(y, [x])" if function == "grad" else "jvp(y, [x], [v])"
        raise GraphError(f"{function}: {name} is a list of values, not {values!r}; write {example}.")
    return listed


def backpropagate(
    outputs: Sequence[Value], seeds: Gradients, wrt: Sequence[Value], cut: Collection[Value] = ()
) -> list[Value | None]:
    """Cotangents of `wrt`, None where there is none; paths end at the values of `cut`."""
    order = nodes_between(outputs, set(wrt), cut)
    check_rounding(order, outputs, wrt, cut)
    walk = _Walk(order, wrt)
    for y, seed in zip(outputs, seeds, strict=True):
        walk.add(y, seed)
    with without_guards():
        for node in reversed(order):
            if node.bodies:
                walk.visit_control(node)
            else:
                walk.visit(node)
    return [walk.cotangent(x) for x in wrt]


class _Walk:
    """A walk from the outputs back to the values of `wrt`: the cotangents, summed over the paths walked so far."""

    def __init__(self, order: Sequence[Node], wrt: Sequence[Value]) -> None:
        self.nodes = set(order)
        self.wrt = list(dict.fromkeys(wrt))
        self.active = {*wrt, *(y for node in order for y in node.outputs if y.is_float)}
        self.sums: dict[Value, Value] = {}
        #: Cotangents of values of `wrt` that are computed in a branch, from that branch.
        self.inside: dict[Value, Value] = {}
        #: Values tapped from the body of a node that have a cotangent.
        self.taps: dict[Node, list[Value]] = {}

    def is_active(self, x: Value) -> bool:
        """Whether the cotangent of a value is needed."""
        return x in self.active or (x.inner is not None and x.node in self.nodes and x.is_float)

    def add(self, x: Value, d: Value | None) -> None:
        """Add the cotangent of a value that came along a path."""
        if d is None or not self.is_active(x):
            return
        if x.inner is not None and x.node is not None and x not in self.sums:
            self.taps.setdefault(x.node, []).append(x)
        self.sums[x] = self.sums[x] + d if x in self.sums else d

    def cotangent(self, x: Value) -> Value | None:
        """The cotangent of a value of `wrt`, None where there is none."""
        if x in self.inside and x in self.sums:
            return self.sums[x] + self.inside[x]
        return self.inside.get(x, self.sums.get(x))

    def visit(self, node: Node) -> None:
        """Pull the cotangents of a node's outputs back to its inputs."""
        dys = [self.sums.get(y) for y in node.outputs]
        if all(d is None for d in dys):
            return
        self._check_tensors(node)
        wanted = [x is not None and x.is_float and self.is_active(x) for x in node.inputs]
        for x, d in zip(node.inputs, pull(node, dys, wanted), strict=True):
            if x is not None and d is not None:
                self.add(x, d)

    def _check_tensors(self, node: Node) -> None:
        """Raise an error for a node, or a body of it, that reads a sequence on a path from `wrt`."""
        for x in node.reads:
            if not x.type.tensor_type.elem_type and x.node in self.nodes:
                raise NoGradientError(
                    f"{node!r} reads {x!r}, a sequence or a value of unknown type, and a gradient goes through "
                    f"tensors alone. Write it with tensors, or leave the weights before this node out of "
                    f"weights_to_train."
                )

    def visit_control(self, node: Node) -> None:
        """Pull the cotangents of an If, a Loop or a Scan back to its inputs and to the captures of its bodies."""
        dys = {y: self.sums[y] for y in (*node.outputs, *self.taps.get(node, ())) if y in self.sums}
        if not dys:
            return
        self._check_tensors(node)
        inside = [x for x in self.wrt if _is_inside(x, node)]
        wanted = [*(x for x in node.reads if x.is_float and self.is_active(x)), *inside]
        for x, d in zip(wanted, rule_of(node)(node, dys, wanted), strict=False):
            if x not in inside:
                self.add(x, d)
            elif d is not None:
                self.inside[x] = self.inside[x] + d if x in self.inside else d


def _is_inside(x: Value, node: Node) -> bool:
    """Whether a value is computed in a branch of an If; it may be computed outside of it as well."""
    return node.op_type == "If" and any(x.node in body.own for body in node.bodies)


def nodes_between(outputs: Iterable[Value], targets: set[Value], cut: Collection[Value]) -> list[Node]:
    """Nodes on the differentiable paths from the targets to the outputs, in topological order."""
    order: list[Node] = []
    depends: dict[int, bool] = {}
    stack: list[tuple[Node, bool]] = [(y.node, False) for y in outputs if y.node and y not in cut]
    while stack:
        node, ready = stack.pop()
        if id(node) in depends:
            continue
        inputs = gradient_reads(node)
        if not ready:
            stack.append((node, True))
            if not _ends(node):
                stack.extend((x.node, False) for x in inputs if x.node and x not in cut)
            continue
        depends[id(node)] = not _ends(node) and any(
            x in targets or (carries_gradient(x) and x.node is not None and depends.get(id(x.node), False))
            for x in inputs)
        if node.bodies and not depends[id(node)]:
            depends[id(node)] = any(_is_inside(x, node) for x in targets)
        if depends[id(node)]:
            order.append(node)
    return order


def _ends(node: Node) -> bool:
    """Whether the gradient of a node is zero by nature.

    An opaque node of whole numbers computes indices or hashes, unless it reads numbers of a quantization.
    """
    return is_constant(node) or (node.is_opaque and not any(map(carries_gradient, node.outputs))
                                 and not any(map(is_quantized_number, (*node.reads, *node.outputs))))


def carries_gradient(x: Value) -> bool:
    """Whether a value may carry a gradient: a float tensor, or a sequence or unknown type, which is refused later."""
    return x.is_float or not x.type.tensor_type.elem_type


def pull(node: Node, dys: Gradients, wanted: Sequence[bool]) -> Gradients:
    """Cotangents of a node's inputs, by its rule or through its body in the specification; an error without either."""
    domain, op_type = node.key
    body = None if has_rule(op_type, domain) else expand_body(node)
    pulled = rule_of(node)(node, dys, wanted) if body is None else _through(node, body, dys)
    return [None if not w or x is None or d is None else unbroadcast(d, x)
            for x, d, w in zip(node.inputs, pulled, wanted, strict=True)]


def _through(node: Node, body: Sequence[Value | None], dys: Gradients) -> Gradients:
    """Cotangents of a node's inputs through the expressions that compute its outputs."""
    pairs = [(y, d) for y, d in zip(body, dys, strict=False) if y is not None and d is not None]
    inputs = list(dict.fromkeys(x for x in node.inputs if x is not None))
    ys, seeds = [y for y, _ in pairs], [d for _, d in pairs]
    cotangents = dict(zip(inputs, backpropagate(ys, seeds, inputs, set(inputs)), strict=True))
    # An input that stands twice gets its cotangent once.
    return [None if x is None else cotangents.pop(x, None) for x in node.inputs]

"""How does a loss change with its arguments? `grad` walks an expression backwards and writes the answer as another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, ones_like, unbroadcast, zeros_like
from ortpartial.model import expand_body

from .registry import Gradients, Rule, has_rule, is_constant, register_rule, rule_of

__all__ = ["composed", "grad"]

#: From the objective and the weights to the gradients.
Gradient = Callable[[Value, Sequence[Value]], Sequence[Value]]


@dataclass(frozen=True)
class Composition(Rule):
    """What an operator computes, in operators that have a gradient: the walk through them is the rule."""

    def __call__(self, node: Node, dys: Any, wanted: Sequence[Value] = ()) -> Gradients:
        """Cotangents of the node's inputs from those of its outputs."""
        own = {"y": node.outputs[0], "node": node}
        keywords = {k: own[k] if k in own else node.attribute(k) for k in self.keywords}
        ys = self.function(*node.inputs, **keywords)
        return _through(node, [ys] if isinstance(ys, Value) else ys, dys)


def composed(op_type: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what an operator computes, in other operators: its gradient is the gradient of that.

    The decorated function takes the inputs of the operator as positional parameters and its attributes, ``node``, or
    ``y`` for the shape of its output, as keyword-only ones, and returns the outputs, None for one without a gradient.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    domain : str
        Its domain.

    Returns
    -------
    callable
        A decorator that gives the function back.

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
    """Gradient of ``Σ <cotangent, output>`` by each value of `wrt`, as expressions that can be differentiated again.

    Parameters
    ----------
    outputs : Value or sequence of Value
        What is differentiated.
    wrt : sequence of Value
        By what: inputs, constants or intermediate values.
    cotangents : sequence of Value, optional
        One an output, of its shape; ones where left out, so that a scalar loss needs none.

    Returns
    -------
    list of Value
        One a value of `wrt`, of its shape; zeros where no output depends on it.

    Raises
    ------
    NoGradientError
        An operator on the way has no rule and no body.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> (dx,) = grad(op.ReduceSum(x * x, keepdims=0), [x])
    >>> dx
    <Value Add float32[N]>
    >>> model = build([x], {"x_grad": dx})
    """
    outputs = [outputs] if isinstance(outputs, Value) else list(outputs)
    given = list(cotangents) if cotangents is not None else [None] * len(outputs)
    seeds = [ones_like(y) if d is None else d for y, d in zip(outputs, given, strict=True)]
    return [zeros_like(x) if d is None else d for x, d in zip(wrt, backpropagate(outputs, seeds, wrt), strict=True)]


def backpropagate(
    outputs: Sequence[Value], seeds: Gradients, wrt: Sequence[Value], cut: Collection[Value] = ()
) -> list[Value | None]:
    """Cotangents of `wrt`, None where there is none; paths end at the values of `cut`."""
    targets = set(wrt)
    order = nodes_between(outputs, targets, cut)
    active = targets | {y for node in order for y in node.outputs if y.is_float}
    nodes = set(order)
    control = {node for node in order if node.bodies}
    taps: dict[Node, list[Value]] = {}
    total: dict[Value, Value] = {}
    hidden: dict[Value, Value] = {}

    def is_active(x: Value) -> bool:
        return x in active or (x.inner is not None and x.node in control and x.is_float)

    def add(x: Value | None, d: Value | None) -> None:
        if x is not None and d is not None and (x in active or is_active(x)):
            if x.inner is not None and x.node is not None and x not in total:
                taps.setdefault(x.node, []).append(x)
            total[x] = total[x] + d if x in total else d

    for y, seed in zip(outputs, seeds, strict=True):
        add(y, seed)
    for node in reversed(order):
        if node.bodies:
            given = {y: total[y] for y in (*node.outputs, *taps.get(node, ())) if y in total}
            inside = [x for x in dict.fromkeys(wrt) if _is_inside(x, node)]
            asked = [*(x for x in node.reads if x.is_float and is_active(x)), *inside]
            for v, g in zip(asked, rule_of(node)(node, given, asked) if given else (), strict=False):
                if v in inside and g is not None:
                    hidden[v] = hidden[v] + g if v in hidden else g
                else:
                    add(v, g)
            continue
        dys = [total.get(y) for y in node.outputs]
        if all(d is None for d in dys):
            continue
        wanted = [x is not None and x.is_float and (x in active or is_active(x)) for x in node.inputs]
        if lost := [x for x in node.inputs if x is not None and not x.type.tensor_type.elem_type and x.node in nodes]:
            raise NoGradientError(
                f"{node!r} reads {lost[0]!r}, a sequence or a value of unknown type, and a gradient goes through "
                f"tensors alone. Write it with tensors, or leave the weights before this node out of weights_to_train."
            )
        for x, d, w in zip(node.inputs, _pull(node, dys, wanted), wanted, strict=True):
            if w and x is not None and d is not None:
                add(x, unbroadcast(d, x))
    if not hidden:
        return [total.get(x) for x in wrt]
    return [total[x] + hidden[x] if x in hidden and x in total else hidden.get(x, total.get(x)) for x in wrt]


def _is_inside(x: Value, node: Node) -> bool:
    """Whether a value is computed in a branch of If: elsewhere, too, if something else reads it."""
    return node.op_type == "If" and any(x.node in body.own for body in node.bodies)


def nodes_between(outputs: Iterable[Value], targets: set[Value], cut: Collection[Value]) -> list[Node]:
    """Nodes between the targets and the outputs, each after those it reads."""
    order: list[Node] = []
    depends: dict[int, bool] = {}
    stack: list[tuple[Node, bool]] = [(y.node, False) for y in outputs if y.node and y not in cut]
    while stack:
        node, ready = stack.pop()
        if id(node) in depends:
            continue
        inputs = node.reads
        if not ready:
            stack.append((node, True))
            if not is_constant(node):
                stack.extend((x.node, False) for x in inputs if x.node and x not in cut)
            continue
        differentiable = not is_constant(node)
        depends[id(node)] = differentiable and any(
            x in targets or (_carries(x) and x.node is not None and depends.get(id(x.node), False)) for x in inputs
        )
        if node.bodies and not depends[id(node)]:
            depends[id(node)] = any(_is_inside(x, node) for x in targets)
        if depends[id(node)]:
            order.append(node)
    return order


def _carries(x: Value) -> bool:
    """Whether a gradient goes through a value, or would if it were not a sequence or of a type that nobody knows."""
    return x.is_float or not x.type.tensor_type.elem_type


def _pull(node: Node, dys: Gradients, wanted: Sequence[bool]) -> Gradients:
    """Cotangents of a node's inputs: by its rule, else through its body, else an error."""
    body = None if has_rule(node.op_type, node.domain) else expand_body(node)
    if body is None:
        return rule_of(node)(node, dys)
    found = _through(node, body, dys)
    return [d if w else None for d, w in zip(found, wanted, strict=True)]


def _through(node: Node, body: Sequence[Value | None], dys: Gradients) -> Gradients:
    """Cotangents of a node's inputs through other operators that compute its outputs."""
    pairs = [(y, d) for y, d in zip(body, dys, strict=False) if y is not None and d is not None]
    given = list(dict.fromkeys(x for x in node.inputs if x is not None))
    ys, seeds = [y for y, _ in pairs], [d for _, d in pairs]
    found = dict(zip(given, backpropagate(ys, seeds, given, set(given)), strict=True))
    # An input that is given twice gets its cotangent once.
    return [None if x is None else found.pop(x, None) for x in node.inputs]

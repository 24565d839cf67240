"""The registry of differentiation rules: `vjp`, `elementwise` and `no_gradient` register them by operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import defs

from ortpartial.annotations import Function
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import OPSET, Node, Value, defaults, schema_of
from ortpartial.model import expand_body

__all__ = ["elementwise", "gradient_support", "has_rule", "no_gradient", "vjp"]

Gradients = Sequence["Value | None"]


@dataclass(frozen=True)
class Rule:
    """A vector-Jacobian product, the keyword-only parameters that it takes, and the attributes it knows, if not all."""

    function: Callable[..., Any]
    keywords: tuple[str, ...]
    attributes: frozenset[str] | None = None

    def __call__(self, node: Node, dys: Any, wanted: Sequence[Any]) -> Gradients:
        """Cotangents of the node's inputs from the cotangents of its outputs.

        `wanted` says of each input whether its cotangent is needed; of a node with bodies, it is the values needed.
        """
        if node.bodies:
            return tuple(self.function(*node.inputs, node=node, dys=dys, wanted=wanted))
        if "dys" not in self.keywords and any(d is not None for d in dys[1:]):
            raise NoGradientError(f"{node!r}: the gradient of an output other than the first is not known.")
        if self.attributes is not None and "node" not in self.keywords:
            self._check_attributes(node, self.attributes)
        values = {"y": node.outputs[0], "ys": node.outputs, "dy": dys[0], "dys": dys, "node": node, "wanted": wanted}
        keywords = {k: values[k] if k in values else node.attribute(k) for k in self.keywords}
        result = self.function(*node.inputs, **keywords)
        result = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        # A node may leave out optional inputs, and a rule the last inputs, which then have no gradient.
        return result[: len(node.inputs)] + (None,) * (len(node.inputs) - len(result))

    def _check_attributes(self, node: Node, known: Collection[str]) -> None:
        """Raise an error for an attribute that a later opset than that of the rule has added."""
        for name, value in node.attributes.items():
            if name not in known and value != defaults(node.schema).get(name):
                raise NoGradientError(f"{node!r} has the attribute {name!r}, which the rule of its gradient does not "
                                      f"know.")


#: Operators that onnx 1.20, the oldest that is supported, does not know: where they are unknown, they have no rule.
YOUNG = frozenset({"CausalConvWithState", "CumProd"})

RULES: dict[tuple[str, str], Rule] = {}
CONSTANT: set[tuple[str, str]] = set()

#: Of operators that have no rule, the reason, with advice.
REASONS: dict[tuple[str, str], str] = {}

#: Domains of operators that read and write the layouts of onnxruntime, in which weights have another order.
LAYOUTS = frozenset({"com.microsoft.nchwc", "com.ms.internal.nhwc"})


def vjp(op_type: str, domain: str = "") -> Callable[[Function], Function]:
    """Register the vector-Jacobian product of an operator.

    The decorated function is the formula and nothing else. Its positional parameters are the operator's inputs; its
    keyword-only parameters are ``y`` or ``ys`` (outputs), ``dy`` or ``dys`` (their cotangents, None for an unused
    output), ``node``, or attributes by their name in the specification, with its defaults. It returns a cotangent per
    input, in order; None, or leaving out the last, means "no gradient by nature". Do not sum over broadcast axes:
    `grad` does it.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    domain : str
        Its domain. An operator of a domain that ONNX does not know needs no schema.

    Returns
    -------
    callable
        A decorator that returns the function unchanged.

    Raises
    ------
    TypeError
        At import, for a keyword that is no attribute of the operator or for too many positional parameters.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> @vjp("Identity")
    ... def _(x, *, dy):
    ...     return dy
    """
    return register_rule(Rule, op_type, domain)


def register_rule(kind: type[Rule], op_type: str, domain: str) -> Callable[[Function], Function]:
    """A decorator that registers a function as a rule of the given class."""

    def register(function: Function) -> Function:
        parameters = inspect.signature(function).parameters.values()
        keywords = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        if domain and not defs.has(op_type, domain):  # an opaque operator, of which each node has its own attributes
            RULES[domain, op_type] = kind(function, keywords)
            return function
        if not domain and op_type in YOUNG and not defs.has(op_type):
            return function
        schema = schema_of(op_type, domain, OPSET)
        allowed = {"y", "ys", "dy", "dys", "node", "wanted", *schema.attributes}
        if wrong := set(keywords) - allowed:
            raise TypeError(f"The rule of {op_type} asks for {sorted(wrong)}, which are no attributes of it.")
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        if len(positional) > schema.max_input:
            raise TypeError(f"The rule of {op_type} takes {len(positional)} inputs, the operator {schema.max_input}.")
        RULES[domain, op_type] = kind(function, keywords, frozenset(schema.attributes))
        return function

    return register


def elementwise(op_type: str, *partials: Callable[..., Value], domain: str = "") -> None:
    """Register an elementwise operator by its partial derivatives.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    *partials : callable
        For each input a function of the inputs and the output, which returns the partial derivative by that input.
    domain : str
        Its domain.

    Examples
    --------
    >>> elementwise("Tanh", lambda x, y: 1 - y * y)
    """

    def function(*inputs: Value, y: Value, dy: Value, wanted: Sequence[bool]) -> Gradients:
        return [dy * partial(*inputs, y) if w else None for partial, w in zip(partials, wanted, strict=False)]

    vjp(op_type, domain)(function)


def no_gradient(*op_types: str, domain: str = "") -> None:
    """Register operators without a gradient: constant almost everywhere, or not of real numbers.

    Parameters
    ----------
    *op_types : str
        Names of the operators.
    domain : str
        Their domain.

    Examples
    --------
    >>> no_gradient("Shape")
    """
    CONSTANT.update((domain, o) for o in op_types)


def refuse_gradient(*op_types: str, domain: str = "", reason: str) -> None:
    """Say why operators have no rule, which a `NoGradientError` repeats.

    Parameters
    ----------
    *op_types : str
        Names of the operators.
    domain : str
        Their domain.
    reason : str
        The reason, with advice: the end of a sentence.

    Examples
    --------
    >>> refuse_gradient("Roll", domain="my.domain", reason="it throws dice; export the model without it")
    """
    REASONS.update({(domain, o): reason for o in op_types})


def has_rule(op_type: str, domain: str = "") -> bool:
    """Whether an operator has a rule or is registered as without a gradient.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    domain : str
        Its domain.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_rule("MatMul")
    True
    """
    return (domain, op_type) in RULES or (domain, op_type) in CONSTANT


def gradient_support(node: Node) -> str:
    """How a node is differentiated.

    Parameters
    ----------
    node : Node
        The node.

    Returns
    -------
    str
        ``"rule"``; ``"body"``, through its body in the specification; ``"zero"``, by nature; or ``"none"``, not at all.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> [gradient_support(y.node) for y in (op.Exp(x), op.Mish(x), op.Floor(x))]
    ['rule', 'body', 'zero']
    """
    if is_constant(node):
        return "zero"
    if find_rule(node) is not None:
        return "rule"
    return "none" if expand_body(node) is None else "body"


def is_constant(node: Node) -> bool:
    """Whether the gradient of a node is zero by nature."""
    return node.key in CONSTANT


def find_rule(node: Node) -> Rule | None:
    """The rule of a node's operator; None where it has none, or where the node has more than the rule knows of."""
    rule = RULES.get(node.key)
    return None if rule is None or (node.is_opaque and rule.attributes is not None) else rule


def rule_of(node: Node) -> Rule:
    """The rule of a node's operator; raises where it has none."""
    rule = find_rule(node)
    if rule is None:
        domain, op_type = node.key
        if node.key in RULES:
            raise NoGradientError(f"{node!r} has no gradient: it has inputs, outputs or attributes that the rule of "
                                  f"{domain}.{op_type} does not know.")
        if domain in LAYOUTS:
            raise NoGradientError(f"{node!r} has no gradient: onnxruntime has put it into the memory layout of one "
                                  f"machine, as it does at ORT_ENABLE_ALL; save the optimized model at "
                                  f"ORT_ENABLE_EXTENDED instead, or train the original.")
        if node.key in REASONS:
            raise NoGradientError(f"{node!r} has no gradient: {REASONS[node.key]}, or leave the weights before this "
                                  f"node out of weights_to_train.")
        arguments = f"{op_type!r}, {domain!r}" if domain else repr(op_type)
        raise NoGradientError(
            f"{node!r} has no gradient: operator {domain + '.' if domain else ''}{op_type} has neither a rule nor a "
            f"body in the ONNX specification. Register one with ortpartial.vjp({arguments}), or leave the weights "
            f"before this node out of weights_to_train."
        )
    return rule

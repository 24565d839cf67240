"""Trainable weights: the initializers that a gradient reaches, and those that the caller names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortpartial.exceptions import ModelError
from ortpartial.graph import Value, topological
from ortpartial.model import Model

from .grad import _carries, nodes_between
from .registry import is_constant

__all__ = ["find_reached_weights", "find_trainable", "resolve_weights"]


def find_reached_weights(outputs: Sequence[Value], targets: Iterable[Value]) -> set[Value]:
    """The targets on a differentiable path to the outputs; their gradient may still be zero."""
    candidates = set(targets)
    return candidates & {*outputs, *(x for node in nodes_between(outputs, candidates, ()) for x in node.reads)}


def find_trainable(outputs: Iterable[Value]) -> set[Value]:
    """Constants of rank one or more on a differentiable path to the outputs, running statistics excepted."""
    weights: set[Value] = set()
    seen: set[int] = set()
    stack = list(outputs)
    while stack:
        v = stack.pop()
        if v.array is not None and v.is_float and v.array.ndim:
            weights.add(v)
        if v.node is None or id(v.node) in seen or is_constant(v.node):
            continue
        seen.add(id(v.node))
        inputs = v.node.inputs[:3] if v.node.op_type == "BatchNormalization" else v.node.inputs
        stack.extend(x for x in inputs if x is not None and _carries(x))
        stack.extend(y for body in v.node.bodies for y in body.outputs if y.is_float)
    return weights


def resolve_weights(model: Model, weights: Sequence[str] | None, outputs: Sequence[str]) -> list[str]:
    """Names of the initializers to train.

    Parameters
    ----------
    model : Model
        The model.
    weights : sequence of str, optional
        The names, in any order. By default the float initializers of rank one or more on a differentiable path to the
        outputs, except BatchNormalization's mean and variance.
    outputs : sequence of str
        The outputs to train.

    Returns
    -------
    list of str

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, or there is nothing to train.
    """
    if weights is None:
        trainable = find_trainable(model.outputs[o] for o in outputs)
        if chosen := [n for n, v in model.initializers.items() if v in trainable]:
            return chosen
        raise ModelError(_explain_nothing(model, outputs))
    names = [weights] if isinstance(weights, str) else list(weights)
    floats = [n for n, v in model.initializers.items() if v.is_float]
    for n in names:
        if n not in floats:
            problem = "holds no real numbers" if n in model.initializers else "is no initializer of the model"
            listed = ", ".join(map(repr, floats)) or "none"
            raise ModelError(f"The weight {n!r} {problem}; its float initializers are {listed}.")
    if len(set(names)) < len(names):
        raise ModelError(f"The weight {next(n for n in names if names.count(n) > 1)!r} is given twice.")
    if not names:
        raise ModelError("weights_to_train is empty; name at least one weight, or leave it out to train all.")
    return names


def _explain_nothing(model: Model, outputs: Sequence[str]) -> str:
    """Why there is nothing to train: the operators at which gradients end, or a model without weights."""
    if not outputs:
        return "The model has no output of real numbers, so that there is nothing to train."
    problem = f"No float initializer of rank one or more leads to the outputs {', '.join(map(repr, outputs))}"
    if not any(v.is_float for v in model.initializers.values()):
        return (f"{problem}, as the model has none at all; if its weights are attributes of operators, as those of "
                f"trees are, export it in another form.")
    ends = [node for node in topological([model.outputs[o] for o in outputs]) if is_constant(node) and any(
        x is not None and x.is_float and (x.node is not None or x.array is not None) for x in node.inputs)]
    if ends:
        where = f" (node {ends[-1].name!r})" if ends[-1].name else ""
        return f"{problem} differentiably: {ends[-1].op_type}{where} has no gradient; train an output before it."
    return f"{problem}; name the weights to train."

"""Eager evaluation: nodes computed as they are made, so that expressions can be printed, and stepped through."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from onnx import defs, helper

from ortpartial.checks import to_generator
from ortpartial.exceptions import GraphError

from .arithmetic import complete_arithmetic
from .casting import to_dtype
from .mode import MODE, switched
from .traits import RANDOM
from .values import Node, Value

__all__ = ["evaluate", "evaluating", "find_numbers", "register_evaluator", "with_numbers"]

#: The numbers of a value: an array, or a list of arrays for a sequence.
Numbers: TypeAlias = Any

#: From a node, the outputs that are asked for, the numbers of its inputs, and the seed of its random operators, to the
#: numbers of these outputs.
Evaluator = Callable[[Node, Sequence[Value], Mapping[Value, Numbers], int], Sequence[Numbers]]

#: The function that computes a node, registered by a runtime.
_EVALUATORS: list[Evaluator] = []


def evaluating(seed: int | Sequence[int] | None = None) -> AbstractContextManager[None]:
    """A context in which a node is computed as soon as it is made, if all that it reads has numbers.

    Constants have numbers, and so have inputs made by `with_numbers`; a value that depends on another `variable` is not
    computed. A value that is computed shows its numbers when it is printed, and ``value.numpy()``, ``value.item()``,
    ``float(value)``, ``int(value)``, ``bool(value)`` and ``np.asarray(value)`` return them. It remains an expression:
    `grad` differentiates it, and `build` writes the same model.

    Of an If, the branch that is taken is computed. Loop and Scan are computed as a whole, so that values inside of
    their bodies have no numbers. Contexts nest and hold for their thread.

    Parameters
    ----------
    seed : int or sequence of int, optional
        Seed of random operators that have none of their own; each draws once.

    Returns
    -------
    context manager

    Raises
    ------
    ModelError
        A node cannot be computed from these numbers: raised in the line that makes it.

    Examples
    --------
    >>> from ortpartial.autodiff import grad
    >>> from ortpartial.graph import variable
    >>> with evaluating():
    ...     x = with_numbers(variable("x", "float32", [3]), [1, 2, 3])
    ...     y = (x * x).sum()
    ...     (dx,) = grad(y, [x])
    >>> float(y), dx.numpy()
    (14.0, array([2., 4., 6.], dtype=float32))
    >>> y
    <Value ReduceSum float32[] 14.>
    """
    random = MODE.random if seed is None and MODE.random is not None else to_generator("seed", seed)
    return switched(is_on=True, is_deferred=False, random=random)


def register_evaluator(evaluator: Evaluator) -> None:
    """Let a runtime compute the nodes that are made while `evaluating`.

    Parameters
    ----------
    evaluator : callable
        From a node, a sequence of its outputs, the numbers of `Node.reads` by value, and a seed, to the numbers of
        these outputs: arrays, and lists of arrays for sequences.
    """
    _EVALUATORS.append(evaluator)


def with_numbers(value: Value, numbers: object) -> Value:
    """An input that holds numbers, for eager evaluation.

    It is no constant: a gradient goes to it, and `build` takes it among the inputs.

    Parameters
    ----------
    value : Value
        A `variable`, whose dtype and name it takes.
    numbers : array_like
        Its numbers, in a shape that the variable allows.

    Returns
    -------
    Value
        Of the shape of the numbers.

    Raises
    ------
    GraphError
        The numbers do not fit the dtype or the shape, or the value is computed.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> with_numbers(variable("x", "float32", ["N"]), [1, 2])
    <Value x float32[2] [1. 2.]>
    """
    if value.node is not None or value.array is not None:
        raise GraphError(f"with_numbers gives numbers to an input, a `variable`, and {value!r} is none.")
    array = to_dtype(numbers, value.dtype, f"The input {value.hint!r}", GraphError)
    sizes = value.shape if value.shape is not None else array.shape
    if len(sizes) != array.ndim or any(isinstance(m, int) and m != n for m, n in zip(sizes, array.shape, strict=True)):
        raise GraphError(f"The input {value!r} does not take numbers of the shape {list(array.shape)}.")
    kind = helper.make_tensor_type_proto(value.type.tensor_type.elem_type, array.shape)
    holding = replace(value, type=kind)
    object.__setattr__(holding, "held", array)
    return holding


@dataclass(eq=False)
class _Results:
    """The numbers of a node's outputs, by index or tapped value; none yet where it was deferred or made before."""

    seed: int
    is_deferred: bool = False
    numbers: dict[Hashable, Numbers] = field(default_factory=dict)


def _results(node: Node) -> _Results | None:
    """The numbers of a node's outputs, None where they are not known before a graph is run."""
    return node.__dict__.get("results")


def evaluate(node: Node) -> None:
    """Compute a node that was just made, or defer it, if all that it reads has numbers or is deferred.

    Its outputs get the shapes of their numbers, where shape inference does not find them.
    """
    _adopt(node)
    if (results := _results(node)) is None:
        return
    # A node that reads a deferred value is deferred, but a body, outside of which the value is computed in any case.
    results.is_deferred = MODE.is_deferred or (not node.bodies and any(map(_is_deferred, node.reads)))
    if results.is_deferred:
        return
    _settle(_first_outputs(node)[0])
    outputs = [_with_shape(y, results.numbers.get(y.index)) for y in node.outputs]
    object.__setattr__(node, "outputs", tuple(outputs))


def _adopt(node: Node) -> None:
    """Give a node, and the nodes before it that it depends on, results, if all their inputs have numbers or results."""
    stack = [node]
    while stack:
        top = stack[-1]
        if new := [x.node for x in top.reads if x.node is not None and "results" not in x.node.__dict__]:
            stack += new
            continue
        stack.pop()
        if "results" not in top.__dict__:
            is_known = all(_results(x.node) is not None if x.node else _has_numbers(x) for x in top.reads)
            seed = int(MODE.random.integers(2**24)) if MODE.random is not None and top.is_random else 0
            object.__setattr__(top, "results", _Results(seed) if is_known else None)


def _is_deferred(v: Value) -> bool:
    """Whether a value is computed only when it is asked for."""
    results = None if v.node is None else _results(v.node)
    return results is not None and results.is_deferred and not results.numbers


def _with_shape(y: Value, numbers: object) -> Value:
    """An output with the shape of its numbers."""
    if not isinstance(numbers, np.ndarray) or y.is_static:
        return y
    return replace(y, type=helper.make_tensor_type_proto(y.type.tensor_type.elem_type, numbers.shape))


def _first_outputs(node: Node) -> list[Value]:
    """The outputs computed in any case: all of a random node, which share a draw; else the required outputs."""
    if node.op_type in RANDOM or node.is_opaque:
        return [y for y in node.outputs if y.type.WhichOneof("value")]
    formal, optional = node.schema.outputs, defs.OpSchema.FormalParameterOption.Optional
    required = [y for y in node.outputs if formal[min(y.index, len(formal) - 1)].option != optional]
    return required or [node.outputs[0]]


def _has_numbers(v: Value) -> bool:
    """Whether the numbers of a value are there."""
    if v.node is None:
        return v.array is not None or "held" in v.__dict__
    results = _results(v.node)
    return results is not None and v.identity[1] in results.numbers


def find_numbers(v: Value) -> Numbers:
    """The numbers of a value, None where it has none; deferred nodes and further outputs are computed now."""
    if v.node is None:
        return v.__dict__.get("held", v.array)
    if (results := _results(v.node)) is None:
        return None
    _settle(v)
    return results.numbers[v.identity[1]]


def _settle(v: Value) -> None:
    """Compute a value, after the deferred nodes that it reads and outputs that nobody has asked for."""
    stack = [v]
    while stack:
        top = stack[-1]
        missing = [] if _has_numbers(top) else [x for x in top.node.reads if not _has_numbers(x)]  # type: ignore[union-attr]
        stack += missing
        if missing:
            continue
        stack.pop()
        if not _has_numbers(top):
            _compute(top)


def _compute(v: Value) -> None:
    """Compute an output of a node, and with the first output all that the node computes in any case."""
    node: Any = v.node
    results = node.results
    outputs = [v] if results.numbers else list(dict.fromkeys([*_first_outputs(node), v]))
    if node.op_type == "If" and not node.domain:
        arrays: Sequence[Numbers] = [_take_branch(node, y) for y in outputs]
    elif not _EVALUATORS:
        raise GraphError("No runtime computes nodes while evaluating; import ortpartial.runtime, which registers one.")
    else:
        with switched(is_on=False):
            arrays = _EVALUATORS[-1](node, outputs, {x: find_numbers(x) for x in node.reads}, results.seed)
    results.numbers.update(zip((y.identity[1] for y in outputs), arrays, strict=True))


def _take_branch(node: Node, y: Value) -> Numbers:
    """The numbers of an output of an If, by the branch that is taken; a value of the other branch is 0."""
    condition = node.reads[0]
    branch = node.attributes["then_branch" if find_numbers(condition) else "else_branch"]
    value = branch.outputs[y.index] if y.inner is None else y.inner
    if value.node is None:
        return find_numbers(value)
    if y.inner is not None and value.node not in branch.own:
        return np.zeros([n if isinstance(n, int) else 0 for n in value.shape or ()], value.dtype)
    _adopt(value.node)
    return find_numbers(value)


complete_arithmetic(find_numbers=find_numbers)

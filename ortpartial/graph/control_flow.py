"""Control flow: If, Loop and Scan, written as functions of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ortpartial.annotations import ArrayLike, Formula, Settings
from ortpartial.exceptions import GraphError

from .body_types import body_inputs, join_types
from .ops import constant, op
from .values import Subgraph, Value
from .walk import walk_nodes

__all__ = ["body_inputs", "cond", "loop", "scan", "walk_nodes", "widen_body"]


def cond(condition: Value, then: Callable[[], object], otherwise: Callable[[], object]) -> Any:
    """If: the value of `then` where a condition holds, else that of `otherwise`.

    Parameters
    ----------
    condition : Value
        A truth value of a single element.
    then, otherwise : callable
        Each gives a value or a sequence of values. Values written inside the function are computed only if its branch
        is taken; values captured from outside are computed in any case.

    Returns
    -------
    Value, or tuple of Value

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", [3])
    >>> cond(op.ReduceSum(x, keepdims=0) > 0, lambda: op.Log(x), lambda: -x)
    <Value If float32[3]>
    """
    return op.If(condition, then_branch=Subgraph.of(then), else_branch=Subgraph.of(otherwise))


def loop(function: Formula, trips: ArrayLike, *init: ArrayLike, going: ArrayLike | None = None) -> Any:
    """Loop: repeat a function, each time on the values that it gave before.

    Parameters
    ----------
    function : callable
        From the number of the iteration, the condition and the carried values to the next condition (None for true),
        the new values, and values to stack over the iterations.
    trips : Value or int, optional
        The largest number of iterations; None for no limit.
    *init : Value
        The carried values before the first iteration.
    going : Value, optional
        The condition before the first iteration; true by default.

    Returns
    -------
    Value, or tuple of Value
        The carried values after the last iteration, then the stacked values.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", [3])
    >>> loop(lambda i, going, v: (None, op.Sin(v)), 5, x)
    <Value Loop float32[3]>
    """
    _check_callable("loop(function, trips, *init)", function)
    if isinstance(trips, float) or (isinstance(trips, Value) and trips.is_float):
        raise GraphError(f"loop takes a whole number of iterations, and was given {trips!r}; what it carries follows.")
    start = [x if isinstance(x, Value) else constant(x) for x in init]

    def body(*inputs: Value) -> list[Value]:
        condition, *rest = function(*inputs)
        return [constant(True) if condition is None else condition, *rest]

    def write_body(carried: Sequence[Value]) -> Subgraph:
        return Subgraph.of(body, *body_inputs("Loop", [None, None, *carried], {}))

    if not start and going is None:
        going = constant(True)  # A Loop has two inputs at least.
    return op.Loop(trips, going, *start, body=widen_body(write_body, start))


def _check_callable(call: str, function: object) -> None:
    """Refuse a call in which the function does not come first."""
    if not callable(function):
        raise GraphError(f"{call} takes a function first, and was given {function!r} in its place.")


def widen_body(write_body: Callable[[Sequence[Value]], Subgraph], start: Sequence[Value]) -> Subgraph:
    """The body of a Loop, typed for carried values whose sizes may change from one iteration to the next.

    Parameters
    ----------
    write_body : callable
        The body for carried values of these types.
    start : sequence of Value
        The values before the first iteration.

    Returns
    -------
    Subgraph
        Its inputs have the sizes that no iteration changes; the others are unknown.
    """
    carried = list(start)
    while True:  # Every turn forgets a size or a rank, so there is an end.
        body = write_body(carried)
        wider = [Value(join_types(x, y)) for x, y in zip(carried, body.outputs[1 : 1 + len(carried)], strict=False)]
        if [v.type for v in wider] == [v.type for v in carried] or len(wider) != len(carried):
            return body
        carried = wider


def scan(function: Callable[..., object], init: Any = (), xs: Any = (), *, reverse: bool = False) -> Any:
    """Scan: apply a function to the slices of sequences, each time with the states that it gave before.

    Parameters
    ----------
    function : callable
        From states and slices to the new states and values to stack over the slices.
    init : Value or sequence of Value
        The states before the first slice; they keep their shapes.
    xs : Value or sequence of Value
        The sequences, read along their first axis.
    reverse : bool
        From the last slice to the first; stacked values keep the order of the slices.

    Returns
    -------
    Value, or tuple of Value
        The states after the last slice, then the values stacked along a new first axis.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> s, xs = variable("s", "float32", [3]), variable("xs", "float32", ["T", 3])
    >>> scan(lambda s, x: (s + x, s * x), s, xs)
    (<Value Scan float32[3]>, <Value Scan float32[Tx3]>)
    """
    _check_callable("scan(function, init, xs)", function)
    init, xs = ([v] if isinstance(v, Value) else list(v) for v in (init, xs))
    attributes: Settings = {"num_scan_inputs": len(xs)}
    body = Subgraph.of(function, *body_inputs("Scan", [*init, *xs], attributes))
    if reverse:
        attributes["scan_input_directions"] = [1] * len(xs)
        attributes["scan_output_directions"] = [1] * (len(body.outputs) - len(init))
    return op.Scan(*init, *xs, body=body, **attributes)

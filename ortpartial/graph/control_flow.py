"""What do If, Loop and Scan give? What their bodies do; `cond`, `loop` and `scan` write them as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx import TypeProto, helper

from ortpartial.exceptions import GraphError

from .ops import CONTROL, Node, Subgraph, Value, constant, op, topological

__all__ = ["body_inputs", "cond", "loop", "scan", "walk_nodes", "widen_body"]

Shape = Sequence["int | str | None"]
Typed = tuple[dict[str, Any], list[TypeProto]]


def _kind(v: Value, shape: Shape | None) -> TypeProto:
    """The type of v with another shape."""
    return helper.make_tensor_type_proto(v.type.tensor_type.elem_type, shape)


def _either(a: Value, b: Value) -> TypeProto:
    """The type of what is one of two values of the same dtype: sizes that both have."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return _kind(a, None)
    return _kind(a, [m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)])


def _bodies(where: str, attributes: Mapping[str, Any], names: Sequence[str]) -> list[Subgraph]:
    """The bodies by their names."""
    found = [attributes.get(n) for n in names]
    for name, body in zip(names, found, strict=True):
        if not isinstance(body, Subgraph):
            raise GraphError(f"{where}: {name} is a Subgraph of values, not {type(body).__name__}.")
    return [b for b in found if isinstance(b, Subgraph)]


def _counted(where: str, what: str, given: int, expected: str, right: bool) -> None:
    """An error where a body reads or gives another number of values than it should."""
    if not right:
        raise GraphError(f"{where}: the {what}, {given} of them, should be {expected}.")


def _same_dtypes(where: str, pairs: Sequence[tuple[Value, Value]], what: str) -> None:
    """An error where two values that take turns differ in their dtype."""
    for i, (a, b) in enumerate(pairs):
        if a.type.tensor_type.elem_type != b.type.tensor_type.elem_type:
            raise GraphError(f"{where}: {what} {i} is {a.dtype} and becomes {b.dtype}; cast one of them.")


def _if(where: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Typed:
    branches = dict(zip(("then_branch", "else_branch"),
                        _bodies(where, attributes, ("then_branch", "else_branch")), strict=True))
    a, b = branches.values()
    _counted(where, "outputs of else_branch", len(b.outputs), f"{len(a.outputs)}, as many as of then_branch",
             len(a.outputs) == len(b.outputs) > 0)
    for name, branch in branches.items():
        _counted(where, f"inputs of {name}", len(branch.inputs), "0: a branch reads what is around it",
                 not branch.inputs)
    _same_dtypes(where, list(zip(a.outputs, b.outputs, strict=True)), "output")
    condition = [x for x in inputs if x is not None]
    for name, own, other in (("then_branch", a, b), ("else_branch", b, a)):
        if own.inside is None:
            shared = set(topological([*condition, *other.outputs]))
            inside = frozenset(n for n in topological(own.outputs) if n not in shared)
            branches[name] = Subgraph((), own.outputs, inside)
    return {**attributes, **branches}, [_either(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)]


def _loop(where: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Typed:
    (body,) = _bodies(where, attributes, ("body",))
    init = [x for x in inputs[2:] if x is not None]
    n = len(init)
    _counted(where, "inputs of the body", len(body.inputs), f"{2 + n}: iteration, condition and {n} values",
             len(body.inputs) == 2 + n)
    _counted(where, "outputs of the body", len(body.outputs), f"{1 + n} or more: condition, {n} values, stacked ones",
             len(body.outputs) >= 1 + n)
    last = body.outputs[1 : 1 + n]
    _same_dtypes(where, list(zip(init, last, strict=True)), "the loop-carried value")
    stacked = [_kind(y, None if y.shape is None else [None, *y.shape]) for y in body.outputs[1 + n :]]
    return dict(attributes), [*(_either(x, y) for x, y in zip(init, last, strict=True)), *stacked]


def _scan(where: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Typed:
    (body,) = _bodies(where, attributes, ("body",))
    if "num_scan_inputs" not in attributes:
        raise GraphError(f"{where} needs num_scan_inputs, how many of its inputs are read slice by slice.")
    given = [x for x in inputs if x is not None]
    n = len(given) - attributes["num_scan_inputs"]
    init, xs = given[:n], given[n:]
    _counted(where, "inputs of the body", len(body.inputs), f"{len(given)}: {n} states and {len(xs)} slices",
             len(body.inputs) == len(given) and n >= 0 and len(xs) > 0)
    _counted(where, "outputs of the body", len(body.outputs), f"{n} or more: the states, then what is stacked",
             len(body.outputs) >= n)
    last, ys = body.outputs[:n], body.outputs[n:]
    _same_dtypes(where, list(zip(init, last, strict=True)), "state")
    for i, (x, y) in enumerate(zip(init, last, strict=True)):
        if x.shape is not None and y.shape is not None and not _may_equal(x.shape, y.shape):
            raise GraphError(f"{where}: state {i} is {x!r} and becomes {y!r}; a state keeps its shape.")
    axes = attributes.get("scan_input_axes") or [0] * len(xs)
    sizes = [x.shape[a] for x, a in zip(xs, axes, strict=True) if x.shape is not None]
    length = next((d for kind in (int, str) for d in sizes if isinstance(d, kind)), None)
    kinds = [_kind(x, x.shape if x.shape is not None else y.shape) for x, y in zip(init, last, strict=True)]
    for y, axis in zip(ys, attributes.get("scan_output_axes") or [0] * len(ys), strict=True):
        kinds.append(_kind(y, None if y.shape is None else _with(y.shape, axis % (len(y.shape) + 1), length)))
    return dict(attributes), kinds


def _may_equal(a: Shape, b: Shape) -> bool:
    """Whether two shapes can be the same at run time."""
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(m == n or not (isinstance(m, int) and isinstance(n, int)) for m, n in pairs)


def _with(shape: Shape, axis: int, size: int | str | None) -> Shape:
    """A shape with one more axis."""
    return [*shape[:axis], size, *shape[axis:]]


CONTROL.update({"If": _if, "Loop": _loop, "Scan": _scan})


def body_inputs(op_type: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any],
                names: Sequence[str] = ()) -> list[Value]:
    """Inputs for the body of a Loop or a Scan with these inputs.

    Parameters
    ----------
    op_type : str
        The operator.
    inputs : sequence of Value or None
        What the node is given.
    attributes : dict of str to object
        Its attributes but for the body.
    names : sequence of str
        Names of the inputs of the body, as hints.

    Returns
    -------
    list of Value

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> xs = variable("xs", "float32", ["T", 3])
    >>> body_inputs("Scan", [xs], {"num_scan_inputs": 1})
    [<Value x0 float32[3]>]
    """
    given = [x for x in inputs if x is not None]
    if op_type == "Scan" and not 0 < attributes.get("num_scan_inputs", 0) <= len(given):
        raise GraphError(f"Scan needs num_scan_inputs, how many of its {len(given)} inputs are read slice by slice.")
    if op_type == "Loop":
        carried = [x for x in inputs[2:] if x is not None]
        kinds = [helper.make_tensor_type_proto(7, ()), helper.make_tensor_type_proto(9, ()), *(x.type for x in carried)]
        plain = ["i", "going", *(f"v{i}" for i in range(len(carried)))]
    else:
        n = len(given) - attributes["num_scan_inputs"]
        axes = attributes.get("scan_input_axes") or [0] * (len(given) - n)
        kinds = [*(x.type for x in given[:n]), *(_slice(x, a) for x, a in zip(given[n:], axes, strict=True))]
        plain = [f"s{i}" for i in range(n)] + [f"x{i}" for i in range(len(given) - n)]
    if names and len(names) != len(plain):
        raise GraphError(f"{op_type}: the inputs of the body, {len(names)} of them, should be {len(plain)}.")
    return [Value(kind, hint=hint) for kind, hint in zip(kinds, names or plain, strict=True)]


def _slice(x: Value, axis: int) -> TypeProto:
    """The type of what stands along an axis of x."""
    if x.shape is not None and not -len(x.shape) <= axis < len(x.shape):
        raise GraphError(f"Scan reads {x!r} along its axis {axis}, which it does not have.")
    return _kind(x, None if x.shape is None else [d for i, d in enumerate(x.shape) if i != axis % len(x.shape)])


def cond(condition: Value, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """If a condition holds, what `then` writes is computed, else what `otherwise` writes.

    Parameters
    ----------
    condition : Value
        A truth value of one element.
    then, otherwise : callable
        Each gives a value or a sequence of values. Only what is written inside the function is computed only if it is
        taken.

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


def loop(function: Callable[..., Any], trips: Any, *init: Any, going: Any = None) -> Any:
    """The function again and again, each time from what it gave before.

    Parameters
    ----------
    function : callable
        From the number of the iteration, whether the loop is going on and the carried values to whether it is to go
        on (None for yes), the new values, and what is to be stacked.
    trips : Value or int, optional
        How many iterations at most; None for no limit.
    *init : Value
        What is carried, before the first iteration.
    going : Value, optional
        Whether there is a first iteration.

    Returns
    -------
    Value, or tuple of Value
        The carried values after the last iteration, then what was stacked.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", [3])
    >>> loop(lambda i, going, v: (None, op.Sin(v)), 5, x)
    <Value Loop float32[3]>
    """
    _first("loop(function, trips, *init)", function)
    if isinstance(trips, float) or (isinstance(trips, Value) and trips.is_float):
        raise GraphError(f"loop takes a whole number of iterations, and was given {trips!r}; what it carries follows.")
    start = [x if isinstance(x, Value) else constant(x) for x in init]

    def body(*inputs: Value) -> list[Value]:
        first, *rest = function(*inputs)
        return [constant(True) if first is None else first, *rest]

    def written(kinds: Sequence[Value]) -> Subgraph:
        return Subgraph.of(body, *body_inputs("Loop", [None, None, *kinds], {}))

    made = widen_body(written, start)
    return op.Loop(trips, going, *start, body=made)


def _first(call: str, function: Any) -> None:
    """An error where the function does not come first."""
    if not callable(function):
        raise GraphError(f"{call} takes a function first, and was given {function!r} in its place.")


def widen_body(written: Callable[[Sequence[Value]], Subgraph], start: Sequence[Value]) -> Subgraph:
    """The body of a Loop for carried values whose sizes may change from one iteration to the next.

    Parameters
    ----------
    written : callable
        The body for given types of the carried values.
    start : sequence of Value
        The values before the first iteration.

    Returns
    -------
    Subgraph
        Its inputs have those sizes alone that stay as they are.
    """
    kinds = list(start)
    while True:  # Every turn forgets a size or a rank, so there is an end.
        body = written(kinds)
        wider = [Value(_either(x, y)) for x, y in zip(kinds, body.outputs[1 : 1 + len(kinds)], strict=False)]
        if [v.shape for v in wider] == [v.shape for v in kinds] or len(wider) != len(kinds):
            return body
        kinds = wider


def scan(function: Callable[..., Any], init: Any = (), xs: Any = (), *, reverse: bool = False) -> Any:
    """The function over the slices of sequences, each time with the states that it gave before.

    Parameters
    ----------
    function : callable
        From states and slices to the new states and what is to be stacked.
    init : Value or sequence of Value
        The states before the first slice; they keep their shapes.
    xs : Value or sequence of Value
        The sequences, read along their first axis.
    reverse : bool
        From the last slice to the first; what is stacked stands in the order of the slices.

    Returns
    -------
    Value, or tuple of Value
        The states after the last slice, then what was stacked along a new first axis.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> s, xs = variable("s", "float32", [3]), variable("xs", "float32", ["T", 3])
    >>> scan(lambda s, x: (s + x, s * x), s, xs)
    (<Value Scan float32[3]>, <Value Scan float32[Tx3]>)
    """
    _first("scan(function, init, xs)", function)
    init, xs = ([v] if isinstance(v, Value) else list(v) for v in (init, xs))
    attributes: dict[str, Any] = {"num_scan_inputs": len(xs)}
    body = Subgraph.of(function, *body_inputs("Scan", [*init, *xs], attributes))
    if reverse:
        attributes["scan_input_directions"] = [1] * len(xs)
        attributes["scan_output_directions"] = [1] * (len(body.outputs) - len(init))
    return op.Scan(*init, *xs, body=body, **attributes)


def walk_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes, and those inside their bodies.

    Parameters
    ----------
    nodes : iterable of Node
        Nodes.

    Yields
    ------
    Node
    """
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(n for body in node.bodies for n in body.nodes)

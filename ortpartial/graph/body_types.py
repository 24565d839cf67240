"""Types around bodies: outputs of If, Loop and Scan, and inputs of a body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx import TensorProto, TypeProto, helper

from ortpartial.annotations import Attributes
from ortpartial.exceptions import GraphError

from .values import Subgraph, Value, topological

__all__ = ["CONTROL", "body_inputs", "join_types"]

Shape = Sequence["int | str | None"]
Typed = tuple[Attributes, list[TypeProto]]


def _reshape_type(v: Value, shape: Shape | None) -> TypeProto:
    """The type of v with another shape."""
    return helper.make_tensor_type_proto(v.type.tensor_type.elem_type, shape)


def join_types(a: Value, b: Value) -> TypeProto:
    """The type of a value that is either of two values of the same dtype: with the sizes that they share."""
    if not a.type.HasField("tensor_type"):
        return _join_elements(a.type, b.type)
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return _reshape_type(a, None)
    return _reshape_type(a, [m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)])


def _join_elements(a: TypeProto, b: TypeProto) -> TypeProto:
    """The type of a sequence or an optional that is either of two: its elements have the sizes that they share."""
    joined = TypeProto()
    joined.CopyFrom(a)
    for kind in ("sequence_type", "optional_type"):
        if a.HasField(kind):
            elements = Value(getattr(a, kind).elem_type), Value(getattr(b, kind).elem_type)
            getattr(joined, kind).elem_type.CopyFrom(join_types(*elements))
    return joined


def _get_bodies(where: str, attributes: Attributes, names: Sequence[str]) -> list[Subgraph]:
    bodies = [attributes.get(n) for n in names]
    for name, body in zip(names, bodies, strict=True):
        if not isinstance(body, Subgraph):
            raise GraphError(f"{where}: {name} is a Subgraph of values, not {type(body).__name__}.")
    return [b for b in bodies if isinstance(b, Subgraph)]


def _check_count(where: str, what: str, count: int, expected: str, is_right: bool) -> None:
    """Refuse a body that has another number of inputs or outputs than it should."""
    if not is_right:
        raise GraphError(f"{where}: the {what}, {count} of them, should be {expected}.")


def _check_dtypes(where: str, pairs: Sequence[tuple[Value, Value]], what: str) -> None:
    """Refuse two values that take turns and differ in their dtype."""
    for i, (a, b) in enumerate(pairs):
        kinds = [v.type.WhichOneof("value") for v in (a, b)]
        if kinds[0] != kinds[1]:
            raise GraphError(f"{where}: {what} {i} is a {kinds[0]} and becomes a {kinds[1]}.")
        if a.type.tensor_type.elem_type != b.type.tensor_type.elem_type:
            raise GraphError(f"{where}: {what} {i} is {a.dtype} and becomes {b.dtype}; cast one of them.")


def _type_if(where: str, inputs: Sequence[Value | None], attributes: Attributes) -> Typed:
    names = ("then_branch", "else_branch")
    branches = dict(zip(names, _get_bodies(where, attributes, names), strict=True))
    a, b = branches.values()
    _check_count(where, "outputs of else_branch", len(b.outputs), f"{len(a.outputs)}, as many as of then_branch",
                 len(a.outputs) == len(b.outputs) > 0)
    for name, branch in branches.items():
        _check_count(where, f"inputs of {name}", len(branch.inputs), "0: a branch reads what is around it",
                     not branch.inputs)
    _check_dtypes(where, list(zip(a.outputs, b.outputs, strict=True)), "output")
    condition = [x for x in inputs if x is not None]
    for name, branch, other in (("then_branch", a, b), ("else_branch", b, a)):
        if branch.inside is None:
            shared = set(topological([*condition, *other.outputs]))
            inside = frozenset(n for n in topological(branch.outputs) if n not in shared)
            branches[name] = Subgraph((), branch.outputs, inside)
    return {**attributes, **branches}, [join_types(x, y) for x, y in zip(a.outputs, b.outputs, strict=True)]


def _type_loop(where: str, inputs: Sequence[Value | None], attributes: Attributes) -> Typed:
    (body,) = _get_bodies(where, attributes, ("body",))
    init = [x for x in inputs[2:] if x is not None]
    n = len(init)
    _check_count(where, "inputs of the body", len(body.inputs), f"{2 + n}: iteration, condition and {n} values",
                 len(body.inputs) == 2 + n)
    _check_count(where, "outputs of the body", len(body.outputs),
                 f"{1 + n} or more: condition, {n} values, stacked ones", len(body.outputs) >= 1 + n)
    last = body.outputs[1 : 1 + n]
    _check_dtypes(where, list(zip(init, last, strict=True)), "the loop-carried value")
    stacked = [_reshape_type(y, None if y.shape is None else [None, *y.shape]) for y in body.outputs[1 + n :]]
    return dict(attributes), [*(join_types(x, y) for x, y in zip(init, last, strict=True)), *stacked]


def _type_scan(where: str, inputs: Sequence[Value | None], attributes: Attributes) -> Typed:
    (body,) = _get_bodies(where, attributes, ("body",))
    if "num_scan_inputs" not in attributes:
        raise GraphError(f"{where} needs num_scan_inputs, how many of its inputs are read slice by slice.")
    values = [x for x in inputs if x is not None]
    n = len(values) - attributes["num_scan_inputs"]
    init, xs = values[:n], values[n:]
    _check_count(where, "inputs of the body", len(body.inputs), f"{len(values)}: {n} states and {len(xs)} slices",
                 len(body.inputs) == len(values) and n >= 0 and len(xs) > 0)
    _check_count(where, "outputs of the body", len(body.outputs), f"{n} or more: the states, then what is stacked",
                 len(body.outputs) >= n)
    states = list(zip(init, body.outputs[:n], strict=True))
    _check_states(where, states)
    types = [_reshape_type(x, x.shape if x.shape is not None else y.shape) for x, y in states]
    return dict(attributes), types + _stack_types(xs, body.outputs[n:], attributes)


def _check_states(where: str, states: Sequence[tuple[Value, Value]]) -> None:
    """Refuse states of a Scan whose dtype or shape changes."""
    _check_dtypes(where, states, "state")
    for i, (x, y) in enumerate(states):
        if x.shape is not None and y.shape is not None and not _may_equal(x.shape, y.shape):
            raise GraphError(f"{where}: state {i} is {x!r} and becomes {y!r}; a state keeps its shape.")


def _stack_types(xs: Sequence[Value], ys: Sequence[Value], attributes: Attributes) -> list[TypeProto]:
    """The types of the outputs that a Scan over xs stacks from the slices ys."""
    axes = attributes.get("scan_input_axes") or [0] * len(xs)
    sizes = [x.shape[a] for x, a in zip(xs, axes, strict=True) if x.shape is not None]
    length = next((d for kind in (int, str) for d in sizes if isinstance(d, kind)), None)
    types = []
    for y, axis in zip(ys, attributes.get("scan_output_axes") or [0] * len(ys), strict=True):
        shape = None if y.shape is None else list(y.shape)
        if shape is not None:
            shape.insert(axis % (len(shape) + 1), length)
        types.append(_reshape_type(y, shape))
    return types


def _may_equal(a: Shape, b: Shape) -> bool:
    """Whether two shapes can be the same at run time."""
    pairs = zip(a, b, strict=False)
    return len(a) == len(b) and all(m == n or not (isinstance(m, int) and isinstance(n, int)) for m, n in pairs)


#: Operators with bodies: from a name for errors, inputs and attributes to the attributes and the types of the outputs.
CONTROL: dict[str, Callable[[str, Sequence[Value | None], Attributes], Typed]] = {
    "If": _type_if, "Loop": _type_loop, "Scan": _type_scan,
}


def body_inputs(op_type: str, inputs: Sequence[Value | None], attributes: Attributes,
                names: Sequence[str] = ()) -> list[Value]:
    """Inputs for the body of a Loop or a Scan with these inputs.

    Parameters
    ----------
    op_type : str
        The operator.
    inputs : sequence of Value or None
        The inputs of the node.
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
    values = [x for x in inputs if x is not None]
    if op_type == "Scan" and not 0 < attributes.get("num_scan_inputs", 0) <= len(values):
        raise GraphError(f"Scan needs num_scan_inputs, how many of its {len(values)} inputs are read slice by slice.")
    if op_type == "Loop":
        carried = [x for x in inputs[2:] if x is not None]
        iteration, condition = (helper.make_tensor_type_proto(t, ()) for t in (TensorProto.INT64, TensorProto.BOOL))
        types = [iteration, condition, *(x.type for x in carried)]
        hints = ["i", "going", *(f"v{i}" for i in range(len(carried)))]
    else:
        n = len(values) - attributes["num_scan_inputs"]
        axes = attributes.get("scan_input_axes") or [0] * (len(values) - n)
        types = [*(x.type for x in values[:n]), *(_slice_type(x, a) for x, a in zip(values[n:], axes, strict=True))]
        hints = [f"s{i}" for i in range(n)] + [f"x{i}" for i in range(len(values) - n)]
    if names and len(names) != len(hints):
        raise GraphError(f"{op_type}: the inputs of the body, {len(names)} of them, should be {len(hints)}.")
    return [Value(t, hint=hint) for t, hint in zip(types, names or hints, strict=True)]


def _slice_type(x: Value, axis: int) -> TypeProto:
    """The type of a slice of x."""
    if x.shape is not None and not -len(x.shape) <= axis < len(x.shape):
        raise GraphError(f"Scan reads {x!r} along its axis {axis}, which it does not have.")
    return _reshape_type(x, None if x.shape is None else [d for i, d in enumerate(x.shape) if i != axis % len(x.shape)])

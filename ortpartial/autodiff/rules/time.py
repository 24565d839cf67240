"""Scans over time steps: only values that change from step to step stay in the loop."""

from collections.abc import Callable, Collection, Mapping, Sequence

from ortpartial.annotations import Inputs
from ortpartial.graph import Node, Value, constant, op, rewrite, scan, topological, variable

from ..ranges import is_finite, set_unbounded
from .shape import concat_sizes, slice_shape

#: The symbolic size of the row axis: the rows of a step, or of all steps concatenated.
ROWS = "rows"


def scan_steps(x: Value, carried: Mapping[Value, Value], new: Sequence[Value], shown: Sequence[Value],
                 read: Mapping[Value, Value], reverse: bool = False) -> Sequence[Value]:
    """The carried values after the last step, and the outputs of all steps, (T, N, ...), by a Scan over the steps of x.

    Whatever does not depend on a carried value is computed before the Scan, for all steps at once.
    """
    outputs = regroup_products([*new, *shown], carried)
    moving, varying = find_dependent(outputs, carried), find_dependent(outputs, [*carried, *read])
    slices = find_edge(outputs, varying, lambda v: v in read or (v.node in varying - moving and has_rows(v)), carried)
    slices = slices or list(read)[:1]  # A Scan reads something.
    wholes = [split_steps(v, x) for v in rewrite(slices, read)]
    values: Sequence[Value] = scan(
        lambda *v: rewrite(outputs, dict(zip([*carried, *slices], v, strict=True))),
        list(carried.values()), wholes, reverse=reverse,
    )
    return values


def regroup_products(outputs: Sequence[Value], carried: Collection[Value]) -> list[Value]:
    """The same with (d a) b as d (a b) where d depends on a carried value: a product less per step."""
    moving = find_dependent(outputs, carried)
    factors: dict[Value, tuple[Value, Value]] = {}

    def product(node: Node, inputs: Inputs) -> list[Value] | None:
        moves = [v in carried or v.node in moving for v in node.reads]
        if node.op_type != "Mul" or sum(moves) != 1:
            return None
        d, b = inputs if moves[0] else inputs[::-1]
        if d in factors:
            d, a = factors[d]
            b = a * b
        y = d * b
        factors[y] = d, b
        return [y]

    return rewrite(outputs, {}, product)


def find_dependent(outputs: Sequence[Value], sources: Collection[Value]) -> set[Node]:
    """The nodes of expressions that depend on the sources."""
    nodes: set[Node] = set()
    for node in topological(outputs, sources):
        if any(v in sources or v.node in nodes for v in node.reads):
            nodes.add(node)
    return nodes


def find_edge(outputs: Sequence[Value], inside: Collection[Node], stop: Callable[[Value], bool],
         seen: Collection[Value] = ()) -> list[Value]:
    """The values at which a walk back from the outputs along the nodes `inside` stops."""
    stops: dict[Value, None] = {}
    done, stack = set(seen), list(outputs)
    while stack:
        v = stack.pop()
        if v not in done:
            done.add(v)
            if stop(v):
                stops[v] = None
            elif v.node is not None and v.node in inside:
                stack.extend(v.node.reads)
    return list(stops)


def has_rows(v: Value) -> bool:
    """Whether the first axis of v is the rows of a step."""
    return v.shape is not None and v.shape[:1] == (ROWS,)


def flatten_steps(v: Value, width: int | None = None) -> Value:
    """v, (T, N, K), reshaped to the rows of all steps, (T·N, K)."""
    k = slice_shape(v, 2, 3) if width is None else constant([width])
    sizes = known_sizes(v, 2, 3) if width is None else [width]
    return op.Reshape(v, concat_sizes(constant([-1]), k)).stated([ROWS, *sizes])


def split_steps(v: Value, x: Value) -> Value:
    """The rows of all steps of x, (T·N, K), reshaped to (T, N, K)."""
    time, batch = known_sizes(x, 0, 2)
    shape = concat_sizes(slice_shape(x, 0, 2), slice_shape(v, 1, 2))
    return op.Reshape(v, shape, allowzero=1).stated([time, ROWS if batch is None else batch, *known_sizes(v, 1, 2)])


def state_step(v: Value, x: Value) -> Value:
    """v, (N, K), with its rows stated to be the rows of a step of x."""
    (batch,) = known_sizes(x, 1, 2)
    return v.stated([ROWS if batch is None else batch, *known_sizes(v, 1, 2)])


def like(v: Value, hint: str) -> Value:
    """A variable for rows like v's."""
    return variable(hint, v.dtype, [ROWS, *known_sizes(v, 1, 2)])


def like_cotangent(v: Value, hint: str, *sources: Value) -> Value:
    """A variable for rows of cotangents like v, as finite as their sources."""
    return like(v, hint) if all(map(is_finite, sources)) else set_unbounded(like(v, hint))


def known_sizes(v: Value, start: int, end: int) -> Sequence[int | str | None]:
    """The sizes of v along the axes from start to end, None for unknown sizes."""
    return [None] * (end - start) if v.shape is None else v.shape[start:end]

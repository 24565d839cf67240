"""Gradients of control flow: If differentiates the branch taken, Loop and Scan go back from the last iteration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Subgraph, Value, cond, counter, op, rewrite, zeros_like

from ..grad import backpropagate
from ..ranges import is_finite, set_unbounded
from ..registry import is_constant, vjp


@vjp("If")
def _(condition, *, node, dys, wanted):
    then = _branch(node, node.attributes["then_branch"], dys, wanted)
    otherwise = _branch(node, node.attributes["else_branch"], dys, wanted)
    reached = [x for x, a, b in zip(wanted, then[1], otherwise[1], strict=True) if a is not None or b is not None]
    if not reached:
        return [None] * len(wanted)
    branches = []
    for since, gradients, branch in (then, otherwise):
        gradient_of = dict(zip(wanted, gradients, strict=True))
        outputs = [zeros_like(x) if (d := gradient_of[x]) is None else d for x in reached]
        branches.append(_including(branch, Subgraph.since(since, (), outputs)))
    outputs = _listed(op.If(condition, then_branch=branches[0], else_branch=branches[1], n_outputs=len(reached)))
    result = {x: d.stated(x.shape) for x, d in zip(reached, outputs, strict=True)}
    return [result.get(x) for x in wanted]


def _branch(
    node: Node, branch: Subgraph, dys: Mapping[Value, Value], wanted: Sequence[Value]
) -> tuple[int, list[Value | None], Subgraph]:
    """The serial number before the gradients of a branch, the gradients of `wanted`, and the branch.

    The gradients tap values of the branch whose size is known and recompute the others: in a loop, a branch that is not
    taken could not give anything of the same size.
    """
    since = next(counter)
    pairs = [(v, _sized(dys[y], v)) for y, v in zip(node.outputs, branch.outputs, strict=True) if y in dys]
    pairs += [(y.inner, d) for y, d in dys.items() if y.inner is not None and y.inner.node in branch.own]
    gradients = backpropagate([v for v, _ in pairs], [d for _, d in pairs], wanted, set(branch.captured))
    exprs = [d for d in gradients if d is not None]
    taps = {v: node.tap(v) for v in _read_of(branch, exprs, since, _is_static)}
    within = Subgraph.since(since, (), exprs).own | branch.own
    rewritten = iter(rewrite(exprs, taps, within=within))
    return since, [None if d is None else next(rewritten) for d in gradients], branch


def _sized(d: Value, x: Value) -> Value:
    """d with the shape of x stated."""
    if d.shape is not None and None not in d.shape:
        return d
    return (op.Identity(d) if d.node is None else d).stated(x.shape)


def _including(body: Subgraph, written: Subgraph) -> Subgraph:
    """A body that was just written, which may also compute the nodes of another body."""
    return Subgraph(written.inputs, written.outputs, (written.inside or frozenset()) | body.own)


def _read_of(body: Subgraph, gradients: Sequence[Value], since: int, saved: Callable[[Value], bool],
             inputs_of_gradients: Iterable[Value] = ()) -> list[Value]:
    """The values of a body that gradients, whose nodes are younger than `since`, need to read.

    A value that cannot be saved is recomputed from saved values. Random numbers are never drawn again.
    """
    nodes, inputs = body.own, set(body.inputs)
    read: dict[Value, None] = {}
    seen = set(inputs_of_gradients)
    stack = list(gradients)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in inputs or (v.node is not None and v.node in nodes and (saved(v) or v.node.is_random)):
            read[v] = None
        elif v.node is not None and (v.node in nodes or v.node.serial > since):
            stack.extend(v.node.reads)
    return list(read)


def _is_static(v: Value) -> bool:
    return v.is_static


def _make_steady(body: Subgraph) -> Callable[[Value], bool]:
    """A function that says whether a value of the body is known to have the same shape in all iterations.

    Only such values can be stacked: the bags of an embedding, for example, have as many rows as a computed slice.
    """
    sizes = {n for x in (*body.inputs, *body.captured) for n in x.shape or () if isinstance(n, str)}
    return lambda v: v.shape is not None and all(isinstance(n, int) or n in sizes for n in v.shape)


@dataclass(frozen=True)
class Stream:
    """A sequence that a loop reads or writes: the whole, its slice in the body, its axis and its direction."""

    whole: Value
    slice: Value
    axis: int = 0
    direction: int = 0


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries: initial, before and after an iteration in the body, and final."""

    first: Value
    before: Value
    after: Value
    last: Value


@vjp("Scan")
def _(*inputs, node, dys, wanted):
    body = node.attributes["body"]
    n = len(inputs) - node.attributes["num_scan_inputs"]

    def streams(wholes, slices, what):
        settings = (node.attributes.get(f"scan_{what}_{k}") for k in ("axes", "directions"))
        axes, directions = (v or [0] * len(slices) for v in settings)
        return [Stream(*v) for v in zip(wholes, slices, axes, directions, strict=True)]

    carried = [Carried(*v) for v in zip(inputs[:n], body.inputs[:n], body.outputs[:n], node.outputs[:n], strict=True)]
    read = streams(inputs[n:], body.inputs[n:], "input")
    return _backpropagate_loop(node, carried, read, streams(node.outputs[n:], body.outputs[n:], "output"), dys, wanted)


@vjp("Loop")
def _(trips=None, going=None, *first, node, dys, wanted):
    body, n = node.attributes["body"], len(first)
    after, last = body.outputs[1 : n + 1], node.outputs[:n]
    carried = [Carried(*v) for v in zip(first, body.inputs[2:], after, last, strict=True)]
    written = [Stream(*v) for v in zip(node.outputs[n:], body.outputs[n + 1 :], strict=True)]
    return _backpropagate_loop(node, carried, [], written, dys, wanted)


@dataclass(frozen=True)
class BackwardBody:
    """An iteration of the backward Scan. It carries the cotangents of carried values and sums over iterations.

    It reads the cotangents of the sequences that the loop writes, and `saved`, values of the loop's iterations.
    """

    graph: Subgraph
    carried: Sequence[Carried]
    captured: Sequence[Value]
    slices: Sequence[Stream]
    saved: Sequence[Stream]


def _backpropagate_loop(
    node: Node, carried: Sequence[Carried], read: Sequence[Stream], written: Sequence[Stream],
    dys: Mapping[Value, Value], wanted: Sequence[Value],
) -> list[Value | None]:
    """Cotangents of a Scan or Loop, by a Scan over its iterations, the last first."""
    (body,) = node.bodies
    asked = set(wanted)
    captured = [x for x in body.captured if x in asked]
    sources = [*(s.slice for s in read if s.whole in asked), *captured]
    # Cotangents come from the sequences that were written, and from tapped values for the gradient of a gradient.
    ends = [s for s in written if s.whole in dys] + [Stream(y, y.inner) for y in dys if y.inner is not None]
    states, carried = carried, _needed(body, carried, sources, [s.slice for s in ends], dys, asked)
    for c in carried:
        _check_shape(node, body, c)
    backward = _write_body(node, carried, captured, read, written, ends, asked,
                           all(map(is_finite, (*dys.values(), *node.outputs))))
    if backward is None:
        return [None] * len(wanted)
    read_again = {s.slice for s in backward.saved}
    for c in states:
        if c.before in read_again:
            _check_shape(node, body, c)
    cotangents = _run_backward(node, backward, ends, dys)
    result: dict[Value, Value] = {}
    reached = [*(c.first for c in backward.carried), *backward.captured, *(s.whole for s in backward.slices)]
    for x, d in zip(reached, cotangents, strict=True):
        d = d.stated(x.shape)
        result[x] = result[x] + d if x in result else d
    return [result.get(x) for x in wanted]


def _write_body(
    node: Node, carried: Sequence[Carried], captured: Sequence[Value], read: Sequence[Stream],
    written: Sequence[Stream], ends: Sequence[Stream], wanted: Collection[Value], is_bounded: bool,
) -> BackwardBody | None:
    """The body of the backward Scan, from the cotangents of `ends`; None where nothing wanted has a gradient.

    Cotangents are finite in all iterations if they come out of the body as finite as they come in.
    """
    (body,) = node.bodies
    since = next(counter)
    slices = [s for s in read if s.whole in wanted]
    ds, dy, gradients = _differentiate_body(body, carried, captured, slices, ends, is_bounded)
    if is_bounded and not _are_finite(gradients.values()):
        return _write_body(node, carried, captured, read, written, ends, wanted, False)
    captured = [x for x in captured if gradients[x] is not None]
    slices = [s for s in slices if gradients[s.slice] is not None]
    if not (captured or slices or any(c.first in wanted for c in carried)):
        return None
    sums = [_like(x, "sum") for x in captured]
    states = _fill([gradients[c.before] for c in carried], ds)
    totals = [a + d for a, d in zip(sums, _list_gradients(captured, gradients), strict=True)]
    dx = _list_gradients([s.slice for s in slices], gradients)
    needed = _read_of(body, [*states, *totals, *dx], since, _make_steady(body), [*ds, *dy, *sums])
    saved = _saved_streams(node, needed, read, written, bool(ends))
    inputs = [*ds, *sums, *dy, *(s.slice for s in saved)]
    results = zip([*states, *totals, *dx], _by(carried, captured, slices), strict=True)
    graph = _including(body, Subgraph.since(since, inputs, [_sized(d, x) for d, x in results]))
    return BackwardBody(graph, carried, captured, slices, saved)


def _differentiate_body(
    body: Subgraph, carried: Sequence[Carried], captured: Sequence[Value], slices: Sequence[Stream],
    ends: Sequence[Stream], is_bounded: bool,
) -> tuple[list[Value], list[Value], dict[Value, Value | None]]:
    """Variables for the cotangents of carried values and of `ends`, and the gradients of the body's arguments."""
    # A carried value keeps its shape, but for sizes of a Loop that are not known.
    ds = [_like(c.after if c.before.shape is None or None in c.before.shape else c.before, "ds") for c in carried]
    dy = [_like(s.slice, "dy") for s in ends]
    for v in () if is_bounded else (*ds, *dy):
        set_unbounded(v)
    wrt = _by(carried, captured, slices)
    outputs = [*(c.after for c in carried), *(s.slice for s in ends)]
    gradients = backpropagate(outputs, [*ds, *dy], wrt, {*body.inputs, *body.captured})
    return ds, dy, dict(zip(wrt, gradients, strict=True))


def _saved_streams(
    node: Node, values: Sequence[Value], read: Sequence[Stream], written: Sequence[Stream], has_length: bool
) -> list[Stream]:
    """Values of the body in all iterations: sequences that the loop reads or writes, or taps.

    A Scan takes its length from a sequence: unless another has it, there is at least this.
    """
    streams = {s.slice: s for s in (*written, *read)}
    saved = [streams.get(v) or Stream(node.tap(v), v) for v in values]
    if has_length or saved:
        return saved
    first = node.bodies[0].inputs[0]
    return [read[0] if read else Stream(node.tap(first), first)]


def _are_finite(gradients: Iterable[Value | None]) -> bool:
    """Whether all gradients that there are are known to be finite."""
    return all(d is None or is_finite(d) for d in gradients)


def _list_gradients(values: Iterable[Value], gradients: Mapping[Value, Value | None]) -> list[Value]:
    """The gradients that there are of some values."""
    return [d for v in values if (d := gradients[v]) is not None]


def _fill(gradients: Sequence[Value | None], like: Sequence[Value]) -> list[Value]:
    """Gradients, with zeros in place of missing gradients."""
    return [zeros_like(d) if g is None else g for g, d in zip(gradients, like, strict=True)]


def _run_backward(
    node: Node, backward: BackwardBody, ends: Sequence[Stream], dys: Mapping[Value, Value]
) -> list[Value]:
    """The cotangents of carried values, of captured values and of the sequences that the loop reads, in this order."""

    def start() -> list[Value]:
        ds = [dys[c.last] if c.last in dys else zeros_like(c.last) for c in backward.carried]
        return [*ds, *map(zeros_like, backward.captured)]

    def run() -> list[Value]:
        read = [*ends, *backward.saved]
        wholes = [*(dys[s.whole] for s in ends), *(s.whole for s in backward.saved)]
        slices = backward.slices
        return _listed(op.Scan(
            *start(), *wholes, body=backward.graph, num_scan_inputs=len(wholes),
            scan_input_axes=[s.axis for s in read], scan_input_directions=[1 - s.direction for s in read],
            scan_output_axes=[s.axis for s in slices], scan_output_directions=[1 - s.direction for s in slices],
        ))

    return run() if node.op_type == "Scan" or _surely_runs(node) else _unless_none(node, run, start)


def _listed(outputs: Any) -> list[Value]:
    """The outputs of an operator, single or several, as a list."""
    return [outputs] if isinstance(outputs, Value) else list(outputs)


def _by(carried: Sequence[Carried], captured: Sequence[Value], slices: Sequence[Stream]) -> list[Value]:
    """The values that the body is differentiated with respect to."""
    return [*(c.before for c in carried), *captured, *(s.slice for s in slices)]


def _like(x: Value, hint: str) -> Value:
    """A variable of the type of x."""
    return Value(x.type, hint=hint)


def _surely_runs(node: Node) -> bool:
    """Whether a Loop is known to have at least an iteration."""
    trips, going = (*node.inputs, None, None)[:2]
    counted = trips is not None and trips.array is not None and trips.array.item() > 0
    return counted and (going is None or (going.array is not None and going.array.item()))


def _unless_none(node: Node, run: Callable[[], list[Value]], start: Callable[[], list[Value]]) -> list[Value]:
    """The outputs of `run`; its start values where a Loop had no iteration, which onnxruntime's Scan cannot do."""
    done = op.Squeeze(op.Shape(node.tap(node.bodies[0].inputs[0])), [0])
    return _listed(cond(done > 0, run, start))


def _needed(body: Subgraph, carried: Sequence[Carried], sources: Sequence[Value], ends: Sequence[Value],
            dys: Mapping[Value, Value], wanted: Collection[Value]) -> list[Carried]:
    """The carried values on a path from a source to something with a cotangent, over any number of iterations."""
    every = [c for c in carried if c.before.is_float]
    befores = [c.before for c in every]
    depends = _make_dependencies(body, [*befores, *sources])
    mask = [depends(c.after) for c in every]
    from_sources = sum(1 << i for i in range(len(every), len(every) + len(sources)))
    live = sum(1 << i for i, c in enumerate(every) if c.first in wanted)
    reached = sum(1 << i for i, c in enumerate(every) if c.last in dys)
    for y in ends:
        reached |= depends(y)
    for _ in every:
        live |= sum(1 << i for i, m in enumerate(mask) if m & (live | from_sources))
        for i, m in enumerate(mask):
            reached |= m if reached >> i & 1 else 0
    return [c for i, c in enumerate(every) if (live & reached) >> i & 1]


def _make_dependencies(body: Subgraph, targets: Sequence[Value]) -> Callable[[Value], int]:
    """A function from a value of the body to the targets that it depends on, as bits."""
    bits = {x: 1 << i for i, x in enumerate(targets)}
    nodes: dict[Node, int] = {}

    def of(v: Value) -> int:
        return bits[v] if v in bits else nodes.get(v.node, 0) if v.node is not None and v.is_float else 0

    for node in body.nodes:
        if not is_constant(node):
            reached = 0
            for x in node.reads:
                reached |= of(x)
            nodes[node] = reached
    return of


def _check_shape(node: Node, body: Subgraph, c: Carried) -> None:
    """Raise where a carried value is known to change its shape: it cannot be stacked, nor its cotangents carried."""
    if c.before.shape != c.first.shape and c.first.shape is not None:
        (after,) = rewrite([c.after], {c.before: _like(c.first, "first")}, within=body.own)
        sizes = after.shape
        if sizes is None or len(sizes) != len(c.first.shape) or any(
            m != n and isinstance(m, int) and isinstance(n, int) for m, n in zip(sizes, c.first.shape, strict=True)
        ):
            raise NoGradientError(
                f"{node!r} has no gradient: a carried value of type {c.first!r} becomes {after!r}, and the gradient of "
                f"a loop needs one that keeps its shape. Write what grows as an output that is stacked."
            )

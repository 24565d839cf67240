"""How do gradients flow through branches and loops? Backwards through the branch taken, from the last iteration on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Subgraph, Value, cond, counter, op, rewrite, zeros_like

from ..grad import backpropagate
from ..registry import is_constant, vjp


@vjp("If")
def _(condition, *, node, dys, wanted):
    then = _branch(node, node.attributes["then_branch"], dys, wanted)
    otherwise = _branch(node, node.attributes["else_branch"], dys, wanted)
    found = [x for x, a, b in zip(wanted, then[1], otherwise[1], strict=True) if a is not None or b is not None]
    if not found:
        return [None] * len(wanted)
    branches = []
    for since, gradients, branch in (then, otherwise):
        given = dict(zip(wanted, gradients, strict=True))
        outputs = [zeros_like(x) if (d := given[x]) is None else d for x in found]
        branches.append(_including(branch, Subgraph.since(since, (), outputs)))
    made = op.If(condition, then_branch=branches[0], else_branch=branches[1], n_outputs=len(found))
    values = [made] if isinstance(made, Value) else made
    result = {x: d.stated(x.shape) for x, d in zip(found, values, strict=True)}
    return [result.get(x) for x in wanted]


def _branch(node: Node, branch: Subgraph, dys: Mapping[Value, Value], wanted: Sequence[Value]) -> Any:
    """When the gradients of a branch began to be written, the gradients, None where it has none, and itself.

    What they read of the branch is handed out to them where its size is known. The rest they compute once more: in a
    loop, a branch that is not taken could not hand out anything of the same size.
    """
    since = next(counter)
    pairs = [(v, _sized(dys[y], v)) for y, v in zip(node.outputs, branch.outputs, strict=True) if y in dys]
    pairs += [(y.inner, d) for y, d in dys.items() if y.inner is not None and y.inner.node in branch.own]
    found = backpropagate([v for v, _ in pairs], [d for _, d in pairs], wanted, set(branch.captured))
    given = [d for d in found if d is not None]
    handed_out = {v: node.tap(v) for v in _read_of(branch, given, since, _is_static)}
    written = Subgraph.since(since, (), given).own | branch.own
    made = iter(rewrite(given, handed_out, within=written))
    return since, [None if d is None else next(made) for d in found], branch


def _sized(d: Value, x: Value) -> Value:
    """d, which is known to have the shape of x."""
    if d.shape is not None and None not in d.shape:
        return d
    return (op.Identity(d) if d.node is None else d).stated(x.shape)


def _including(body: Subgraph, written: Subgraph) -> Subgraph:
    """A body that was just written, which may compute what another one computes."""
    return Subgraph(written.inputs, written.outputs, (written.inside or frozenset()) | body.own)


def _read_of(body: Subgraph, gradients: Sequence[Value], since: int, saved: Callable[[Value], bool],
             known: Iterable[Value] = ()) -> list[Value]:
    """What gradients, which were written after a moment, read of the values of a body.

    What cannot be saved is computed again, of what can. Random numbers are never drawn again.
    """
    own, inputs = body.own, set(body.inputs)
    read: dict[Value, None] = {}
    seen = set(known)
    stack = list(gradients)
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if v in inputs or (v.node is not None and v.node in own and (saved(v) or v.node.is_random)):
            read[v] = None
        elif v.node is not None and (v.node in own or v.node.serial > since):
            stack.extend(v.node.reads)
    return list(read)


def _is_static(v: Value) -> bool:
    return v.is_static


def _has_rank(v: Value) -> bool:
    return v.shape is not None


@dataclass(frozen=True)
class Stream:
    """A sequence that a loop reads or writes: all of it, one slice inside the body, its axis and its direction."""

    whole: Value
    slice: Value
    axis: int = 0
    direction: int = 0


@dataclass(frozen=True)
class Carried:
    """A value that a loop carries: before the first iteration, inside the body before and after, after the last."""

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
    return _backwards(node, carried, read, streams(node.outputs[n:], body.outputs[n:], "output"), dys, wanted)


@vjp("Loop")
def _(trips=None, going=None, *first, node, dys, wanted):
    body, n = node.attributes["body"], len(first)
    after, last = body.outputs[1 : n + 1], node.outputs[:n]
    carried = [Carried(*v) for v in zip(first, body.inputs[2:], after, last, strict=True)]
    written = [Stream(*v) for v in zip(node.outputs[n:], body.outputs[n + 1 :], strict=True)]
    return _backwards(node, carried, [], written, dys, wanted)


def _backwards(node: Node, carried: Sequence[Carried], read: Sequence[Stream], written: Sequence[Stream],
               dys: Mapping[Value, Value], wanted: Sequence[Value]) -> list[Value | None]:
    """Cotangents from a Scan over the iterations, the last one first, that carries those of what the loop carries."""
    (body,) = node.bodies
    asked = set(wanted)
    captured = [x for x in body.captured if x in asked]
    slices = [s for s in read if s.whole in asked]
    # What comes in from behind: by what was written, and by what was handed out for the gradient of a gradient.
    given = [(s, dys[s.whole]) for s in written if s.whole in dys]
    given += [(Stream(y, y.inner), d) for y, d in dys.items() if y.inner is not None]
    carried = _needed(body, carried, [*(s.slice for s in slices), *captured], [s.slice for s, _ in given], dys, asked)
    for c in carried:
        _check_shape(node, body, c)

    since = next(counter)
    # What is carried keeps its shape, but for sizes of a Loop that are not known.
    ds = [_like(c.after if c.before.shape is None or None in c.before.shape else c.before, "ds") for c in carried]
    dy = [_like(s.slice, "dy") for s, _ in given]
    wrt = _by(carried, captured, slices)
    ends = [*(c.after for c in carried), *(s.slice for s, _ in given)]
    found = dict(zip(wrt, backpropagate(ends, [*ds, *dy], wrt, {*body.inputs, *body.captured}), strict=True))
    captured = [x for x in captured if found[x] is not None]
    slices = [s for s in slices if found[s.slice] is not None]
    if not (captured or slices or any(c.first in asked for c in carried)):
        return [None] * len(wanted)

    sums = [_like(x, "sum") for x in captured]
    states = [zeros_like(d) if (b := found[c.before]) is None else b for c, d in zip(carried, ds, strict=True)]
    totals = [a + d for a, x in zip(sums, captured, strict=True) if (d := found[x]) is not None]
    dx = [d for s in slices if (d := found[s.slice]) is not None]
    # onnxruntime wants to know the ranks of all that a body gives.
    again = _read_of(body, [*states, *totals, *dx], since, _has_rank, [*ds, *dy, *sums])
    own = {s.slice: s for s in (*written, *read)}
    saved = [own.get(v) or Stream(node.tap(v), v) for v in again]
    if not given and not saved:  # a Scan reads one sequence at least: it knows its length from it
        saved = [read[0] if read else Stream(node.tap(body.inputs[0]), body.inputs[0])]
    inputs = [*ds, *sums, *dy, *(s.slice for s in saved)]
    results = zip([*states, *totals, *dx], _by(carried, captured, slices), strict=True)
    backward = _including(body, Subgraph.since(since, inputs, [_sized(d, x) for d, x in results]))

    def untouched() -> list[Value]:
        ends = [dys[c.last] if c.last in dys else zeros_like(c.last) for c in carried]
        return [*ends, *map(zeros_like, captured)]

    def run() -> list[Value]:
        sources = [*(s for s, _ in given), *saved]
        wholes = [*(d for _, d in given), *(s.whole for s in saved)]
        made = op.Scan(
            *untouched(), *wholes, body=backward, num_scan_inputs=len(wholes),
            scan_input_axes=[s.axis for s in sources], scan_input_directions=[1 - s.direction for s in sources],
            scan_output_axes=[s.axis for s in slices], scan_output_directions=[1 - s.direction for s in slices],
        )
        return [made] if isinstance(made, Value) else list(made)

    cotangents = run() if node.op_type == "Scan" or _surely_runs(node) else _unless_none(node, run, untouched)
    result: dict[Value, Value] = {}
    names = [*(c.first for c in carried), *captured, *(s.whole for s in slices)]
    for x, d in zip(names, cotangents, strict=True):
        d = d.stated(x.shape)
        result[x] = result[x] + d if x in result else d
    return [result.get(x) for x in wanted]


def _by(carried: Sequence[Carried], captured: Sequence[Value], slices: Sequence[Stream]) -> list[Value]:
    """By what the body is differentiated."""
    return [*(c.before for c in carried), *captured, *(s.slice for s in slices)]


def _like(x: Value, hint: str) -> Value:
    """A variable of the type of x."""
    return Value(x.type, hint=hint)


def _surely_runs(node: Node) -> bool:
    """Whether a Loop is known to have one iteration at least."""
    trips, going = (*node.inputs, None, None)[:2]
    counted = trips is not None and trips.array is not None and trips.array.item() > 0
    return counted and (going is None or (going.array is not None and going.array.item()))


def _unless_none(node: Node, run: Any, untouched: Any) -> list[Value]:
    """What `run` gives; where a Loop has had no iteration, which Scan cannot do, what comes in goes out."""
    done = op.Squeeze(op.Shape(node.tap(node.bodies[0].inputs[0])), [0])
    made = cond(done > 0, run, untouched)
    return [made] if isinstance(made, Value) else list(made)


def _needed(body: Subgraph, carried: Sequence[Carried], sources: Sequence[Value], ends: Sequence[Value],
            dys: Mapping[Value, Value], wanted: Collection[Value]) -> list[Carried]:
    """What is carried between something wanted and something that a cotangent comes from."""
    every = [c for c in carried if c.before.is_float]
    befores = [c.before for c in every]
    paths = _paths(body, [*befores, *sources])
    mask = [paths(c.after) for c in every]
    from_sources = sum(1 << i for i in range(len(every), len(every) + len(sources)))
    live = sum(1 << i for i, c in enumerate(every) if c.first in wanted)
    reached = sum(1 << i for i, c in enumerate(every) if c.last in dys)
    for y in ends:
        reached |= paths(y)
    for _ in every:
        live |= sum(1 << i for i, m in enumerate(mask) if m & (live | from_sources))
        for i, m in enumerate(mask):
            reached |= m if reached >> i & 1 else 0
    return [c for i, c in enumerate(every) if (live & reached) >> i & 1]


def _paths(body: Subgraph, targets: Sequence[Value]) -> Any:
    """From a value of the body to the targets that it depends on, a bit for each."""
    bits = {x: 1 << i for i, x in enumerate(targets)}
    nodes: dict[Node, int] = {}

    def of(v: Value) -> int:
        return bits[v] if v in bits else nodes.get(v.node, 0) if v.node is not None and v.is_float else 0

    for node in body.nodes:
        if not is_constant(node):
            found = 0
            for x in node.reads:
                found |= of(x)
            nodes[node] = found
    return of


def _check_shape(node: Node, body: Subgraph, c: Carried) -> None:
    """An error where a carried value is known to change its shape: then its cotangents cannot be carried."""
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

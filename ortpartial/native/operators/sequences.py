"""Control flow: Scan and Loop are loops in C, and If a branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Node, Value
from ortpartial.native.expressions import Affine, Expression, Iota, Literal, Load, leaves
from ortpartial.native.kernels import Branch, Repeat
from ortpartial.native.scheduling import order_kernels
from ortpartial.native.translation import Translator, describe, sizes, translates

from .elementwise import apply, wrap

__all__: list[str] = []

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class Stack:
    """A value of a body that is stacked over the time steps: by which output, along which axis, from which end."""

    whole: Value
    inner: Value
    axis: int = 0
    is_reversed: bool = False


@dataclass(frozen=True)
class Steps:
    """The counter of a loop, and how often it runs."""

    counter: str
    count: int

    def at(self, place: Affine, axis: int, is_reversed: bool) -> Affine:
        """The part of a sequence along an axis that belongs to a time step."""
        axis %= len(place.shape)
        stride, last = place.strides[axis], self.count - 1
        first = stride * last if is_reversed else 0
        return replace(place, shape=_without(place.shape, axis), strides=_without(place.strides, axis),
                       offset=place.offset + first,
                       outer=(*place.outer, (self.counter, -stride if is_reversed else stride)))


def _without(numbers: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*numbers[:axis], *numbers[axis + 1 :])


@translates("Scan")
def scan(t: Translator, node: Node) -> list[Expression]:
    body, n_read = node.attributes["body"], node.attribute("num_scan_inputs")
    n = len(node.inputs) - n_read

    def settings(what: str, count: int) -> list[tuple[int, bool]]:
        axes, directions = (node.attribute(f"scan_{what}_{k}") or [0] * count for k in ("axes", "directions"))
        return [(axis, bool(d)) for axis, d in zip(axes, directions, strict=True)]

    ways = settings("input", n_read)
    steps = Steps(t.counter(), t.read(node.inputs[n]).shape[ways[0][0]])
    slices = {inner: _slice(t, steps, t.read(v), *way)
              for inner, v, way in zip(body.inputs[n:], node.inputs[n:], ways, strict=True)}
    written = settings("output", len(body.outputs) - n)
    stacks = [Stack(whole, inner, *way)
              for whole, inner, way in zip(node.outputs[n:], body.outputs[n:], written, strict=True)]
    carried = list(zip(node.inputs[:n], body.inputs[:n], body.outputs[:n], strict=True))
    return _repeat(t, node, steps, slices, carried, stacks)


@translates("Loop")
def loop(t: Translator, node: Node) -> list[Expression]:
    body, (trips, going, *first) = node.attributes["body"], node.inputs
    count = t.numbers(trips)
    number, condition, *before = body.inputs
    goes_on, *after = body.outputs
    if count is None or not all(v is None or v is condition or _is_true(v) for v in (going, goes_on)):
        raise UntranslatableError(f"{describe(node)} runs as often as a condition or a number says that is computed, "
                                  f"which is not written in C.")
    steps, n = Steps(t.counter(), max(0, int(count.reshape(())))), len(first)
    counting = Iota(_INT64, (), Affine((), (), 0, ((steps.counter, 1),)))
    inputs = {number: counting, condition: Literal(np.dtype(bool), (), True)}
    stacks = [Stack(whole, inner) for whole, inner in zip(node.outputs[n:], after[n:], strict=True)]
    return _repeat(t, node, steps, inputs, list(zip(first, before, after[:n], strict=True)), stacks)


def _is_true(v: Value) -> bool:
    return v.array is not None and bool(v.array.reshape(()))


def _slice(t: Translator, steps: Steps, e: Expression, axis: int, is_reversed: bool) -> Expression:
    """The part of a sequence that a time step reads."""
    e = t.store(e) if e.cost else e
    return t.view(e, lambda at: steps.at(at, axis, is_reversed))


def _repeat(t: Translator, node: Node, steps: Steps, inputs: Mapping[Value, Expression],
            carried: Sequence[tuple[Value | None, Value, Value]], stacks: Sequence[Stack]) -> list[Expression]:
    """A loop that carries states, each from its first value through one before and one after a time step."""
    body = node.attributes["body"]
    states = [t.store(t.read(first)) for first, *_ in carried]
    stacks = [*stacks, *(Stack(v, v.inner) for v in t.taps(node) if v.inner is not None)]
    wholes = [_allocate_stack(t, steps, s) for s in stacks]
    before = {v: state for (_, v, _), state in zip(carried, states, strict=True)}
    with t.inside({**inputs, **before}, body.captured) as kernels:
        results = t.run([*(v for *_, v in carried), *(s.inner for s in stacks)])
        for s, whole, e in zip(stacks, wholes, results[len(states) :], strict=True):
            part = t.view(whole, lambda at, s=s: steps.at(at, s.axis, s.is_reversed))  # type: ignore[misc]
            assert isinstance(part, Load)
            t.store(e, part)
        _carry(t, node, states, results[: len(states)])
    if steps.count:
        t.kernels.append(Repeat(steps.counter, steps.count, order_kernels(kernels)))
    for s, whole in list(zip(stacks, wholes, strict=True)):
        if s.whole.inner is not None:
            t.define(s.whole, whole)
    return [*states, *wholes[: len(node.outputs) - len(states)]]


def _allocate_stack(t: Translator, steps: Steps, s: Stack) -> Load:
    """Memory for the values of all time steps."""
    shape = list(sizes(s.inner))
    shape.insert(s.axis % (len(shape) + 1), steps.count)
    return t.allocate(s.inner.dtype, shape, s.whole)


def _carry(t: Translator, node: Node, states: Sequence[Load], values: Sequence[Expression]) -> None:
    """Put new values in the place of states, which are read before any of them changes."""
    arrays = {state.array for state in states}
    changes = [(state, e) for state, e in zip(states, values, strict=True)
               if not (isinstance(e, Load) and e.key == state.key)]
    for state, e in changes:
        if state.shape != e.shape:
            raise UntranslatableError(f"{describe(node)} carries a value whose shape changes from {state.shape} to "
                                      f"{e.shape}, which is not written in C.")
    ready = [t.store(e) if any(isinstance(x, Load) and x.array in arrays for x in leaves(e)) else e
             for _, e in changes]
    for (state, _), e in zip(changes, ready, strict=True):
        t.store(e, state)


@translates("CumSum")
def cumulate(t: Translator, node: Node) -> Expression:
    e, number, y = t.read(node.inputs[0]), t.numbers(node.inputs[1]), node.outputs[0]
    if number is None:
        raise UntranslatableError(f"{describe(node)} along an axis that is computed is not written in C.")
    axis, whole = int(number.reshape(())) % len(e.shape), t.allocate(y.dtype, sizes(y), y)
    steps, is_reversed = Steps(t.counter(), e.shape[axis]), bool(node.attribute("reverse"))
    term = _slice(t, steps, e, axis, is_reversed)
    total = t.store(Literal(e.dtype, term.shape, 0))
    with t.inside({}, ()) as kernels:
        after = t.store(apply(t, wrap("{0} + {1}", e.dtype), total, term))
        part = t.view(whole, lambda at: steps.at(at, axis, is_reversed))
        assert isinstance(part, Load)
        t.store(total if node.attribute("exclusive") else after, part)
        t.store(after, total)
    t.kernels.append(Repeat(steps.counter, steps.count, order_kernels(kernels)))
    return whole


@translates("If")
def branch(t: Translator, node: Node) -> list[Expression]:
    condition, taps = node.inputs[0], t.taps(node)
    sides = [node.attributes[f"{name}_branch"] for name in ("then", "else")]
    wholes = [t.allocate(v.dtype, sizes(v), y) for v, y in zip(sides[0].outputs, node.outputs, strict=True)]
    saved = {v: t.allocate(v.inner.dtype, sizes(v.inner), v) for v in taps if v.inner is not None}
    test = t.view(t.load(condition), lambda at: at.reshaped(()))
    assert isinstance(test, Load)
    bodies = []
    for side in sides:
        if [sizes(v) for v in side.outputs] != [whole.shape for whole in wholes]:
            raise UntranslatableError(f"{describe(node)} gives values of two shapes, which is not written in C.")
        own = {v.inner: whole for v, whole in saved.items() if v.inner is not None and v.inner.node in side.own}
        with t.inside({}, side.captured) as kernels:
            for e, whole in zip(t.run([*side.outputs, *own]), [*wholes, *own.values()], strict=True):
                t.store(e, whole)
        bodies.append(order_kernels(kernels))
    t.kernels.append(Branch(test, *bodies))
    for v, whole in saved.items():
        t.define(v, whole)
    return list(wholes)

"""Entries: a step that several processes interrupt to add up numbers, cut into graphs that run in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ortpartial.exceptions import GraphError
from ortpartial.graph import Node, Value, rewrite, topological, walk_back

from .trace import Trace

__all__ = ["Entry", "split_entries"]


@dataclass(frozen=True)
class Entry:
    """A part of a step: an entry of ``training_info``.

    Parameters
    ----------
    outputs : dict of str to Value
        Its results.
    updates : dict of str to Value
        The state that it changes, which the entries after it read.
    """

    outputs: Mapping[str, Value]
    updates: Mapping[str, Value]


def split_entries(trace: Trace, outputs: Mapping[str, Value]) -> list[Entry]:
    """The entries of a step, each of which ends where the processes exchange numbers that the next reads.

    An entry computes all that needs no later exchange. The state has the values that the code has given it so far,
    unless a later entry reads a value before that. Where an entry needs values of a former entry that the state does
    not hold, it computes them again.

    Parameters
    ----------
    trace : Trace
        The trace of a module's code.
    outputs : dict of str to Value
        The results of the step.

    Returns
    -------
    list of Entry
        A single entry, if nothing is exchanged.

    Raises
    ------
    GraphError
        Random numbers would have to be drawn again.
    """
    if not trace.exchanges:
        return [Entry(outputs, trace.changed)]
    written = [v for versions in trace.versions.values() for v in versions]
    sent = {n: exchange.sent for n, exchange in trace.exchanges.items()}
    places = _Places(trace, [*written, *sent.values(), *outputs.values()])
    stop = 1 + max(map(places.of, [*written, *outputs.values()]))
    plan = _plan(trace, outputs, sent, places, stop)
    entries = []
    for i in range(stop):
        new = {plan.held[i][n]: trace.before[n] for n in trace.versions}
        targets = plan.targets[i]
        values = dict(zip(targets, rewrite(list(targets.values()), new), strict=True))
        entries.append(Entry({n: values["output", n] for n in outputs if ("output", n) in values},
                             {n: v for (kind, n), v in values.items() if kind == "state"}))
    return entries


class _Places:
    """The first entry in which a value can be computed, by the number of exchanges in a row before it."""

    def __init__(self, trace: Trace, values: Sequence[Value]):
        self._after = {exchange.received: exchange for exchange in trace.exchanges.values()}
        self._nodes: dict[Node, int] = {}
        for exchange in trace.exchanges.values():
            self._add([exchange.sent])
        self._add(values)

    def _add(self, values: Sequence[Value]) -> None:
        for node in topological(values):
            if node not in self._nodes:
                self._nodes[node] = max(map(self.of, node.reads), default=0)

    def of(self, v: Value) -> int:
        if v in self._after:
            return 1 + self.of(self._after[v].sent)
        return 0 if v.node is None else self._nodes[v.node]


@dataclass(frozen=True)
class _Plan:
    """By entry, the state before it, and its values, by kind and name."""

    held: Sequence[Mapping[str, Value]]
    targets: Sequence[Mapping[tuple[str, str], Value]]


def _plan(trace: Trace, outputs: Mapping[str, Value], sent: Mapping[str, Value], places: _Places, stop: int) -> _Plan:
    """The values that each entry computes; states whose first value a later entry reads are changed there."""
    first: dict[str, int] = {}
    while True:
        held: list[dict[str, Value]] = [{n: trace.before[n] for n in trace.versions}]
        targets: list[dict[tuple[str, str], Value]] = []
        for i in range(stop):
            held.append(_hold(trace, places, i, first))
            updates = {n: v for n, v in held[i + 1].items() if v is not held[i][n]}
            targets.append({**{("output", n): v for n, v in outputs.items() if places.of(v) == i},
                            **{("state", n): v for n, v in sent.items() if places.of(v) == i},
                            **{("state", n): v for n, v in updates.items()}})
        reads = [_find_reads(targets[i].values(), held[i].values()) for i in range(stop)]
        late = [{n: i for n, v in trace.before.items() if v in reads[i] and n in held[i] and held[i][n] is not v}
                for i in range(stop)]
        if not any(late):
            _check_random(reads)
            return _Plan(held, targets)
        for states in late:
            first.update(states)


def _hold(trace: Trace, places: _Places, i: int, first: Mapping[str, int]) -> dict[str, Value]:
    """The state after an entry: the last value that it has computed, and not before the first that it may change."""
    reached = {n: [v for v in versions if places.of(v) <= i] if i >= first.get(n, 0) else []
               for n, versions in trace.versions.items()}
    return {n: versions[-1] if versions else trace.before[n] for n, versions in reached.items()}


def _find_reads(values: Iterable[Value], held: Iterable[Value]) -> set[Value]:
    """The values that an entry computes and reads, beside the state that it begins with."""
    ends = set(held)
    return set(walk_back(values, ends.__contains__)) - ends


def _check_random(reads: Sequence[set[Value]]) -> None:
    """Check that no two entries draw the same random numbers."""
    drawn: set[Node] = set()
    for values in reads:
        nodes = {v.node for v in values if v.node is not None and v.node.is_random}
        if again := [n for n in nodes if n in drawn]:
            raise GraphError(f"The step of several processes draws {again[0].op_type} before gradients are exchanged "
                             f"and needs the same numbers after that; take them as an input of train_one_batch.")
        drawn |= nodes

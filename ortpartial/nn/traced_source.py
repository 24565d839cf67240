"""Source of a module's steps: the graphs that its code has written, without a file in between."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ortpartial.execution import Exchanging, GraphPart, GraphSource, StepNames, Vector
from ortpartial.graph import Value, find_inputs
from ortpartial.runtime import Device, DeviceName

from .flat_step import flatten_step
from .step_segments import Entry, split_entries
from .trace import ITERATION, SEED, WEIGHTS
from .tracing import Writing

__all__ = ["find_loss", "make_source", "unwrap"]


def make_source(writing: Writing, state: Mapping[str, np.ndarray], *, device: DeviceName, threads: int | None,
                exchange: Exchanging | None = None) -> GraphSource:
    """Make the source of a step's engines.

    Parameters
    ----------
    writing : Writing
        The step.
    state : dict of str to numpy.ndarray
        The numbers of the state that it reads and leaves.
    device : str or tuple
        Where it runs.
    threads : int or None
        Number of threads; by default as its sizes suggest.
    exchange : callable, optional
        As for `GraphSource`.

    Returns
    -------
    GraphSource
    """
    trace, loss = writing.trace, find_loss(writing)
    parts = tuple([_read_part(writing, entry) for entry in split_entries(trace, writing.outputs)])
    names = StepNames(frozenset({*trace.before, *(n for part in parts for n in part.model.values)} - {ITERATION, SEED}))
    place = Device.parse(device)
    # A loop whose values the gradient reads cannot be written a second time.
    may_join = loss is not None and place.is_cpu and parts[0].model.graph is None
    flat, vectors = _flatten(writing, parts[0], names) if may_join else (None, {})
    return GraphSource(parts, {n: state[n] for n in trace.before}, names, place, loss=loss, counter=ITERATION,
                       thread_count=threads, exchanges=trace.exchanges, exchange=exchange,
                       weights=tuple([n for n, p in trace.parameters.items() if p.is_trained]),
                       row_weights=WEIGHTS if WEIGHTS in writing.inputs else None, flat=flat, vectors=vectors,
                       precision=trace.precision)


def _read_part(writing: Writing, entry: Entry) -> GraphPart:
    """A part of a step, whose new states have names that no value has."""
    updates = {n: f"{n}_new" for n in entry.updates}
    results = {**entry.outputs, **{updates[n]: unwrap(v) for n, v in entry.updates.items()}}
    inputs = find_inputs(list(results.values()), {**writing.inputs, **writing.trace.before})
    return GraphPart.from_values(inputs, results, updates)


def _flatten(writing: Writing, part: GraphPart, names: StepNames) -> tuple[GraphPart | None, Mapping[str, Vector]]:
    """A step with vectors in place of small weights and states, and these vectors."""
    flat = flatten_step(writing.trace, part.model.outputs, part.updates, names.free)
    if flat is None:
        return None, {}
    updates = {n: new for n, new in part.updates.items() if new in flat.outputs} | {n: f"{n}_new" for n in flat.after}
    outputs = {**flat.outputs, **{updates[n]: v for n, v in flat.after.items()}}
    inputs = find_inputs(list(outputs.values()), {**writing.inputs, **writing.trace.before, **flat.before})
    return GraphPart.from_values(inputs, outputs, updates), flat.vectors


def unwrap(v: Value) -> Value:
    """The value behind the end of a gradient, which means nothing at the end of a step."""
    if v.node is not None and v.node.op_type == "StopGradient" and v.node.inputs[0] is not None:
        return v.node.inputs[0]
    return v


def find_loss(writing: Writing) -> str | None:
    """The only loss of a step, by the name of the result; None where it returns several, or is split into parts."""
    if writing.trace.exchanges:
        return None
    prefix, _ = writing.parts[-1]
    loss = writing.outputs.get(prefix)
    return prefix if loss is not None and loss.is_float and loss.shape == () else None

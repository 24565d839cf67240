"""Source of a module's steps: the graphs that its code has written, without a file in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ortpartial.execution import GraphPart, GraphSource, StepNames
from ortpartial.graph import Value, find_inputs
from ortpartial.runtime import Buffer, Device, DeviceName

from .entries import Entry, split_entries
from .trace import ITERATION, SEED, WEIGHTS
from .writing import Writing

__all__ = ["find_loss", "make_source", "unwrap"]


def make_source(writing: Writing, state: Mapping[str, np.ndarray], *, device: DeviceName, threads: int | None,
                exchanges: Mapping[str, Callable[[Buffer], None]]) -> GraphSource:
    """Make the source of a step's engines.

    Parameters
    ----------
    writing : Writing
        The step.
    state : dict of str to numpy.ndarray
        The numbers of what it reads and leaves.
    device : str or tuple
        Where it runs.
    threads : int or None
        Number of threads; by default as its sizes suggest.
    exchanges : dict of str to callable
        As for `GraphSource`.

    Returns
    -------
    GraphSource
    """
    parts = tuple([_read_part(writing, entry) for entry in split_entries(writing.trace, writing.outputs)])
    taken = {*writing.trace.before, *(n for part in parts for n in part.model.values)} - {ITERATION, SEED}
    return GraphSource(parts, {n: state[n] for n in writing.trace.before}, StepNames(frozenset(taken)),
                       Device.parse(device), loss=find_loss(writing), counter=ITERATION, thread_count=threads,
                       exchanges=exchanges,
                       weights=tuple([n for n, p in writing.trace.parameters.items() if p.is_trained]),
                       row_weights=WEIGHTS if WEIGHTS in writing.inputs else None)


def _read_part(writing: Writing, entry: Entry) -> GraphPart:
    """A part of a step, whose new states have names that no value has."""
    updates = {n: f"{n}_new" for n in entry.updates}
    results = {**entry.outputs, **{updates[n]: unwrap(v) for n, v in entry.updates.items()}}
    inputs = find_inputs(list(results.values()), {**writing.inputs, **writing.trace.before})
    return GraphPart.from_values(inputs, results, updates)


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

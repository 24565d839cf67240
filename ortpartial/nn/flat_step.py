"""Flat step: the step of a module in which small weights that are updated alike are a vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ortpartial.execution import Vector
from ortpartial.graph import Value, rewrite

from .trace import Trace
from .update_call import UpdateCall

__all__ = ["FlatStep", "flatten_step"]


@dataclass(frozen=True)
class FlatStep:
    """A step in which some weights and states are vectors.

    Parameters
    ----------
    vectors : dict of str to Vector
        The weights and states that are vectors, by the name of the vector.
    before, after : dict of str to Value
        The vectors before and after the step.
    outputs : dict of str to Value
        All that the step returns, and its other new states.
    """

    vectors: Mapping[str, Vector]
    before: Mapping[str, Value]
    after: Mapping[str, Value]
    outputs: Mapping[str, Value]


def flatten_step(trace: Trace, outputs: Mapping[str, Value], updates: Mapping[str, str], free: Callable[[str], str]
                 ) -> FlatStep | None:
    """Write a step with vectors in place of small weights and their states.

    Parameters
    ----------
    trace : Trace
        The step. Weights that it updates more than once remain as they are.
    outputs : dict of str to Value
        All that it returns, and its new states.
    updates : dict of str to str
        By state, the output that is its next value.
    free : callable
        From the name of a vector to a free name.

    Returns
    -------
    FlatStep or None
        None where no weights are updated faster as vectors.
    """
    once = {n for n, versions in trace.versions.items() if len(versions) == 1}
    vectors: dict[str, Vector] = {}
    before: dict[str, Value] = {}
    new: dict[Value, Value] = {}
    calls: list[UpdateCall] = []
    for i, call in enumerate(trace.update_calls):
        update = call.update
        for group in update.join(once, lambda n, i=i: free(f"{n}_{i}")):  # type: ignore[misc]
            joined = group.vectors(update.name_state, update.states[group.first])
            update = update.flatten(group)
            for n, vector in joined.items():
                before[n] = update.before[n]
                new |= {trace.before[m]: part for m, part in vector.split(before[n]).items()}
            vectors |= joined
        if update.groups:
            calls.append(replace(call, update=update))
    if not vectors:
        return None
    after: dict[str, Value] = {}
    for call in calls:
        gradients = dict(zip(call.gradients, rewrite(list(call.gradients.values()), new), strict=True))
        for n, v in replace(call, gradients=gradients).take().items():
            if n in vectors:
                after[n] = v
                # What the code computes of new weights reads them in the vector.
                new |= {trace.after[m]: part for m, part in vectors[n].split(v).items()}
    dropped = {updates[m] for vector in vectors.values() for m in vector.shapes}
    rest = {n: v for n, v in outputs.items() if n not in dropped}
    return FlatStep(vectors, before, after, dict(zip(rest, rewrite(list(rest.values()), new), strict=True)))

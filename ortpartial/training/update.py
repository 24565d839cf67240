"""The update of the weights by their gradients, which are accumulated and clipped, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ortpartial.graph import Value, cond, constant, op, variable, zeros_like
from ortpartial.learning import descend, drop_flushes, share_flushes

from .spec import ACCUMULATED, AVERAGE, TrainingSpec

__all__ = ["append_update"]

#: By the name of a weight: its states by their own names.
States = Mapping[str, Mapping[str, Value]]


def append_update(
    spec: TrainingSpec,
    weights: Mapping[str, Value],
    gradients: Iterable[Value],
    k: Value,
    inputs: dict[str, Value],
    outputs: dict[str, Value],
    due: bool | None = None,
) -> None:
    """Append weights and states before the step to the inputs, and after it to the outputs.

    Parameters
    ----------
    spec : TrainingSpec
        The weights and how they are updated.
    weights : dict of str to Value
        The weights by name.
    gradients : iterable of Value
        Their gradients, in the same order.
    k : Value
        The number of the batch, from 1, an int64 scalar.
    inputs, outputs : dict of str to Value
        Those of the step, which are extended.
    due : bool, optional
        With `accumulate`, whether this batch updates the weights, and leaves the sum of gradients to be set to zero, or
        adds to the sum alone; by default the graph finds out by k.
    """
    names = spec.names
    states: dict[str, dict[str, Value]] = {n: {} for n in weights}
    for name, (n, s) in spec.states.items():
        states[n][s] = variable(name, weights[n].dtype, spec.shapes_of_states(n)[s])
    before = _by_name(spec, weights, states)
    factors: dict[str, Value | float] = {n: spec.rate_factors.get(n, 1.0) for n in weights}
    if names.rate_scale in spec.controls:
        scale = inputs[names.rate_scale] = variable(names.rate_scale, np.float64, [])
        factors = {n: scale if factor == 1 else scale * factor for n, factor in factors.items()}
    inputs.update(before)
    # What is written first is computed first, and a gradient whose weight has been updated is no longer kept.
    by_age = sorted(zip(weights, gradients, strict=True), key=lambda pair: pair[1].node.serial if pair[1].node else -1)
    if spec.accumulate == 1:
        after = _update_weights(spec, weights, dict(by_age), k, states, factors)
    else:
        after = _accumulate(spec, weights, dict(by_age), k, states, factors, due)
    outputs.update({names.new(i): after[i] for i in before if i in after})


def _update_weights(
    spec: TrainingSpec, weights: Mapping[str, Value], gradients: Mapping[str, Value], k: Value, states: States,
    factors: Mapping[str, Value | float],
) -> dict[str, Value]:
    """Weights, optimizer states and averages after update k, by their names in the graphs."""
    averaging = spec.planned_averaging
    if spec.gradient_clipping is not None:
        gradients = dict(zip(gradients, spec.gradient_clipping(list(gradients.values())), strict=True))
    updated: dict[str, Value] = {}
    after: dict[str, dict[str, Value]] = {}
    for n, g in gradients.items():
        own = {s: v for s, v in states[n].items() if s not in (ACCUMULATED, AVERAGE)}
        updated[n], *new = spec.rates[n].apply(weights[n], g, k, *own.values(), start=spec.rate_starts.get(n, 0),
                                               factor=factors[n])
        after[n] = dict(zip(own, new, strict=True))
        if averaging is not None:
            after[n][AVERAGE] = averaging.apply(states[n][AVERAGE], updated[n], k, start=spec.average_start)
    values = _by_name(spec, {n: updated[n] for n in weights}, after)
    place_flushes = share_flushes if spec.may_branch else drop_flushes
    return dict(zip(values, place_flushes(list(values.values())), strict=True))


def _accumulate(
    spec: TrainingSpec, weights: Mapping[str, Value], gradients: Mapping[str, Value], k: Value, states: States,
    factors: Mapping[str, Value | float], due: bool | None,
) -> dict[str, Value]:
    """Weights and all their states after batch k, of which every `accumulate`-th updates by the mean of the gradients.

    The mean is summed up, each gradient divided by their number, as it fuses into the product of most gradients.
    """
    n = spec.accumulate
    means = {w: descend(states[w][ACCUMULATED], constant(np.asarray(-1 / n, g.dtype)), g)
             for w, g in gradients.items()}
    sums = {spec.names.state(w, ACCUMULATED): mean for w, mean in means.items()}
    if due is False:
        return sums
    if due:
        return _update_weights(spec, weights, means, k / n, states, factors)
    before = _by_name(spec, weights, states) | sums

    def update() -> list[Value]:
        after = _update_weights(spec, weights, means, k / n, states, factors)
        return [zeros_like(sums[i]) if i in sums else after[i] for i in before]

    is_due = op.Equal(op.Mod(k, n), 0)
    if spec.may_branch:
        after = cond(is_due, update, lambda: list(before.values()))
    else:
        after = [op.Where(is_due, new, old) for new, old in zip(update(), before.values(), strict=True)]
    return dict(zip(before, after, strict=True))


def _by_name(spec: TrainingSpec, weights: Mapping[str, Value], states: States) -> dict[str, Value]:
    """Weights, each with its states behind it, by their names in the graphs."""
    return {i: v for n, w in weights.items()
            for i, v in [(n, w), *((spec.names.state(n, s), v) for s, v in states[n].items())]}


"""The update of the weights by their gradients, which are accumulated and clipped, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ortpartial.graph import Value, cond, constant, op, variable, zeros_like
from ortpartial.learning import descend, drop_flushes, share_flushes

from .flat_weights import FlatGroup
from .spec import ACCUMULATED, AVERAGE, TrainingSpec

__all__ = ["append_update"]


def append_update(
    spec: TrainingSpec,
    weights: Mapping[str, Value],
    gradients: Iterable[Value],
    k: Value,
    inputs: dict[str, Value],
    outputs: dict[str, Value],
    due: bool | None = None,
    groups: Sequence[FlatGroup] = (),
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
    groups : sequence of FlatGroup
        Weights that are vectors of the step, and so their states, by the name of the group.
    """
    names = spec.names
    states: dict[str, dict[str, Value]] = {n: {} for n in weights}
    for name, (n, s) in spec.states.items():
        states[n][s] = variable(name, weights[n].dtype, spec.shapes_of_states(n)[s])
    factors: dict[str, Value | float] = {n: spec.rate_factors.get(n, 1.0) for n in weights}
    if names.rate_scale in spec.controls:
        scale = inputs[names.rate_scale] = variable(names.rate_scale, np.float64, [])
        factors = {n: scale if factor == 1 else scale * factor for n, factor in factors.items()}
    update = _Update(spec, weights, states, factors)
    for group in groups:
        update = update.flatten(group)
    inputs.update(update.before)
    # What is written first is computed first, and a gradient whose weight has been updated is no longer kept.
    by_age = sorted(zip(weights, gradients, strict=True), key=lambda pair: pair[1].node.serial if pair[1].node else -1)
    after = update.apply(dict(by_age), k) if spec.accumulate == 1 else update.accumulate(dict(by_age), k, due)
    outputs.update({names.new(i): after[i] for i in update.before if i in after})


@dataclass(frozen=True)
class _Update:
    """Weights, their states and the factors of their rates before an update, by the names of the weights.

    What methods take is by these names, too; what they return is by the names of weights and states in the graphs.
    """

    spec: TrainingSpec
    weights: Mapping[str, Value]
    states: Mapping[str, Mapping[str, Value]]
    factors: Mapping[str, Value | float]
    groups: Mapping[str, FlatGroup] = field(default_factory=dict)

    def flatten(self, group: FlatGroup) -> _Update:
        """The same update with a vector in place of some weights, whose gradients are still given one by one."""
        rest = [n for n in self.weights if n not in group.vector.shapes]
        vector = variable("", self.weights[group.first].dtype, [group.vector.size])
        states = {s: variable("", v.dtype, [group.vector.size]) for s, v in self.states[group.first].items()}
        return replace(
            self,
            weights={**{n: self.weights[n] for n in rest}, group.name: vector},
            states={**{n: self.states[n] for n in rest}, group.name: states},
            factors={**{n: self.factors[n] for n in rest}, group.name: self.factors[group.first]},
            groups={**self.groups, group.name: group})

    @property
    def before(self) -> dict[str, Value]:
        """Weights and states before the update."""
        return self._by_name(self.weights, self.states)

    def apply(self, gradients: Mapping[str, Value], k: Value) -> dict[str, Value]:
        """Weights, optimizer states and averages after update k."""
        spec, averaging = self.spec, self.spec.planned_averaging
        if spec.gradient_clipping is not None:
            gradients = dict(zip(gradients, spec.gradient_clipping(list(gradients.values())), strict=True))
        weights: dict[str, Value] = {}
        states: dict[str, dict[str, Value]] = {}
        for n, g in self._join(gradients).items():
            former = {s: v for s, v in self.states[n].items() if s not in (ACCUMULATED, AVERAGE)}
            first = self.groups[n].first if n in self.groups else n
            start = spec.rate_starts.get(first, 0)
            weights[n], *new = spec.rates[first].apply(
                self.weights[n], g, k, *former.values(), start=start, factor=self.factors[n])
            states[n] = dict(zip(former, new, strict=True))
            if averaging is not None:
                average = self.states[n][AVERAGE]
                states[n][AVERAGE] = averaging.apply(average, weights[n], k, start=spec.average_start)
        after = self._by_name(weights, states)
        place_flushes = share_flushes if spec.may_branch else drop_flushes
        return dict(zip(after, place_flushes(list(after.values())), strict=True))

    def accumulate(self, gradients: Mapping[str, Value], k: Value, due: bool | None) -> dict[str, Value]:
        """The same after batch k, of which every n-th updates by the mean of n gradients, with the sum of g / n.

        Each gradient is divided before it is added, as both fuse into the product that most gradients are.
        """
        n = self.spec.accumulate
        means = {w: descend(self.states[w][ACCUMULATED], constant(np.asarray(-1 / n, g.dtype)), g)
                 for w, g in gradients.items()}
        sums = {self.spec.names.state(w, ACCUMULATED): mean for w, mean in means.items()}
        if due is not None:
            return self.apply(means, k / n) if due else sums
        before = self.before | sums

        def update() -> list[Value]:
            after = self.apply(means, k / n)
            return [zeros_like(sums[i]) if i in sums else after[i] for i in before]

        is_due = op.Equal(op.Mod(k, n), 0)
        if self.spec.may_branch:
            after = cond(is_due, update, lambda: list(before.values()))
        else:
            after = [op.Where(is_due, new, old) for new, old in zip(update(), before.values(), strict=True)]
        return dict(zip(before, after, strict=True))

    def _join(self, gradients: Mapping[str, Value]) -> dict[str, Value]:
        """Gradients of weights by those of vectors, as well."""
        joined = {n: g for n, g in gradients.items() if n in self.weights}
        vectors = {i: group.vector for i, group in self.groups.items()}
        return joined | {i: v.join([gradients[n] for n in v.shapes]) for i, v in vectors.items()}

    def _by_name(
        self, weights: Mapping[str, Value], states: Mapping[str, Mapping[str, Value]]
    ) -> dict[str, Value]:
        """Weights, each with its states behind it, by their names in the graphs."""
        return {i: v for n in self.weights
                for i, v in [(n, weights[n]), *((self.spec.names.state(n, s), v) for s, v in states[n].items())]}

"""The update of the weights by their gradients, which are accumulated and clipped, and the average of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ortpartial.graph import Value, cond, constant, op, variable, zeros_like
from ortpartial.learning import (
    BaseLearningRate,
    GradientClipping,
    WeightAverage,
    apply_step,
    drop_flushes,
    share_flushes,
)

from .flat_weights import FlatGroup, join_weights
from .spec import ACCUMULATED, AVERAGE, TrainingSpec

__all__ = ["Update", "append_update"]


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
        The inputs and outputs of the step, which are extended.
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
    update = Update(weights, states, spec.rates, names.state, gradient_clipping=spec.gradient_clipping,
                    accumulate=spec.accumulate, averaging=spec.planned_averaging, average_start=spec.average_start,
                    starts=spec.rate_starts, factors=factors, may_branch=spec.may_branch)
    for group in groups:
        update = update.flatten(group)
    inputs.update(update.before)
    # Nodes are computed in the order of writing, and a gradient whose weight has been updated is no longer kept.
    by_age = sorted(zip(weights, gradients, strict=True), key=lambda pair: pair[1].node.serial if pair[1].node else -1)
    after = update(dict(by_age), k, due)
    outputs.update({names.new(i): after[i] for i in update.before if i in after})


@dataclass(frozen=True)
class Update:
    """The update of some weights, whose gradients may be clipped and accumulated, and the average of the weights.

    Parameters
    ----------
    weights : dict of str to Value
        The weights before the update, by name.
    states : dict of str to dict of str to Value
        By weight, its states: the states of the optimizer, in their order, then the sum of gradients and the average.
    rates : dict of str to BaseLearningRate
        By weight, its optimizer.
    name_state : callable
        From the names of a weight and of a state of it to the name of this state in the graphs.
    gradient_clipping : GradientClipping, optional
        How gradients are limited before an update.
    accumulate : int
        Number of batches of an update.
    averaging : WeightAverage, optional
        The average of the weights.
    average_start : int
        Number of the update after which averaging began.
    starts : dict of str to int
        By weight, the number of the update after which its states were zero, where that is not 0.
    factors : dict of str to Value or float
        By weight, the factor of its step size, where it is not 1.
    may_branch : bool
        Whether the graph may have branches.
    groups : dict of str to FlatGroup
        Weights that are vectors, by their name among `weights`.
    """

    weights: Mapping[str, Value]
    states: Mapping[str, Mapping[str, Value]]
    rates: Mapping[str, BaseLearningRate]
    name_state: Callable[[str, str], str]
    gradient_clipping: GradientClipping | None = None
    accumulate: int = 1
    averaging: WeightAverage | None = None
    average_start: int = 0
    starts: Mapping[str, int] = field(default_factory=dict)
    factors: Mapping[str, Value | float] = field(default_factory=dict)
    may_branch: bool = False
    groups: Mapping[str, FlatGroup] = field(default_factory=dict)

    def join(self, names: Collection[str], free: Callable[[str], str]) -> list[FlatGroup]:
        """Groups of weights among these names that are updated faster as vectors; `free` gives names for them."""
        chosen = {n: w for n, w in self.weights.items() if n in names}
        beside = {n: (self.starts.get(n, 0), self.factors.get(n, 1.0)) for n in chosen}
        return join_weights(chosen, self.rates, beside, free, self.accumulate, self.averaging)

    def flatten(self, group: FlatGroup) -> Update:
        """The same update with a vector in place of some weights, whose gradients are still given singly."""
        shape, dtype = [group.vector.size], self.weights[group.first].dtype

        def put(values: Mapping[str, Any], new: object) -> dict[str, Any]:
            return {**{n: v for n, v in values.items() if n not in group.vector.shapes}, group.name: new}

        states = {s: variable("", v.dtype, shape) for s, v in self.states[group.first].items()}
        return replace(
            self, weights=put(self.weights, variable("", dtype, shape)), states=put(self.states, states),
            rates=put(self.rates, self.rates[group.first]), starts=put(self.starts, self.starts.get(group.first, 0)),
            factors=put(self.factors, self.factors.get(group.first, 1.0)), groups={**self.groups, group.name: group})

    @property
    def before(self) -> dict[str, Value]:
        """Weights and states before the update, by their names in the graphs."""
        return self._by_name(self.weights, self.states)

    def __call__(self, gradients: Mapping[str, Value], k: Value, due: bool | None = None) -> dict[str, Value]:
        """Weights and states after a batch.

        Parameters
        ----------
        gradients : dict of str to Value
            The gradients of all weights, also of weights that are vectors, by name.
        k : Value
            The number of the batch, from 1, an int64 scalar.
        due : bool, optional
            As for `append_update`.

        Returns
        -------
        dict of str to Value
            By their names in the graphs, as far as they change.
        """
        return self._apply(gradients, k) if self.accumulate == 1 else self._accumulate(gradients, k, due)

    def _apply(self, gradients: Mapping[str, Value], k: Value) -> dict[str, Value]:
        """Weights, optimizer states and averages after update k."""
        if self.gradient_clipping is not None:
            gradients = dict(zip(gradients, self.gradient_clipping(list(gradients.values())), strict=True))
        weights: dict[str, Value] = {}
        states: dict[str, dict[str, Value]] = {}
        for n, g in self._join(gradients).items():
            former = {s: v for s, v in self.states[n].items() if s not in (ACCUMULATED, AVERAGE)}
            weights[n], *new = self.rates[n].apply(self.weights[n], g, k, *former.values(),
                                                   start=self.starts.get(n, 0), factor=self.factors.get(n, 1.0))
            states[n] = dict(zip(former, new, strict=True))
            if self.averaging is not None:
                average = self.states[n][AVERAGE]
                states[n][AVERAGE] = self.averaging.apply(average, weights[n], k, start=self.average_start)
        after = self._by_name(weights, states)
        place_flushes = share_flushes if self.may_branch else drop_flushes
        return dict(zip(after, place_flushes(list(after.values())), strict=True))

    def _accumulate(self, gradients: Mapping[str, Value], k: Value, due: bool | None) -> dict[str, Value]:
        """The same after batch k, of which every n-th updates by the mean of n gradients, with the sum of g / n.

        Each gradient is divided before it is added, as both fuse into the product that most gradients are.
        """
        n = self.accumulate
        means = {w: apply_step(self.states[w][ACCUMULATED], constant(np.asarray(-1 / n, g.dtype)), g)
                 for w, g in gradients.items()}
        sums = {self.name_state(w, ACCUMULATED): mean for w, mean in means.items()}
        if due is not None:
            return self._apply(means, k / n) if due else sums
        before = self.before | sums

        def update() -> list[Value]:
            after = self._apply(means, k / n)
            return [zeros_like(sums[i]) if i in sums else after[i] for i in before]

        is_due = op.Equal(op.Mod(k, n), 0)
        if self.may_branch:
            after = cond(is_due, update, lambda: list(before.values()))
        else:
            after = [op.Where(is_due, new, old) for new, old in zip(update(), before.values(), strict=True)]
        return dict(zip(before, after, strict=True))

    def _join(self, gradients: Mapping[str, Value]) -> dict[str, Value]:
        """Gradients of weights, with the gradients of vectors."""
        joined = {n: g for n, g in gradients.items() if n in self.weights}
        vectors = {i: group.vector for i, group in self.groups.items()}
        return joined | {i: v.join([gradients[n] for n in v.shapes]) for i, v in vectors.items()}

    def _by_name(
        self, weights: Mapping[str, Value], states: Mapping[str, Mapping[str, Value]]
    ) -> dict[str, Value]:
        """Weights, each with its states behind it, by their names in the graphs."""
        return {i: v for n in self.weights
                for i, v in [(n, weights[n]), *((self.name_state(n, s), v) for s, v in states[n].items())]}

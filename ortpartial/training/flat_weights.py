"""Flat weights: small weights that are updated alike, side by side in a vector, and so their states and gradients.

An update of few elements takes the time of its operators, of which a vector has as many as a single weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ortpartial.execution import Vector
from ortpartial.graph import Value, build, op, variable
from ortpartial.learning import BaseLearningRate, WeightAverage
from ortpartial.limits import limits
from ortpartial.runtime import Session

from .spec import TrainingSpec, known_shape

__all__ = ["FlatGroup", "find_flat_groups", "join_weights"]

#: onnxruntime 1.19.2 takes square roots in float32 of so many elements at once, an ulp off, and of the remaining
#: elements exactly. So that these are the same in a vector, a single weight whose size is no multiple of it comes last.
_PACKET = 4

#: The shapes of weights, by name.
_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class FlatGroup:
    """Weights that are updated as a vector.

    Parameters
    ----------
    name : str
        The name of the vector.
    vector : Vector
        The weights.

    Examples
    --------
    >>> from ortpartial.training.names import Names
    >>> group = FlatGroup("flat", Vector({"w": (3, 2), "b": (3,)}))
    >>> {n: list(v.shapes) for n, v in group.vectors(Names(frozenset()).state, ["m"]).items()}
    {'flat': ['w', 'b'], 'flat_m': ['w_m', 'b_m']}
    """

    name: str
    vector: Vector

    @property
    def first(self) -> str:
        """The first weight, whose settings hold for all."""
        return self.vector.first

    def vectors(self, name_state: Callable[[str, str], str], states: Iterable[str]) -> dict[str, Vector]:
        """The vectors of the weights and of their states, by the names that `name_state` gives them."""
        of_states = {name_state(self.name, s): Vector({name_state(n, s): size for n, size in
                                                       self.vector.shapes.items()}) for s in states}
        return {self.name: self.vector, **of_states}


def find_flat_groups(spec: TrainingSpec) -> list[FlatGroup]:
    """The groups of a training's weights that are updated faster as vectors, to the same bits.

    Parameters
    ----------
    spec : TrainingSpec
        The training.

    Returns
    -------
    list of FlatGroup
        As of `join_weights`; none on a device with memory of its own.
    """
    if not spec.may_branch:
        return []
    beside = {n: (spec.rate_starts.get(n, 0), spec.rate_factors.get(n, 1.0)) for n in spec.trained}
    return join_weights(spec.trained, spec.rates, beside, spec.names.free, spec.accumulate, spec.averaging)


def join_weights(weights: Mapping[str, Value], rates: Mapping[str, BaseLearningRate], beside: Mapping[str, object],
                 free: Callable[[str], str], accumulate: int = 1, averaging: WeightAverage | None = None
                 ) -> list[FlatGroup]:
    """The groups of weights that are updated faster as vectors, to the same bits.

    Parameters
    ----------
    weights : dict of str to Value
        The weights by name.
    rates : dict of str to BaseLearningRate
        By weight, its optimizer.
    beside : dict of str to object
        By weight, further settings, which are the same in a group.
    free : callable
        From the name of a group to a free name.
    accumulate : int
        Number of batches of an update.
    averaging : WeightAverage, optional
        The average of the weights.

    Returns
    -------
    list of FlatGroup
        Without weights that are large, or that are updated each by itself.

    Examples
    --------
    >>> from ortpartial.learning import LearningRateAdam
    >>> weights = {n: variable(n, "float32", shape) for n, shape in (("w", [4, 2]), ("b", [2]))}
    >>> groups = join_weights(weights, dict.fromkeys(weights, LearningRateAdam()), dict.fromkeys(weights), str)
    >>> [(group.name, group.vector) for group in groups]
    [('flat_0', Vector(shapes={'w': (4, 2), 'b': (2,)}))]
    """
    if accumulate > 1 or (averaging is not None and type(averaging).apply is not WeightAverage.apply):
        return []
    alike: list[tuple[Any, _Shapes]] = []
    for n, w in weights.items():
        rate, shape = rates[n], tuple(size for size in known_shape(w) if isinstance(size, int))
        # Without a state, an update is a part of the product that most gradients are.
        if rate.elementwise and rate.state and w.is_static and 0 < prod(shape) <= limits().flat_weight:
            settings = rate, w.dtype, beside[n]
            group = next((shapes for others, shapes in alike if others == settings), None)
            if group is None:
                alike.append((settings, group := {}))
            group[n] = shape
    groups = [part for _, shapes in alike for part in _divide(shapes) if len(part) > 1]
    return [FlatGroup(free(f"flat_{i}"), Vector(part)) for i, part in enumerate(groups)]


def _divide(shapes: _Shapes) -> list[_Shapes]:
    """Weights in groups of limited size, which consist of whole packets but for the last weight, if that matters."""
    whole = {n: shape for n, shape in shapes.items() if prod(shape) % _PACKET == 0}
    if len(shapes) > len(whole) + 1 and _has_exact_roots():
        whole = shapes
    ends = accumulate(map(prod, whole.values()))
    groups: dict[int, _Shapes] = {}
    for (n, shape), end in zip(whole.items(), ends, strict=True):
        groups.setdefault((end - 1) // limits().flat_group, {})[n] = shape
    for group, n in zip(groups.values(), [n for n in shapes if n not in whole], strict=False):
        group[n] = shapes[n]
    return list(groups.values())


@cache
def _has_exact_roots() -> bool:
    """Whether onnxruntime takes square roots of several elements at once exactly; 1.32.0 does."""
    numbers = np.arange(1, 65, dtype=np.float32)
    x = variable("x", np.float32, numbers.shape)
    roots = Session(build([x], {"y": op.Sqrt(x)})).run({"x": numbers})["y"]
    return np.array_equal(roots, np.sqrt(numbers))

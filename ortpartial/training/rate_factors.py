"""Rates by weight: the factors by patterns and the depth of layers, and the description of each weight."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

from ortpartial.autodiff import explain_untrained, find_depths, find_frozen, find_named
from ortpartial.exceptions import SettingError
from ortpartial.learning import LayerwiseDecay
from ortpartial.model import Model

__all__ = ["RateFactors", "WeightDescription", "describe_weights", "resolve_rate_factors"]

#: Factors by names, aliases and patterns, or by depth.
RateFactors = Mapping[str, float] | LayerwiseDecay


def resolve_rate_factors(model: Model, factors: RateFactors | None, outputs: Sequence[str]) -> dict[str, float]:
    """The factor of the step size of each weight.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    factors : dict of str to float, or LayerwiseDecay, optional
        By names, aliases and patterns of `fnmatch`. Where several stand for a weight, its name counts, or else the
        pattern with the most letters, which is the most specific; of patterns with equally many, the first.
    outputs : sequence of str
        The outputs that are trained.

    Returns
    -------
    dict of str to float
        By initializer, where the factor is not 1.

    Raises
    ------
    SettingError
        A factor is not a number above 0.
    ModelError
        A name or a pattern stands for no weight.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> from ortpartial.model import load
    >>> x, a, b = variable("x", "float32", ["N", 1]), constant([[1.0]], hint="net.a"), constant([[2.0]], hint="net.b")
    >>> resolve_rate_factors(load(build([x], {"y": x @ a @ b})), {"net.b": 0.5, "net.*": 0.1}, ["y"])
    {'net.a': 0.1, 'net.b': 0.5}
    """
    if factors is None:
        return {}
    if isinstance(factors, LayerwiseDecay):
        resolved = {n: factors(depth) for n, depth in find_depths(model, outputs).items()}
    elif isinstance(factors, Mapping):
        chosen = _choose_items(model, factors)
        resolved = {n: _check_factor(item, factors[item]) for n, item in chosen.items()}
    else:
        raise SettingError(f"rate_factors is a dict of patterns and factors, or a LayerwiseDecay, not {factors!r}.")
    return {n: factor for n, factor in resolved.items() if factor != 1}


def _choose_items(model: Model, items: Collection[str]) -> dict[str, str]:
    """The item that counts for each weight: the most specific that matches it."""
    chosen: dict[str, str] = {}
    ranked = sorted(items, key=lambda item: _count_letters(model, item), reverse=True)
    for item in ranked:
        for n in find_named(model, item):
            chosen.setdefault(n, item)
    return {n: chosen[n] for n in model.initializers if n in chosen}


def _count_letters(model: Model, item: Any) -> float:
    """How many characters of a pattern stand for themselves; more than any for a name."""
    if not isinstance(item, str) or model.find_initializer(item) in model.initializers:
        return float("inf")
    return len(re.sub(r"\[[^]]*\]|[*?]", "", item))


def _check_factor(item: str, factor: Any) -> float:
    """A factor as a Python float."""
    if isinstance(factor, bool) or not isinstance(factor, Real) or not isfinite(factor) or factor <= 0:
        hint = f"; freeze={item!r} leaves weights as they are." if factor == 0 else "."
        raise SettingError(f"The factor of {item!r} in rate_factors is a number above 0, not {factor!r}{hint}")
    return float(factor)


@dataclass(frozen=True)
class WeightDescription:
    """Whether and how a weight is trained.

    Parameters
    ----------
    factor : float
        The factor of its rate; 0 where it is not trained.
    reason : str
        Why it is not trained, in a few words; empty where it is.
    """

    factor: float
    reason: str = ""

    @property
    def is_trained(self) -> bool:
        """Whether the weight is trained."""
        return not self.reason


def describe_weights(model: Model, weights: Collection[str], outputs: Sequence[str], *,
                     freeze: str | Sequence[str] = (), rate_factors: RateFactors | None = None
                     ) -> dict[str, WeightDescription]:
    """Whether and how each initializer of a model is trained: its factor, or why not.

    Parameters
    ----------
    model : Model
        The model, whose initializers are constants.
    weights : collection of str
        The initializers that are trained, as `resolve_weights` returns them.
    outputs : sequence of str
        The outputs that are trained.
    freeze, rate_factors : object
        The settings of the training.

    Returns
    -------
    dict of str to WeightDescription
        By the names of the initializers.

    Raises
    ------
    SettingError, ModelError
        As for `resolve_rate_factors` and `find_frozen`.

    Examples
    --------
    >>> from ortpartial.graph import build, constant, variable
    >>> from ortpartial.model import load
    >>> x, a, b = variable("x", "float32", ["N", 1]), constant([[1.0]], hint="a"), constant([[2.0]], hint="b")
    >>> model = load(build([x], {"y": x @ a @ b}))
    >>> describe_weights(model, ["a"], ["y"], freeze="b", rate_factors={"a": 0.5})
    {'a': WeightDescription(factor=0.5, reason=''), 'b': WeightDescription(factor=0.0, reason="frozen by 'b'")}
    """
    factors, frozen = resolve_rate_factors(model, rate_factors, outputs), find_frozen(model, freeze)
    reasons = explain_untrained(model, weights, outputs)
    described = {}
    for n in model.initializers:
        if n in weights:
            described[n] = WeightDescription(factors.get(n, 1.0))
        else:
            is_frozen = n in frozen and reasons[n] == "not among those to train"
            described[n] = WeightDescription(0.0, f"frozen by {frozen[n]!r}" if is_frozen else reasons[n])
    return described

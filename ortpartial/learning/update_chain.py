"""The update of the weights as a chain of its parts: penalty, accumulation, clipping, optimizer, schedule, averages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

from ortpartial.annotations import Entries, Settings
from ortpartial.checks import check_count
from ortpartial.exceptions import SettingError

from .averaging import WeightAverage
from .base_rate import BaseLearningRate
from .clipping import GradientClipping
from .layerwise_decay import LayerwiseDecay
from .optimizers import resolve_rate
from .penalties import BaseLearningPenalty
from .piece import Piece, replace_settings
from .schedules import ConstantSchedule, Schedule, resolve_schedule

__all__ = ["Accumulation", "Chain", "ChainLink", "RateLike", "chain", "expand_chain"]


@dataclass(frozen=True)
class Accumulation(Piece):
    """The mean of the gradients of several batches, in a `chain`: the setting `accumulate`.

    Parameters
    ----------
    batches : int
        Number of batches of an update.

    Examples
    --------
    >>> chain(Accumulation(4), "Adam").settings["accumulate"]
    4
    """

    batches: int
    setting: ClassVar[str] = "accumulate"

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", check_count("accumulate", self.batches))


#: A part of a chain: an object, the name of an optimizer, or the factors of the rates of weights.
ChainLink: TypeAlias = (BaseLearningPenalty | Accumulation | GradientClipping | BaseLearningRate | str | Schedule
                        | LayerwiseDecay | Mapping[str, float] | WeightAverage)

#: By the setting that a part is: its rank in a chain, and its name.
_ORDER = {"learning_penalty": (0, "a penalty"), "accumulate": (1, "an Accumulation"),
          "gradient_clipping": (2, "a GradientClipping"), "learning_rate": (3, "an optimizer"),
          "schedule": (4, "a schedule"), "rate_factors": (4, "factors of rates"), "averaging": (5, "a weight average")}

#: Values of settings that ask for nothing.
_NEUTRAL: Settings = {"learning_penalty": None, "accumulate": 1, "gradient_clipping": None, "rate_factors": None,
                      "averaging": None}


@dataclass(frozen=True)
class Chain(Piece):
    """The update of the weights as a chain, which `chain` makes: the setting `learning_rate` takes it.

    Parameters
    ----------
    links : tuple
        The parts, in their order.

    Raises
    ------
    SettingError
        A link is no part of an update, there are two of a kind or no optimizer, or they stand in another order.

    Examples
    --------
    >>> Chain((GradientClipping(1.0), "SGD")).settings["gradient_clipping"]
    GradientClipping(norm=1.0, value=None, per='global')
    """

    links: tuple[ChainLink, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "links", tuple(self.links))
        parts = [(_find_setting(link), link) for link in self.links]
        for (former, _), (name, link) in pairwise(parts):
            if _ORDER[name][0] < _ORDER[former][0]:
                order = ", ".join(title for _, title in _ORDER.values())
                raise SettingError(f"chain: {_ORDER[name][1]}, {link!r}, stands behind {_ORDER[former][1]}; the order "
                                   f"is {order}, of which the schedule and the factors may change places.")
        names = [name for name, _ in parts]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"chain: it has {_ORDER[name][1]} {names.count(name)} times; an update has one.")
        if "learning_rate" not in names:
            raise SettingError("chain: it has no optimizer; add one, as in chain(GradientClipping(1.0), 'Adam').")
        rate: Any = dict(parts)["learning_rate"]
        if "schedule" in names and not isinstance(rate, str) and rate.schedule not in (
                ConstantSchedule(), resolve_schedule(type(rate).schedule)):
            raise SettingError(f"chain: {rate!r} has a schedule, and there is another one; leave one of the two out.")

    @property
    def settings(self) -> Settings:
        """The settings that it stands for, by name."""
        parts: dict[str, Any] = {_find_setting(link): link for link in self.links}
        rate, schedule = resolve_rate(parts["learning_rate"]), parts.pop("schedule", None)
        parts["learning_rate"] = rate if schedule is None else replace_settings(rate, schedule=schedule)
        if isinstance(accumulation := parts.get("accumulate"), Accumulation):
            parts["accumulate"] = accumulation.batches
        return parts

    @property
    def neutral(self) -> Settings:
        """The neutral values of its settings, but for the optimizer."""
        return {n: _NEUTRAL[n] for n in self.settings if n in _NEUTRAL}


#: The values of the setting `learning_rate`: a name, a step size, an optimizer, or a chain with one.
RateLike: TypeAlias = str | float | BaseLearningRate | Chain


def chain(*links: ChainLink) -> Chain:
    """Compose the update of the weights from its parts, for the setting `learning_rate`.

    It stands for the settings `learning_penalty`, `accumulate`, `gradient_clipping`, `learning_rate`, `rate_factors`
    and `averaging`, to the last bit, and may have other settings beside it, but none of them twice.

    Parameters
    ----------
    *links : object
        The parts in the order in which a gradient passes through them: a penalty, whose gradient is added; an
        `Accumulation`; a `GradientClipping`; an optimizer, as an object or by its name; a schedule and factors of
        rates, a dict or a `LayerwiseDecay`, which scale its step; and a weight average. All but the optimizer may be
        missing.

    Returns
    -------
    Chain

    Raises
    ------
    SettingError
        A link is no part of an update, there are two of a kind or no optimizer, or they stand in another order.

    Examples
    --------
    >>> from ortpartial.learning import CosineSchedule, ElasticLearningPenalty, LearningRateAdam
    >>> update = chain(ElasticLearningPenalty(l2=0.1), GradientClipping(1.0), LearningRateAdam(0.1), CosineSchedule())
    >>> list(update.settings)
    ['learning_penalty', 'gradient_clipping', 'learning_rate']
    """
    return Chain(links)


def _find_setting(link: object) -> str:
    """The setting that a link of a chain is."""
    if isinstance(link, str):
        return "learning_rate"
    name = "rate_factors" if isinstance(link, Mapping) else getattr(type(link), "setting", None)
    if name not in _ORDER:
        shown = link.__name__ if isinstance(link, type) else repr(link)
        raise SettingError(f"chain: {shown} is no part of an update; its parts are objects: "
                           f"{', '.join(title for _, title in _ORDER.values())}.")
    return name


def expand_chain(settings: Entries, names: Mapping[str, str] | None = None) -> Settings:
    """Settings with the settings of a chain in its place.

    Parameters
    ----------
    settings : dict of str to object
        Settings, of which `learning_rate` may be a `Chain`.
    names : dict of str to str, optional
        The names of settings where they differ.

    Returns
    -------
    dict of str to object

    Raises
    ------
    SettingError
        A part of the chain is a setting beside it as well, or is none here.

    Examples
    --------
    >>> expanded = expand_chain({"learning_rate": chain(Accumulation(2), "Adam"), "accumulate": 1, "max_iter": 3})
    >>> expanded["accumulate"], expanded["learning_rate"].eta0, expanded["max_iter"]
    (2, 0.001, 3)
    """
    called = {**{n: n for n in _ORDER}, **(names or {})}
    if not isinstance(update := settings.get(called["learning_rate"]), Chain):
        return dict(settings)
    parts = {called[n]: part for n, part in update.settings.items()}
    neutral = {called[n]: value for n, value in _NEUTRAL.items()}
    for name in parts.keys() & neutral.keys():
        if name in settings and not (settings[name] is None or settings[name] == neutral[name]):
            raise SettingError(f"{name} is a part of the chain and a setting beside it; leave one of the two out.")
    return {**settings, **parts}

"""How far to step at iteration k? A `Schedule` turns the first step size and the number of the batch into a factor."""

from __future__ import annotations

import difflib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from .exceptions import SettingError
from .gradient import cast
from .graph import Value

__all__ = ["ConstantSchedule", "InvScalingSchedule", "OptimalSchedule", "Schedule", "number", "resolve",
           "resolve_schedule"]  # fmt: skip


def number(
    piece: Any, *names: str, above: float | None = None, low: float | None = None, below: float | None = None
) -> None:
    """Settings of a frozen piece as Python floats, once they are known to be finite and in their range.

    Parameters
    ----------
    piece : dataclass
        The object whose settings are looked at.
    *names : str
        The settings.
    above, low, below : float, optional
        The range: more than `above`, at least `low`, less than `below`.

    Raises
    ------
    SettingError
        A setting is no finite number or out of its range.
    """
    bounds = (("more than", above), ("at least", low), ("less than", below))
    expected = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    for name in names:
        given = getattr(piece, name)
        # True is a number to Python, and never meant as one here.
        if not isinstance(given, bool) and isinstance(given, Real) and math.isfinite(given):
            value = float(given)
            above_all = (above is None or value > above) and (low is None or value >= low)
            if above_all and (below is None or value < below):
                object.__setattr__(piece, name, value)  # only its type changes, before anybody has seen it
                continue
        raise SettingError(f"{type(piece).__name__}: {name} is {given!r}, a finite number"
                           f"{' ' + expected if expected else ''} was expected.")  # fmt: skip


def resolve(kind: type, given: Any, table: Mapping[str, type]) -> Any:
    """The piece that a user means by an object, a class or a name.

    Parameters
    ----------
    kind : type
        Base class of what is wanted; its ``setting`` is how the user calls it.
    given : kind, type or str
        An object is itself, a class its object with default settings, a name one of `table` or of its classes.
    table : dict of str to type
        Classes by their short names; case does not matter.

    Returns
    -------
    kind

    Raises
    ------
    SettingError
        Nothing is called so; the message lists what is.

    Examples
    --------
    >>> resolve(Schedule, "constant", {"constant": ConstantSchedule})
    ConstantSchedule()
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, type) and issubclass(given, kind):
        return given()
    known = {**table, **{cls.__name__: cls for cls in table.values()}}
    setting = getattr(kind, "setting", kind.__name__)
    if isinstance(given, str):
        lower = {name.lower(): cls for name, cls in known.items()}
        if given.lower() in lower:
            return lower[given.lower()]()
        close = difflib.get_close_matches(given.lower(), lower, n=1)
        guess = next((f" Did you mean {name!r}?" for name in known if close and name.lower() == close[0]), "")
        raise SettingError(f"{setting}: {given!r} is not known.{guess} Known are {', '.join(known)}; "
                           f"an object of a subclass of {kind.__name__} will do, too.")  # fmt: skip
    raise SettingError(f"{setting}: {given!r} is a {type(given).__name__}; a name ({', '.join(table)}) or an object of "
                       f"a subclass of {kind.__name__} was expected.")  # fmt: skip


@dataclass(frozen=True)
class Schedule(ABC):
    """η(k): the step size at batch k = 1, 2, ... of all epochs together.

    A subclass is a frozen dataclass of settings with a method ``__call__(self, eta0, k)``: from the first step size, a
    scalar `Value`, and the number of the batch, an int64 scalar `Value`, to the step size, a scalar `Value` of the
    dtype of `eta0`.

    Examples
    --------
    >>> class Halving(Schedule):
    ...     def __call__(self, eta0, k):
    ...         return eta0 * cast(2.0 ** -k, eta0)
    >>> resolve_schedule(Halving) == Halving()
    True
    """

    setting: ClassVar[str] = "schedule"

    @abstractmethod
    def __call__(self, eta0: Value, k: Value) -> Value:
        """Step size at batch k."""


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """η = η₀. No operator is emitted for it.

    Examples
    --------
    >>> from ortpartial.graph import constant, variable
    >>> ConstantSchedule()(constant(0.1), variable("k", "int64", [])).array
    array(0.1, dtype=float32)
    """

    def __call__(self, eta0: Value, k: Value) -> Value:
        return eta0


@dataclass(frozen=True)
class InvScalingSchedule(Schedule):
    """η = η₀ / kᵖ with p = power_t.

    Parameters
    ----------
    power_t : float
        How fast the steps shrink, at least 0. At 0.5 or less their sum of squares diverges, at more than 1 their sum
        converges.

    Notes
    -----
    scikit-learn counts samples where k counts batches: with batches of one row both are the same.

    References
    ----------
    scikit-learn, ``SGDRegressor(learning_rate="invscaling")``,
    https://scikit-learn.org/stable/modules/sgd.html#mathematical-formulation

    Examples
    --------
    >>> InvScalingSchedule(power_t=0.25)
    InvScalingSchedule(power_t=0.25)
    """

    power_t: float = 0.5

    def __post_init__(self) -> None:
        number(self, "power_t", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        return eta0 / cast(k, eta0) ** self.power_t


@dataclass(frozen=True)
class OptimalSchedule(Schedule):
    """η = 1 / (α (t₀ + k)) with t₀ = α^(-3/4), whatever η₀.

    Parameters
    ----------
    alpha : float
        Strength of the regularization that the schedule is optimal for, more than 0.

    Notes
    -----
    t₀ is scikit-learn's for the log loss. With a typical weight ω = α^(-1/4) it makes the first step
    ω / max(1, ℓ'(-ω, 1)), and as the derivative ℓ' is negative there, t₀ = 1 / (α ω). The difference: scikit-learn
    counts samples, the first one as 0; k counts batches, the first one as 1.

    References
    ----------
    L. Bottou, Stochastic Gradient Descent Tricks, 2012, section 5.2, and scikit-learn,
    ``SGDClassifier(learning_rate="optimal")``, https://scikit-learn.org/stable/modules/sgd.html#mathematical-formulation

    Examples
    --------
    >>> round(OptimalSchedule(alpha=1e-4).t0, 6)
    1000.0
    """

    alpha: float = 1e-4

    def __post_init__(self) -> None:
        number(self, "alpha", above=0)

    @property
    def t0(self) -> float:
        """t₀ = α^(-3/4): the number of batches after which the step size has halved."""
        return self.alpha**-0.75

    def __call__(self, eta0: Value, k: Value) -> Value:
        return 1 / self.alpha / (self.t0 + cast(k, eta0))


_NAMES = {"constant": ConstantSchedule, "invscaling": InvScalingSchedule, "optimal": OptimalSchedule}


def resolve_schedule(schedule: Schedule | type[Schedule] | str) -> Schedule:
    """The schedule that a user means by "constant", "invscaling", "optimal", a class, its name, or an object.

    Parameters
    ----------
    schedule : Schedule, type or str
        What the user wrote.

    Returns
    -------
    Schedule

    Raises
    ------
    SettingError
        No schedule is called so.

    Examples
    --------
    >>> resolve_schedule("invscaling")
    InvScalingSchedule(power_t=0.5)
    """
    return resolve(Schedule, schedule, _NAMES)

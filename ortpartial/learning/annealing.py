"""Annealing: schedules from a first step size down to a last, over a number of batches or the whole training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, cast, constant, op

from .base_schedule import Schedule
from .piece import replace_settings
from .validation import check_integer, check_number

__all__ = ["CosineRestartsSchedule", "CosineSchedule", "OneCycleSchedule", "PolynomialSchedule"]


@dataclass(frozen=True)
class _Lasting(Schedule):
    """A schedule of n batches; without n, of as many as the training."""

    n: int | None = None

    def __post_init__(self) -> None:
        if self.n is not None:
            check_integer(self, "n", low=1)

    def over(self, batches: int) -> Schedule:
        return self if self.n is not None else replace_settings(self, n=batches)

    def _find_length(self) -> int:
        """The number of batches; raises SettingError where it is that of a training still to come."""
        if self.n is None:
            name = type(self).__name__
            raise SettingError(f"{name} has no n and lasts as long as the training that fit is asked for, and there "
                               f"has been none; call fit first, or give the number of batches, as in {name}(n=1000).")
        return int(self.n)


@dataclass(frozen=True)
class CosineSchedule(_Lasting):
    """η = l + (η₀ - l) ½(1 + cos(πj/n)) with j = min(k - 1, n): cosine annealing from η₀ to the minimum l.

    Parameters
    ----------
    n : int, optional
        Number of batches until the minimum, at least 1; by default, until the end of the training: see Notes.
    minimum : float
        l, the last step size, at least 0: a step size, not a factor, and usually less than η₀.

    Notes
    -----
    It is computed as l + (η₀ - l) sin²(½π(n - j)/n), which does not cancel near the end.

    Without n, `fit` sets it to the number of batches that it is asked for, `max_iter` times the batches of an epoch,
    and with ``warm_start`` to the batches seen before plus these: a training that was interrupted, or pickled, and goes
    on for the rest of its epochs has the step sizes of an uninterrupted training. The first call of `partial_fit`
    expects `max_iter` calls like it; later calls keep to this plan, or to the plan of a former `fit`, until it is over,
    and then plan anew.

    References
    ----------
    I. Loshchilov and F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017, equation 5, without the
    restarts; ``torch.optim.lr_scheduler.CosineAnnealingLR`` for its first n steps.

    Examples
    --------
    >>> CosineSchedule(n=1000, minimum=1e-4)
    CosineSchedule(n=1000, minimum=0.0001)
    >>> CosineSchedule().over(50)
    CosineSchedule(n=50, minimum=0.0)
    """

    minimum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "minimum", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n = self._find_length()
        left = op.Max(n + 1 - k, 0)
        return _interpolate_cosine(self.minimum, eta0, cast(left, eta0) / n)


@dataclass(frozen=True)
class CosineRestartsSchedule(_Lasting):
    """η = l + (η₀ - l) ½(1 + cos(πj/nₘ)) with j batches before it in cycle m, of nₘ = n fᵐ: a cosine, over and over.

    Parameters
    ----------
    n : int, optional
        Number of batches of the first cycle, at least 1; by default, such that the training has so many `cycles`: as
        for `CosineSchedule`.
    factor : int
        f, how many times as long each cycle is as the cycle before it, at least 1.
    minimum : float
        l, the step size at the end of a cycle, at least 0.
    cycles : int
        Number of cycles of a training where n is left out, at least 1.

    References
    ----------
    I. Loshchilov and F. Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017, equation 5;
    ``torch.optim.lr_scheduler.CosineAnnealingWarmRestarts``, where n is `T_0` and f is `T_mult`.

    Examples
    --------
    >>> CosineRestartsSchedule(factor=2, cycles=3).over(70)
    CosineRestartsSchedule(n=10, factor=2, minimum=0.0, cycles=3)
    """

    factor: int = 1
    minimum: float = 0.0
    cycles: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "factor", "cycles", low=1)
        check_number(self, "minimum", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n, seen = self._find_length(), k - 1
        if self.factor == 1:
            x = cast(n - op.Mod(seen, n), eta0) / n
            return _interpolate_cosine(self.minimum, eta0, x)
        # Whole numbers find the cycle exactly, where logarithms may be rounded to the cycle before it.
        starts, length = [0], n
        while starts[-1] + length < 2**62:
            starts.append(starts[-1] + length)
            length *= self.factor
        start = op.ReduceMax(op.Where(constant(np.array(starts)) <= seen, np.array(starts), 0), keepdims=0)
        length_now = start * (self.factor - 1) + n
        return _interpolate_cosine(self.minimum, eta0, cast(start + length_now - seen, eta0) / cast(length_now, eta0))

    def over(self, batches: int) -> Schedule:
        parts = 0
        for m in range(self.cycles):
            parts += self.factor**m
            if parts >= batches:  # More cycles than batches change nothing.
                break
        return self if self.n is not None else replace_settings(self, n=-(-batches // parts))


@dataclass(frozen=True)
class PolynomialSchedule(_Lasting):
    """η = l + (η₀ - l) (1 - j/n)ᵖ with j = min(k - 1, n): a polynomial from η₀ to l, which is linear for p = 1.

    Parameters
    ----------
    n : int, optional
        Number of batches until the last step size, at least 1; by default, until the end of the training, as for
        `CosineSchedule`.
    power : float
        p, more than 0.
    minimum : float
        l, the last step size, at least 0.

    References
    ----------
    ``torch.optim.lr_scheduler.PolynomialLR`` where l = 0; ``transformers.get_polynomial_decay_schedule_with_warmup``
    behind a `WarmUpSchedule`.

    Examples
    --------
    >>> from ortpartial.learning import WarmUpSchedule
    >>> WarmUpSchedule("linear", n=100).over(1000)
    WarmUpSchedule(schedule=PolynomialSchedule(n=900, power=1.0, minimum=0.0), n=100, from_zero=False)
    """

    power: float = 1.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "power", above=0)
        check_number(self, "minimum", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n = self._find_length()
        x = cast(op.Max(n + 1 - k, 0), eta0) / n
        x = x if self.power == 1 else x**self.power
        return (eta0 - self.minimum) * x + self.minimum if self.minimum else eta0 * x


@dataclass(frozen=True)
class OneCycleSchedule(_Lasting):
    """η = l + (η₀ - l) ½(1 - cos(πx)): with l = η₀/d and x = j/a up to j = a, l = η₀/(df), x = (n-1-j)/(n-1-a) beyond.

    Here j = min(k, n) - 1 and a = pn - 1. The step size grows to η₀, shrinks until batch n, and is constant from there.

    Parameters
    ----------
    n : int, optional
        Number of batches of the cycle, at least 1; by default, all of the training, as for `CosineSchedule`.
    pct_start : float
        p, the fraction of the cycle in which the step size grows, at least 0 and less than 1.
    div_factor : float
        d, the ratio of η₀, the largest step size, to the first, more than 0.
    final_div_factor : float
        f, the ratio of the first step size to the last, more than 0.

    References
    ----------
    L. Smith and N. Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates, 2018, in
    the form of ``torch.optim.lr_scheduler.OneCycleLR``: two phases, with a constant momentum.

    Examples
    --------
    >>> OneCycleSchedule(n=500).final_div_factor
    10000.0
    """

    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "pct_start", low=0, below=1)
        check_number(self, "div_factor", "final_div_factor", above=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n = self._find_length()
        a, last = self.pct_start * n - 1, n - 1
        x = cast(op.Max(n - k, 0), eta0) / (last - a)
        low = eta0 / (self.div_factor * self.final_div_factor)
        if a > 0:
            j = cast(k - 1, eta0)
            x, low = op.Min(j / a, x), op.Where(j <= a, eta0 / self.div_factor, low)
        return _interpolate_cosine(low, eta0, x)


def _interpolate_cosine(low: Value | float, high: Value, x: Value) -> Value:
    """l + (h - l) ½(1 - cos(πx)), from low at x = 0 to high at x = 1, computed as a square that does not cancel."""
    s = op.Sin(math.pi / 2 * x)
    return low + (high - low) * (s * s)

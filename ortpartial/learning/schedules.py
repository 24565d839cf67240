"""Learning rate schedules: formulas from the first step size and the number of the batch to the step size."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, cast, constant, op

from .aliases import NamedSettings
from .validation import PieceType, check_integer, check_number, resolve_piece

__all__ = ["ConstantSchedule", "CosineRestartsSchedule", "CosineSchedule", "InvScalingSchedule", "OneCycleSchedule",
           "OptimalSchedule", "PolynomialSchedule", "ReduceOnPlateauSchedule", "Schedule", "StepSchedule",
           "WarmUpSchedule", "resolve_schedule"]


@dataclass(frozen=True)
class Schedule(NamedSettings, metaclass=PieceType):
    """η(k): the step size at batch k = 1, 2, ..., counted over all epochs.

    A subclass is a frozen dataclass of settings that defines ``__call__(self, eta0, k)``: from the first step size, a
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
        """The step size at batch k."""

    @property
    def plateau(self) -> ReduceOnPlateauSchedule | None:
        """The schedule in it that reduces the step size where the loss no longer falls, if there is one."""
        return None

    def over(self, batches: int) -> Schedule:
        """The schedule of a training of so many batches: itself, unless it is to last as long as the training.

        Parameters
        ----------
        batches : int
            Number of batches of the whole training, at least 1.

        Returns
        -------
        Schedule
        """
        return self


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """η = η₀, without any operator.

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
        p, at least 0. At 0.5 or less the sum of squared step sizes diverges; at more than 1 their sum converges.

    Notes
    -----
    k counts batches, and samples in scikit-learn: both are the same with batches of one row.

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
        check_number(self, "power_t", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        return eta0 / cast(k, eta0) ** self.power_t


@dataclass(frozen=True)
class OptimalSchedule(Schedule):
    """η = 1 / (α (t₀ + k)) with t₀ = α^(-3/4), independent of η₀.

    Parameters
    ----------
    alpha : float
        Strength of the regularization that the schedule is optimal for, more than 0.

    Notes
    -----
    t₀ is that of scikit-learn for the log loss: with a typical weight ω = α^(-1/4) the first step size is
    ω / max(1, ℓ'(-ω, 1)), where the derivative ℓ' is negative, hence t₀ = 1 / (α ω). scikit-learn counts samples from
    0, k counts batches from 1.

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
        check_number(self, "alpha", above=0)

    @property
    def t0(self) -> float:
        """t₀ = α^(-3/4): the number of batches after which the step size has halved."""
        return self.alpha**-0.75

    def __call__(self, eta0: Value, k: Value) -> Value:
        return 1 / self.alpha / (self.t0 + cast(k, eta0))


@dataclass(frozen=True)
class WarmUpSchedule(Schedule):
    """η = min(k/n, 1) · s(max(k - n, 1)): linear warm-up over n batches, then a schedule s.

    Parameters
    ----------
    schedule : Schedule or str
        s, a `Schedule` or the name of one.
    n : int
        Number of batches of the warm-up, at least 1.
    from_zero : bool
        Whether k - 1 takes the place of k in k/n, so that the first batch changes nothing.

    References
    ----------
    P. Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, section 2.2. In torch it is
    ``SequentialLR([LinearLR(start_factor=1/n, total_iters=n-1), s], milestones=[n])``. Those of transformers, such as
    ``get_linear_schedule_with_warmup``, begin at 0: ``WarmUpSchedule("linear", n, from_zero=True)``.

    Examples
    --------
    >>> WarmUpSchedule("invscaling", n=10)
    WarmUpSchedule(schedule=InvScalingSchedule(power_t=0.5), n=10, from_zero=False)
    """

    schedule: Schedule | str = "constant"
    n: int = 100
    from_zero: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", resolve_schedule(self.schedule))
        check_integer(self, "n", low=1)

    def __call__(self, eta0: Value, k: Value) -> Value:
        assert isinstance(self.schedule, Schedule)
        warm = k - 1 if self.from_zero else k
        return cast(op.Min(warm, self.n), eta0) / self.n * self.schedule(eta0, op.Max(k - self.n, 1))

    @property
    def plateau(self) -> ReduceOnPlateauSchedule | None:
        assert isinstance(self.schedule, Schedule)
        return self.schedule.plateau

    def over(self, batches: int) -> Schedule:
        assert isinstance(self.schedule, Schedule)
        schedule = self.schedule.over(max(batches - self.n, 1))
        return self if schedule is self.schedule else replace(self, schedule=schedule)


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """η = l + (η₀ - l) ½(1 + cos(πj/n)) with j = min(k - 1, n): cosine annealing from η₀ to the minimum l.

    Parameters
    ----------
    n : int, optional
        Number of batches until the minimum, at least 1; by default, those of the whole training: see Notes.
    minimum : float
        l, the last step size, at least 0: a step size, not a factor, and usually less than η₀.

    Notes
    -----
    It is computed as l + (η₀ - l) sin²(½π(n - j)/n), which does not cancel near the end.

    Without n, `fit` sets it to the number of batches that it is asked for, `max_iter` times those of an epoch, and with
    ``warm_start`` to the batches seen before plus these: a training that was interrupted, or pickled, and goes on for
    the rest of its epochs has the step sizes of one that was not. The first call of `partial_fit` expects `max_iter`
    calls like it; later ones keep to this plan, or to that of a former `fit`, until it is over, and then plan anew.

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

    n: int | None = None
    minimum: float = 0.0

    def __post_init__(self) -> None:
        check_length(self)
        check_number(self, "minimum", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n = known_length(self)
        left = op.Max(n + 1 - k, 0)
        return interpolate_cosine(self.minimum, eta0, cast(left, eta0) / n)

    def over(self, batches: int) -> Schedule:
        return self if self.n is not None else replace(self, n=batches)


@dataclass(frozen=True)
class CosineRestartsSchedule(Schedule):
    """η = l + (η₀ - l) ½(1 + cos(πj/nₘ)) with j batches before it in cycle m, of nₘ = n fᵐ: a cosine, over and over.

    Parameters
    ----------
    n : int, optional
        Number of batches of the first cycle, at least 1; by default, such that the training has so many `cycles`: as
        for `CosineSchedule`.
    factor : int
        f, how many times as long each cycle is as the one before it, at least 1.
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

    n: int | None = None
    factor: int = 1
    minimum: float = 0.0
    cycles: int = 2

    def __post_init__(self) -> None:
        check_length(self)
        check_integer(self, "factor", "cycles", low=1)
        check_number(self, "minimum", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n, seen = known_length(self), k - 1
        if self.factor == 1:
            x = cast(n - op.Mod(seen, n), eta0) / n
            return interpolate_cosine(self.minimum, eta0, x)
        # Whole numbers find the cycle exactly, where logarithms may be rounded to the one before it.
        starts, length = [0], n
        while starts[-1] + length < 2**62:
            starts.append(starts[-1] + length)
            length *= self.factor
        start = op.ReduceMax(op.Where(constant(np.array(starts)) <= seen, np.array(starts), 0), keepdims=0)
        length_now = start * (self.factor - 1) + n
        return interpolate_cosine(self.minimum, eta0, cast(start + length_now - seen, eta0) / cast(length_now, eta0))

    def over(self, batches: int) -> Schedule:
        parts = sum(self.factor**m for m in range(self.cycles))
        return self if self.n is not None else replace(self, n=-(-batches // parts))


@dataclass(frozen=True)
class PolynomialSchedule(Schedule):
    """η = l + (η₀ - l) (1 - j/n)ᵖ with j = min(k - 1, n): a polynomial from η₀ to l, which is linear for p = 1.

    Parameters
    ----------
    n : int, optional
        Number of batches until the last step size, at least 1; by default, those of the whole training, as for
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
    >>> WarmUpSchedule("linear", n=100).over(1000)
    WarmUpSchedule(schedule=PolynomialSchedule(n=900, power=1.0, minimum=0.0), n=100, from_zero=False)
    """

    n: int | None = None
    power: float = 1.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        check_length(self)
        check_number(self, "power", above=0)
        check_number(self, "minimum", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n = known_length(self)
        x = cast(op.Max(n + 1 - k, 0), eta0) / n
        x = x if self.power == 1 else x**self.power
        return (eta0 - self.minimum) * x + self.minimum if self.minimum else eta0 * x

    def over(self, batches: int) -> Schedule:
        return self if self.n is not None else replace(self, n=batches)


@dataclass(frozen=True)
class StepSchedule(Schedule):
    """η = η₀ · γᵐ with m = ⌊(k - 1)/n⌋: multiplied by γ every n batches.

    Parameters
    ----------
    n : int
        Number of batches between two drops, at least 1.
    factor : float
        γ, more than 0.

    References
    ----------
    ``torch.optim.lr_scheduler.StepLR``, where n is the step size and γ the same.

    Examples
    --------
    >>> StepSchedule(n=300, factor=0.5)
    StepSchedule(n=300, factor=0.5)
    """

    n: int = 1000
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_integer(self, "n", low=1)
        check_number(self, "factor", above=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        # The quotient of integers is truncated.
        return eta0 * op.Pow(constant(self.factor, eta0.dtype), (k - 1) / self.n)


@dataclass(frozen=True)
class OneCycleSchedule(Schedule):
    """η = l + (η₀ - l) ½(1 - cos(πx)): with l = η₀/d and x = j/a up to j = a, l = η₀/(df), x = (n-1-j)/(n-1-a) beyond.

    Here j = min(k, n) - 1 and a = pn - 1. The step size grows to η₀, shrinks until batch n, and is constant from there.

    Parameters
    ----------
    n : int, optional
        Number of batches of the cycle, at least 1; by default, those of the whole training, as for `CosineSchedule`.
    pct_start : float
        p, the fraction of the cycle in which the step size grows, at least 0 and less than 1.
    div_factor : float
        d, the ratio of η₀, the largest step size, to the first one, more than 0.
    final_div_factor : float
        f, the ratio of the first step size to the last one, more than 0.

    References
    ----------
    L. Smith and N. Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates, 2018, in
    the form of ``torch.optim.lr_scheduler.OneCycleLR``: two phases, with a constant momentum.

    Examples
    --------
    >>> OneCycleSchedule(n=500).final_div_factor
    10000.0
    """

    n: int | None = None
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4

    def __post_init__(self) -> None:
        check_length(self)
        check_number(self, "pct_start", low=0, below=1)
        check_number(self, "div_factor", "final_div_factor", above=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        n = known_length(self)
        a, last = self.pct_start * n - 1, n - 1
        x = cast(op.Max(n - k, 0), eta0) / (last - a)
        low = eta0 / (self.div_factor * self.final_div_factor)
        if a > 0:
            j = cast(k - 1, eta0)
            x, low = op.Min(j / a, x), op.Where(j <= a, eta0 / self.div_factor, low)
        return interpolate_cosine(low, eta0, x)

    def over(self, batches: int) -> Schedule:
        return self if self.n is not None else replace(self, n=batches)


@dataclass(frozen=True)
class ReduceOnPlateauSchedule(Schedule):
    """η = s(k) · γᵐ: a schedule s, multiplied by γ each time the loss has not fallen for more than `patience` epochs.

    The loss of an epoch is that of the validation data, at each validation, or that of the training where there are
    none. It has fallen where it is less than (1 - `threshold`) times the least one so far. A reduction compiles nothing
    anew, and belongs to the state of a training: a pickle goes on with it, a new `fit` starts without, and a training
    that is stored in a model keeps its last step size.

    Parameters
    ----------
    schedule : Schedule or str
        s, a `Schedule` or the name of one.
    factor : float
        γ, more than 0 and less than 1.
    patience : int
        Number of losses in a row that have not fallen and change nothing, at least 0.
    threshold : float
        By which share of the least loss another one has to be less, at least 0 and less than 1.
    cooldown : int
        Number of losses after a reduction that do not count, at least 0.
    minimum : float
        The last step size, at least 0: η₀γᵐ does not become less.
    epsilon : float
        By how much η₀γᵐ has to change, at least 0: smaller reductions are left out.

    References
    ----------
    ``torch.optim.lr_scheduler.ReduceLROnPlateau``, where `minimum` is `min_lr` and `epsilon` is `eps`.

    Examples
    --------
    >>> ReduceOnPlateauSchedule(factor=0.5, patience=3)
    ReduceOnPlateauSchedule(schedule=ConstantSchedule(), factor=0.5, patience=3, ...)
    """

    schedule: Schedule | str = "constant"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    cooldown: int = 0
    minimum: float = 0.0
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", resolve_schedule(self.schedule))
        check_number(self, "factor", above=0, below=1)
        check_integer(self, "patience", "cooldown", low=0)
        check_number(self, "threshold", low=0, below=1)
        check_number(self, "minimum", "epsilon", low=0)

    def __call__(self, eta0: Value, k: Value) -> Value:
        assert isinstance(self.schedule, Schedule)
        return self.schedule(eta0, k)

    @property
    def plateau(self) -> ReduceOnPlateauSchedule:
        return self

    @property
    def first_memory(self) -> np.ndarray:
        """What `watch` remembers before the first loss."""
        return np.array([np.finfo(np.float64).max, 0, 0])

    def watch(self, loss: float, scale: float, memory: np.ndarray, eta0: float) -> tuple[float, np.ndarray]:
        """What step sizes are multiplied by after another loss.

        Parameters
        ----------
        loss : float
            The loss.
        scale : float
            What they were multiplied by, γᵐ.
        memory : numpy.ndarray of shape (3,)
            The least loss, the number of losses in a row that have not fallen, and that of losses that do not count:
            `first_memory`, or what the former call returned.
        eta0 : float
            η₀, the first step size.

        Returns
        -------
        scale : float
        memory : numpy.ndarray of shape (3,)

        Examples
        --------
        >>> plateau, scale = ReduceOnPlateauSchedule(patience=0), 1.0
        >>> memory = plateau.first_memory
        >>> for loss in (2.0, 1.0, 1.0):
        ...     scale, memory = plateau.watch(loss, scale, memory, eta0=0.01)
        >>> scale, memory.tolist()
        (0.1, [1.0, 0.0, 0.0])
        """
        least, idle, waiting = memory.tolist()
        has_fallen = loss < least * (1 - self.threshold)
        least, idle = (loss, 0) if has_fallen else (least, idle + 1)
        if waiting:
            waiting, idle = waiting - 1, 0
        if idle > self.patience:
            reduced = max(eta0 * scale * self.factor, self.minimum)
            scale = reduced / eta0 if eta0 * scale - reduced > self.epsilon else scale
            waiting, idle = self.cooldown, 0
        return scale, np.array([least, idle, waiting], np.float64)

    def over(self, batches: int) -> Schedule:
        assert isinstance(self.schedule, Schedule)
        schedule = self.schedule.over(batches)
        return self if schedule is self.schedule else replace(self, schedule=schedule)


def check_length(schedule: Any) -> None:
    """Check the number of batches of a schedule, where it has one of its own."""
    if schedule.n is not None:
        check_integer(schedule, "n", low=1)


def known_length(schedule: Any) -> int:
    """The number of batches of a schedule; raises SettingError where it is that of a training still to come."""
    if schedule.n is None:
        name = type(schedule).__name__
        raise SettingError(f"{name} has no n and lasts as long as the training that fit is asked for, and there has "
                           f"been none; call fit first, or give the number of batches, as in {name}(n=1000).")
    return int(schedule.n)


def interpolate_cosine(low: Value | float, high: Value, x: Value) -> Value:
    """l + (h - l) ½(1 - cos(πx)), from low at x = 0 to high at x = 1, computed as a square that does not cancel."""
    s = op.Sin(math.pi / 2 * x)
    return low + (high - low) * (s * s)


_NAMES: dict[str, type[Schedule]] = {
    "constant": ConstantSchedule, "invscaling": InvScalingSchedule, "optimal": OptimalSchedule,
    "warmup": WarmUpSchedule, "cosine": CosineSchedule, "step": StepSchedule, "onecycle": OneCycleSchedule,
    "cosine_restarts": CosineRestartsSchedule, "polynomial": PolynomialSchedule, "linear": PolynomialSchedule,
    "plateau": ReduceOnPlateauSchedule,
}


def resolve_schedule(schedule: Schedule | type[Schedule] | str) -> Schedule:
    """The schedule for a name such as "constant" or "cosine", a class or an object.

    Parameters
    ----------
    schedule : Schedule, type or str
        The setting of the user.

    Returns
    -------
    Schedule

    Raises
    ------
    SettingError
        The name is unknown.

    Examples
    --------
    >>> resolve_schedule("invscaling")
    InvScalingSchedule(power_t=0.5)
    """
    return resolve_piece(Schedule, schedule, _NAMES)

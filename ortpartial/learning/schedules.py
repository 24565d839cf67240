"""Learning rate schedules by name: formulas from the first step size and the number of the batch to the step size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortpartial.graph import Value, cast, constant, op

from .annealing import CosineRestartsSchedule, CosineSchedule, OneCycleSchedule, PolynomialSchedule
from .base_schedule import PlateauSchedule, Schedule
from .piece import replace_settings
from .validation import check_integer, check_number, resolve_piece

__all__ = ["ConstantSchedule", "CosineRestartsSchedule", "CosineSchedule", "InvScalingSchedule", "OneCycleSchedule",
           "OptimalSchedule", "PolynomialSchedule", "ReduceOnPlateauSchedule", "Schedule", "StepSchedule",
           "WarmUpSchedule", "resolve_schedule"]


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
    k counts batches, and samples in scikit-learn: both are the same with batches of a single row.

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
        s, a `Schedule` or its name.
    n : int
        Number of batches of the warm-up, at least 1.
    from_zero : bool
        Whether k - 1 takes the place of k in k/n, so that the first batch changes nothing.

    References
    ----------
    P. Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017, section 2.2. In torch it is
    ``SequentialLR([LinearLR(start_factor=1/n, total_iters=n-1), s], milestones=[n])``. The schedules of transformers,
    such as ``get_linear_schedule_with_warmup``, begin at 0: ``WarmUpSchedule("linear", n, from_zero=True)``.

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
        inner = resolve_schedule(self.schedule)
        warm = k - 1 if self.from_zero else k
        return cast(op.Min(warm, self.n), eta0) / self.n * inner(eta0, op.Max(k - self.n, 1))

    @property
    def plateau(self) -> PlateauSchedule | None:
        return resolve_schedule(self.schedule).plateau

    def over(self, batches: int) -> Schedule:
        inner = resolve_schedule(self.schedule)
        schedule = inner.over(max(batches - self.n, 1))
        return self if schedule is inner else replace_settings(self, schedule=schedule)


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
class ReduceOnPlateauSchedule(PlateauSchedule):
    """η = s(k) · γᵐ: a schedule s, multiplied by γ each time the loss has not fallen for more than `patience` epochs.

    The loss of an epoch is the validation loss, at each validation, or the training loss without validation data. It
    has fallen where it is less than (1 - `threshold`) times the least so far. A reduction compiles nothing anew, and
    belongs to the state of a training: a pickle goes on with it, a new `fit` starts without, and a training that is
    stored in a model keeps its last step size.

    Parameters
    ----------
    schedule : Schedule or str
        s, a `Schedule` or its name.
    factor : float
        γ, more than 0 and less than 1.
    patience : int
        Number of losses in a row that have not fallen and change nothing, at least 0.
    threshold : float
        The share of the least loss by which another has to be less, at least 0 and less than 1.
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
        return resolve_schedule(self.schedule)(eta0, k)

    @property
    def plateau(self) -> ReduceOnPlateauSchedule:
        return self

    @property
    def first_memory(self) -> np.ndarray:
        """The memory of `watch` before the first loss."""
        return np.array([np.finfo(np.float64).max, 0, 0])

    def watch(self, loss: float, scale: float, memory: np.ndarray, eta0: float) -> tuple[float, np.ndarray]:
        """The factor of step sizes after another loss.

        Parameters
        ----------
        loss : float
            The loss.
        scale : float
            Their present factor, γᵐ.
        memory : numpy.ndarray of shape (3,)
            The least loss, the number of losses in a row that have not fallen, and the number of losses that do not
            count: `first_memory`, or the result of the former call.
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
        inner = resolve_schedule(self.schedule)
        schedule = inner.over(batches)
        return self if schedule is inner else replace_settings(self, schedule=schedule)


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

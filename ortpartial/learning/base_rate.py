"""Base class of optimizers; decoupled weight decay, from which weights can be excluded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import DTypeLike
from ortpartial.checks import check_names
from ortpartial.docstrings import document
from ortpartial.graph import Value, build, cast, constant, variable

from .base import BaseLearningOnnx, check_number
from .base_schedule import PlateauSchedule
from .piece import replace_settings
from .schedules import Schedule, resolve_schedule
from .update import apply_step, count_from

__all__ = ["BaseLearningRate", "WeightDecay"]


@dataclass(frozen=True)
class BaseLearningRate(BaseLearningOnnx):
    """w ← w - η(k) · step(g, state): the update of a weight by its gradient.

    A subclass names its ``state``, tensors of the shape of the weight that start at zero (of other shapes where it
    defines `state_shapes`), and defines ``update(self, w, g, *state, k)``. It is a frozen dataclass, as this class is,
    or has an ordinary constructor; settings that it does not assign, and the class does not have, take their defaults.

    A state that decays is multiplied by `ortpartial.learning.decay`. There every 32nd batch turns denormal numbers, in
    float32 numbers below 1.2e-38, into 0, which torch does not: they would slow down each step several times, for good,
    once weights no longer receive gradients. Other numbers are not changed. Devices, float16, and trainings that are
    stored in a model do without.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.

    Attributes
    ----------
    state : tuple of str
        The names of the tensors that are kept for each weight from batch to batch.
    elementwise : bool
        Whether an element of the step and of the state follows from this element alone of weight, gradient and state,
        so that small weights may be updated as a vector, in fewer operators. A class has to say so for itself.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> class SignSGD(BaseLearningRate):
    ...     def update(self, w, g, *, k):
    ...         return op.Sign(g), ()
    >>> SignSGD(0.1)
    SignSGD(eta0=0.1, schedule=ConstantSchedule())
    """

    eta0: float = 0.01
    _: KW_ONLY
    schedule: Schedule | str = "constant"
    setting: ClassVar[str] = "learning_rate"
    state: ClassVar[tuple[str, ...]] = ()
    elementwise: ClassVar[bool] = False

    def __init_subclass__(cls, **settings: object) -> None:
        super().__init_subclass__(**settings)
        cls.elementwise = vars(cls).get("elementwise", False)  # It may be computed otherwise than in the base class.

    def __post_init__(self) -> None:
        check_number(self, "eta0", above=0)
        object.__setattr__(self, "schedule", resolve_schedule(self.schedule))

    @abstractmethod
    def update(self, w: Value, g: Value, *state: Any, **k: Any) -> tuple[Value, tuple[Value, ...]]:
        """``update(w, g, *state, k=k)``: the step of batch k, before it is scaled by η, and the new state."""

    def apply(
        self, w: Value, g: Value, k: Value, *state: Value, start: int = 0, factor: Value | float = 1.0
    ) -> tuple[Value, ...]:
        """The weight and its state after batch k.

        Parameters
        ----------
        w, g : Value
            Weight and gradient.
        k : Value
            Number of the batch, from 1, an int64 scalar.
        *state : Value
            The state, in the order of `state_shapes`.
        start : int
            Number of the batch after which the state was zero: the schedule counts from the start of the training, the
            bias correction of Adam from here.
        factor : Value or float
            The factor of the step size of this weight.

        Returns
        -------
        tuple of Value
            The new weight, then the new state.
        """
        step, new_state = self.update(w, g, *state, k=count_from(start, k))
        step = self._add_decay(step, w)
        return apply_step(w, self.step_size(k, w.dtype, factor), step), *new_state

    def _add_decay(self, step: Value, w: Value) -> Value:
        """The step with the decay of the weight, of which there is none unless `WeightDecay` adds it."""
        return step

    def step_size(self, k: Value, dtype: DTypeLike, factor: Value | float = 1.0) -> Value:
        """η(k) times the factor of a weight: a constant where both are.

        Parameters
        ----------
        k : Value
            Number of the batch, from 1, an int64 scalar.
        dtype : numpy dtype or its name
            Element type of the weight.
        factor : Value or float
            The factor of the step size of this weight.

        Returns
        -------
        Value
            A scalar.
        """
        check_number(self, "eta0", above=0)  # An ordinary constructor has not checked it.
        schedule = self._schedule
        eta = schedule(constant(np.asarray(self.eta0, dtype)), k)
        if isinstance(factor, Value):
            return eta * cast(factor, eta)
        if factor == 1:
            return eta
        if eta.array is None:
            return eta * factor
        exact = schedule(constant(np.asarray(self.eta0, np.float64)), k).array
        assert exact is not None
        return constant(np.asarray(exact * factor, dtype))  # The product alone is rounded.

    def for_weight(self, patterns: Collection[str], shape: Sequence[int | str | None]) -> BaseLearningRate:
        """The optimizer of a weight: itself, unless some weights are excluded from a part of the update.

        It has the states of the optimizer of all.

        Parameters
        ----------
        patterns : collection of str
            The members of `patterns` that stand for the weight.
        shape : sequence of int, str or None
            The shape of the weight.

        Returns
        -------
        BaseLearningRate
        """
        return self

    @property
    def plateau(self) -> PlateauSchedule | None:
        """The schedule that reduces the step size where the loss no longer falls, if any."""
        try:  # Most schedules are objects, and a small training takes microseconds.
            return self.schedule.plateau  # type: ignore[union-attr]
        except AttributeError:
            return self._schedule.plateau

    @property
    def _schedule(self) -> Schedule:
        """The schedule, of which a class or an ordinary constructor may have given the name."""
        return resolve_schedule(self.schedule)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The names, aliases and patterns of weights in the settings."""
        return ()

    def state_shapes(self, shape: Sequence[int | str | None]) -> dict[str, tuple[int | str | None, ...]]:
        """The names and shapes of the state of a weight, by default the names of `state`, with the shape of the weight.

        Parameters
        ----------
        shape : sequence of int, str or None
            The shape of the weight.

        Returns
        -------
        dict of str to tuple of int, str or None
        """
        return dict.fromkeys(self.state, tuple(shape))

    def over(self, batches: int) -> BaseLearningRate:
        """The optimizer in a training of so many batches: see `Schedule.over`."""
        former = self.schedule if isinstance(self.schedule, Schedule) else self._schedule
        schedule = former.over(batches)
        return self if schedule is former else replace_settings(self, schedule=schedule)

    def build_onnx_function(self, *, dtype: DTypeLike = "float32", shape: Sequence[int | str | None]) -> ModelProto:
        """The update as an ONNX model: ``(w, g, k, *state) -> (w_out, *state_out)``.

        Parameters
        ----------
        dtype : numpy dtype or its name
            Element type of weight, gradient and state.
        shape : sequence of int, str or None
            Shape of weight and gradient.

        Returns
        -------
        onnx.ModelProto
            The name of an output is that of its input with the suffix ``_out``.
        """
        shapes = {"w": shape, "g": shape, **self.state_shapes(shape)}
        w, g, *state = (variable(name, dtype, size) for name, size in shapes.items())
        k = variable("k", np.int64, [])
        names = [f"{name}_out" for name in shapes if name != "g"]
        outputs = dict(zip(names, self.apply(w, g, k, *state), strict=True))
        return build([w, g, k, *state], outputs, name=type(self).__name__)


@document(BaseLearningRate)
@dataclass(frozen=True)
class WeightDecay(BaseLearningRate):
    """w ← w - η(k) · (step(g, state) + λw): weight decay that is decoupled from the gradient, as a base class.

    Parameters
    ----------
    weight_decay : float
        λ, at least 0: the decay, decoupled from the gradient.
    no_decay : str or sequence of str
        Weights that do not decay: names, aliases and patterns such as ``"*.bias"``, and ``"vectors"`` for all of rank 1
        or less, such as biases and the scales of normalizations.

    References
    ----------
    I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019, in the form of ``torch.optim.AdamW``: the
    decay is scaled by η as well.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> class SignSGDW(WeightDecay):
    ...     def update(self, w, g, *, k):
    ...         return op.Sign(g), ()
    >>> rate = SignSGDW(0.1, weight_decay=0.01, no_decay=["vectors", "embed*"])
    >>> [rate.for_weight(*w).weight_decay for w in (([], [3, 2]), ([], [3]), (["embed*"], [9, 2]))]
    [0.01, 0.0, 0.0]
    """

    _: KW_ONLY
    weight_decay: float = 0.0
    no_decay: str | Collection[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "weight_decay", low=0)
        object.__setattr__(self, "no_decay", check_names(f"{type(self).__name__}: no_decay", self.no_decay))

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(p for p in self.no_decay if p != "vectors")

    def for_weight(self, patterns: Collection[str], shape: Sequence[int | str | None]) -> BaseLearningRate:
        is_excluded = bool(patterns) or ("vectors" in self.no_decay and len(shape) < 2)
        return replace_settings(self, weight_decay=0.0) if is_excluded else self

    def _add_decay(self, step: Value, w: Value) -> Value:
        return step + self.weight_decay * w if self.weight_decay else step

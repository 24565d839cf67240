"""Optimizers: pure updates of a weight and its state by a gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, build, constant, op, variable

from .base import BaseLearningOnnx, check_number, resolve_piece
from .schedules import Schedule, resolve_schedule
from .update import count_from, decay, descend, one_minus_power

__all__ = ["BaseLearningRate", "LearningRateAdagrad", "LearningRateAdam", "LearningRateAdamW", "LearningRateRMSProp",
           "LearningRateSGD", "LearningRateSGDNesterov", "resolve_rate"]


@dataclass(frozen=True)
class BaseLearningRate(BaseLearningOnnx):
    """w ← w - η(k) · step(g, state): the update of a weight by its gradient.

    A subclass names its ``state``, tensors of the shape of the weight that start at zero, and defines
    ``update(self, w, g, *state, k)``; with settings of its own it is a frozen dataclass of them.

    A state that decays is multiplied by `ortpartial.learning.decay`. There every 32nd batch turns denormal numbers, in
    float32 those below 1.2e-38, into 0, which torch does not: they would slow down each step several times, for good,
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

    Examples
    --------
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

    def __post_init__(self) -> None:
        check_number(self, "eta0", above=0)
        object.__setattr__(self, "schedule", resolve_schedule(self.schedule))

    @abstractmethod
    def update(self, w: Value, g: Value, *state: Any, **k: Any) -> tuple[Value, tuple[Value, ...]]:
        """``update(w, g, *state, k=k)``: the step of batch k, before it is scaled by η, and the new state."""

    def step_size(self, k: Value, dtype: Any, factor: float = 1.0) -> Value:
        """η(k) times the factor of a weight: a constant where η is one.

        Parameters
        ----------
        k : Value
            Number of the batch, from 1, an int64 scalar.
        dtype : numpy dtype or its name
            Element type of the weight.
        factor : float
            What the step size of this weight is multiplied by.

        Returns
        -------
        Value
            A scalar.
        """
        assert isinstance(self.schedule, Schedule)
        eta = self.schedule(constant(np.asarray(self.eta0, dtype)), k)
        if factor == 1:
            return eta
        return eta * factor if eta.array is None else constant(np.asarray(eta.array * factor, dtype))

    def apply(self, w: Value, g: Value, k: Value, *state: Value, start: int = 0, factor: float = 1.0
              ) -> tuple[Value, ...]:
        """The weight and its state after batch k.

        Parameters
        ----------
        w, g : Value
            Weight and gradient.
        k : Value
            Number of the batch, from 1, an int64 scalar.
        *state : Value
            The state, in the order of ``self.state``.
        start : int
            Number of the batch after which the state was zero: the schedule counts from the start of the training, the
            bias correction of Adam from here.
        factor : float
            What the step size of this weight is multiplied by.

        Returns
        -------
        tuple of Value
            The new weight, then the new state.
        """
        step, new_state = self.update(w, g, *state, k=count_from(start, k))
        return descend(w, self.step_size(k, w.dtype, factor), step), *new_state

    def over(self, batches: int) -> BaseLearningRate:
        """The optimizer in a training of so many batches: see `Schedule.over`."""
        assert isinstance(self.schedule, Schedule)
        schedule = self.schedule.over(batches)
        return self if schedule is self.schedule else replace(self, schedule=schedule)

    def build_onnx_function(self, *, dtype: Any = "float32", shape: Sequence[int | str | None]) -> ModelProto:
        """The update as an ONNX model: (w, g, k, *state) -> (w_out, *state_out).

        Parameters
        ----------
        dtype : numpy dtype or its name
            Element type of weight, gradient and state.
        shape : sequence of int, str or None
            Shape of weight, gradient and state.

        Returns
        -------
        onnx.ModelProto
            The name of an output is that of its input with the suffix ``_out``.
        """
        w, g, *state = (variable(name, dtype, shape) for name in ("w", "g", *self.state))
        k = variable("k", np.int64, [])
        names = [f"{name}_out" for name in ("w", *self.state)]
        outputs = dict(zip(names, self.apply(w, g, k, *state), strict=True))
        return build([w, g, k, *state], outputs, name=type(self).__name__)


@dataclass(frozen=True)
class LearningRateSGD(BaseLearningRate):
    """step = g.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.

    References
    ----------
    H. Robbins and S. Monro, A Stochastic Approximation Method, 1951.

    Examples
    --------
    >>> LearningRateSGD(0.1, schedule="invscaling")
    LearningRateSGD(eta0=0.1, schedule=InvScalingSchedule(power_t=0.5))
    >>> [node.op_type for node in LearningRateSGD().build_onnx_function(shape=[3, 2]).graph.node]
    ['Mul', 'Sub']
    """

    def update(self, w: Value, g: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        return g, ()


@dataclass(frozen=True)
class LearningRateSGDNesterov(BaseLearningRate):
    """v = μv + g;  step = g + μv, or v alone without `nesterov`.

    Denormal numbers of v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    momentum : float
        μ, at least 0 and less than 1.
    nesterov : bool
        Whether the step looks ahead.

    References
    ----------
    I. Sutskever, J. Martens, G. Dahl and G. Hinton, On the importance of initialization and momentum in deep learning,
    2013, in the form of ``torch.optim.SGD``: η scales v and is not part of it.

    Examples
    --------
    >>> LearningRateSGDNesterov().state
    ('v',)
    """

    _: KW_ONLY
    momentum: float = 0.9
    nesterov: bool = True
    state: ClassVar[tuple[str, ...]] = ("v",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum", low=0, below=1)

    def update(self, w: Value, g: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        v = decay(self.momentum, v, k) + g
        return g + self.momentum * v if self.nesterov else v, (v,)


@dataclass(frozen=True)
class LearningRateAdam(BaseLearningRate):
    """m = β₁m + (1-β₁)g;  v = β₂v + (1-β₂)g²;  step = m̂ / (√v̂ + ε) with m̂ = m / (1-β₁ᵏ) and v̂ = v / (1-β₂ᵏ).

    Denormal numbers of m and v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    beta1 : float
        β₁, at least 0 and less than 1.
    beta2 : float
        β₂, at least 0 and less than 1.
    epsilon : float
        ε, more than 0.
    epsilon_hat : bool
        Whether ε is added to √v and not to √v̂: step = m √(1-β₂ᵏ) / (1-β₁ᵏ) / (√v + ε), as in Keras and in the ONNX
        operator Adam.

    References
    ----------
    D. P. Kingma and J. Ba, Adam: A Method for Stochastic Optimization, 2015, algorithm 1; for `epsilon_hat` the end of
    section 2.

    Examples
    --------
    >>> LearningRateAdam(beta2=0.99).state
    ('m', 'v')
    """

    eta0: float = 1e-3
    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    epsilon_hat: bool = False
    state: ClassVar[tuple[str, ...]] = ("m", "v")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "beta1", "beta2", low=0, below=1)
        check_number(self, "epsilon", above=0)

    def update(self, w: Value, g: Value, m: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        m = decay(self.beta1, m, k) + (1 - self.beta1) * g
        v = decay(self.beta2, v, k) + (1 - self.beta2) * g * g
        # m̂ / (√v̂ + ε), rearranged so that roots and quotients of scalars are computed once for all weights.
        root = op.Sqrt(one_minus_power(self.beta2, k, g))
        epsilon = self.epsilon if self.epsilon_hat else self.epsilon * root
        return root / one_minus_power(self.beta1, k, g) * (m / (op.Sqrt(v) + epsilon)), (m, v)


@dataclass(frozen=True)
class LearningRateAdamW(LearningRateAdam):
    """step = m̂ / (√v̂ + ε) + λw with m̂ and v̂ as in Adam: weight decay that is decoupled from the gradient.

    Denormal numbers of m and v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    beta1 : float
        β₁, at least 0 and less than 1.
    beta2 : float
        β₂, at least 0 and less than 1.
    epsilon : float
        ε, more than 0.
    epsilon_hat : bool
        As for Adam.
    weight_decay : float
        λ, at least 0. It applies to every weight, biases included.

    References
    ----------
    I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2, in the form of
    ``torch.optim.AdamW``: the decay is scaled by η as well.

    Examples
    --------
    >>> LearningRateAdamW(weight_decay=0.1).state
    ('m', 'v')
    """

    _: KW_ONLY
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "weight_decay", low=0)

    def update(self, w: Value, g: Value, m: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        step, state = super().update(w, g, m, v, k=k)
        return (step + self.weight_decay * w if self.weight_decay else step), state


@dataclass(frozen=True)
class LearningRateAdagrad(BaseLearningRate):
    """v = v + g²;  step = g / (√v + ε).

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    epsilon : float
        ε, more than 0.

    References
    ----------
    J. Duchi, E. Hazan and Y. Singer, Adaptive Subgradient Methods for Online Learning and Stochastic Optimization,
    2011, in the form of ``torch.optim.Adagrad``.

    Examples
    --------
    >>> LearningRateAdagrad(0.1).state
    ('v',)
    """

    _: KW_ONLY
    epsilon: float = 1e-10
    state: ClassVar[tuple[str, ...]] = ("v",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "epsilon", above=0)

    def update(self, w: Value, g: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        v = v + g * g
        return g / (op.Sqrt(v) + self.epsilon), (v,)


@dataclass(frozen=True)
class LearningRateRMSProp(BaseLearningRate):
    """v = αv + (1-α)g²;  step = g / (√v + ε), or, with momentum, b = μb + g / (√v + ε);  step = b.

    Denormal numbers of v, a and b become 0: see `BaseLearningRate`.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    alpha : float
        α, at least 0 and less than 1.
    epsilon : float
        ε, more than 0.
    momentum : float
        μ, at least 0 and less than 1.
    centered : bool
        Whether v is replaced by v - a² under the root, with a = αa + (1-α)g: the variance of the gradient.

    References
    ----------
    T. Tieleman and G. Hinton, Lecture 6.5: rmsprop, 2012, and, centered, A. Graves, Generating Sequences With Recurrent
    Neural Networks, 2013, equation 38, in the form of ``torch.optim.RMSprop``.

    Examples
    --------
    >>> LearningRateRMSProp().state, LearningRateRMSProp(momentum=0.9).state
    (('v',), ('v', 'b'))
    """

    _: KW_ONLY
    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "alpha", "momentum", low=0, below=1)
        check_number(self, "epsilon", above=0)

    @property
    def state(self) -> tuple[str, ...]:  # type: ignore[override]
        """v, with a if it is centered and b if it has momentum."""
        return ("v", *(["a"] if self.centered else []), *(["b"] if self.momentum else []))

    def update(self, w: Value, g: Value, *state: Value, k: Value) -> tuple[Value, tuple[Value, ...]]:
        old = dict(zip(self.state, state, strict=True))
        new = {"v": decay(self.alpha, old["v"], k) + (1 - self.alpha) * g * g}
        variance = new["v"]
        if self.centered:
            new["a"] = decay(self.alpha, old["a"], k) + (1 - self.alpha) * g
            # Rounding makes it negative where the gradient is constant.
            variance = op.Relu(variance - new["a"] * new["a"])
        step = g / (op.Sqrt(variance) + self.epsilon)
        if self.momentum:
            step = new["b"] = decay(self.momentum, old["b"], k) + step
        return step, tuple(new.values())


_NAMES = {
    "SGD": LearningRateSGD, "Nesterov": LearningRateSGDNesterov, "SGDNesterov": LearningRateSGDNesterov,
    "Adam": LearningRateAdam, "AdamW": LearningRateAdamW, "Adagrad": LearningRateAdagrad,
    "RMSProp": LearningRateRMSProp,
}


def resolve_rate(rate: BaseLearningRate | type[BaseLearningRate] | str | float) -> BaseLearningRate:
    """The optimizer for a name such as "Adam", a class or an object; SGD with this step size for a number.

    Parameters
    ----------
    rate : BaseLearningRate, type, str or float
        The setting of the user.

    Returns
    -------
    BaseLearningRate

    Raises
    ------
    SettingError
        The name is unknown, or the number out of range.

    Examples
    --------
    >>> resolve_rate(0.1)
    LearningRateSGD(eta0=0.1, schedule=ConstantSchedule())
    """
    if isinstance(rate, (int, float, np.number)) and not isinstance(rate, bool):
        return LearningRateSGD(float(rate))
    if isinstance(rate, str) and _is_number(rate):
        raise SettingError(f"learning_rate: {rate!r} is a string; did you mean the number {rate}?")
    return resolve_piece(BaseLearningRate, rate, _NAMES)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

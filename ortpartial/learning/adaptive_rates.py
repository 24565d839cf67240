"""Optimizers that divide each element of the step by the size of its gradients: Adam and its kin."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from ortpartial.docstrings import document
from ortpartial.graph import Value, cast, constant, op

from .base import check_number
from .base_rate import BaseLearningRate, WeightDecay
from .update import decay, one_minus_power

__all__ = ["LearningRateAdagrad", "LearningRateAdam", "LearningRateAdamW", "LearningRateNAdam", "LearningRateRAdam",
           "LearningRateRMSProp"]


@document(BaseLearningRate)
@dataclass(frozen=True)
class LearningRateAdagrad(BaseLearningRate):
    """v = v + g²;  step = g / (√v + ε).

    Parameters
    ----------
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
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "epsilon", above=0)

    def update(self, w: Value, g: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        v = v + g * g
        return g / (op.Sqrt(v) + self.epsilon), (v,)


@document(BaseLearningRate)
@dataclass(frozen=True)
class LearningRateRMSProp(BaseLearningRate):
    """v = αv + (1-α)g²;  step = g / (√v + ε), or, with momentum, b = μb + g / (√v + ε);  step = b.

    Denormal numbers of v, a and b become 0: see `BaseLearningRate`.

    Parameters
    ----------
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
    elementwise: ClassVar[bool] = True

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


@document(BaseLearningRate)
@dataclass(frozen=True)
class LearningRateAdam(BaseLearningRate):
    """m = β₁m + (1-β₁)g;  v = β₂v + (1-β₂)g²;  step = m̂ / (√v̂ + ε) with m̂ = m / (1-β₁ᵏ) and v̂ = v / (1-β₂ᵏ).

    Denormal numbers of m and v become 0: see `BaseLearningRate`.

    Parameters
    ----------
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
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "beta1", "beta2", low=0, below=1)
        check_number(self, "epsilon", above=0)

    def update(self, w: Value, g: Value, m: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        m, v = self._average(g, m, v, k)
        # m̂ / (√v̂ + ε), rearranged so that roots and quotients of scalars are computed once for all weights.
        root = op.Sqrt(one_minus_power(self.beta2, k, g))
        epsilon = self.epsilon if self.epsilon_hat else self.epsilon * root
        return root / one_minus_power(self.beta1, k, g) * (m / (op.Sqrt(v) + epsilon)), (m, v)

    def _average(self, g: Value, m: Value, v: Value, k: Value) -> tuple[Value, Value]:
        """The moving averages of the gradient and of its square."""
        m = decay(self.beta1, m, k) + (1 - self.beta1) * g
        return m, decay(self.beta2, v, k) + (1 - self.beta2) * g * g


@document(LearningRateAdam, WeightDecay)
@dataclass(frozen=True)
class LearningRateAdamW(WeightDecay, LearningRateAdam):
    """step = m̂ / (√v̂ + ε) + λw with m̂ and v̂ as in Adam: weight decay that is decoupled from the gradient.

    Denormal numbers of m and v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    weight_decay : float
        λ, at least 0. It applies to every weight, biases included, except `no_decay`.

    References
    ----------
    I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2, in the form of
    ``torch.optim.AdamW``: the decay is scaled by η as well.

    Examples
    --------
    >>> rate = LearningRateAdamW(weight_decay=0.1, no_decay=["vectors", "*.embedding"])
    >>> rate.for_weight(["*.embedding"], [9, 8]).weight_decay
    0.0
    """

    eta0: float = 1e-3
    _: KW_ONLY
    weight_decay: float = 0.01
    elementwise: ClassVar[bool] = True


@document(LearningRateAdam, WeightDecay)
@dataclass(frozen=True)
class LearningRateNAdam(WeightDecay, LearningRateAdam):
    """step = ((1-μₖ)/(1-Pₖ) g + μₖ₊₁/(1-Pₖ₊₁) m) / (√v̂ + ε) + λw with μₖ = β₁(1 - ½ 0.96^(ψk)) and Pₖ = μ₁ μ₂ ... μₖ.

    m, v and v̂ are as in Adam: it is Adam with the momentum of Nesterov, which grows with k. Denormal numbers of m and
    v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    momentum_decay : float
        ψ, more than 0.

    References
    ----------
    T. Dozat, Incorporating Nesterov Momentum into Adam, 2016, in the form of ``torch.optim.NAdam`` with
    ``decoupled_weight_decay=True``.

    Examples
    --------
    >>> LearningRateNAdam().state
    ('m', 'v')
    """

    eta0: float = 2e-3
    _: KW_ONLY
    momentum_decay: float = 4e-3
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum_decay", above=0)

    def update(self, w: Value, g: Value, m: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        m, v = self._average(g, m, v, k)
        root = op.Sqrt(one_minus_power(self.beta2, k, g))
        epsilon = self.epsilon if self.epsilon_hat else self.epsilon * root
        mu, ahead, product = *self._momenta(k), self._product(k)
        a, b = (1 - mu) / (1 - product), ahead / (1 - product * ahead)
        return (cast(a, g) * root * g + cast(b, g) * root * m) / (op.Sqrt(v) + epsilon), (m, v)

    def _momenta(self, k: Value) -> tuple[Value, Value]:
        """μₖ and μₖ₊₁ in float64."""
        q = 0.96**self.momentum_decay
        power = 0.5 * self.beta1 * op.Pow(constant(q, np.float64), k)
        return self.beta1 - power, self.beta1 - q * power

    def _product(self, k: Value) -> Value:
        """Pₖ in float64, which follows from k: a state would cost each weight several operators.

        With q = 0.96^ψ it is β₁ᵏ exp Σᵢ log(1 - ½qⁱ) = β₁ᵏ exp -Σⱼ qʲ(1 - qʲᵏ) / (j 2ʲ (1 - qʲ)), in which terms from
        2⁻⁵³ on do not count. 1 - eˣ is computed as -tanh(x/2) (1 + eˣ), which does not cancel.
        """
        j = np.arange(1, 54)
        x = j * np.log(0.96) * self.momentum_decay
        factors, k = np.exp(x) / (j * 2.0**j * -np.expm1(x)), k.astype(np.float64)
        total = op.MatMul(factors, op.Tanh(0.5 * x * k) * (1 + op.Exp(x * k)))
        return op.Pow(constant(self.beta1, np.float64), k) * op.Exp(total)


@document(LearningRateAdam, WeightDecay)
@dataclass(frozen=True)
class LearningRateRAdam(WeightDecay, LearningRateAdam):
    """step = r m̂ / (√v̂ + ε) + λw where ρ > 5, else m̂ + λw, with r = √((ρ-4)(ρ-2)ρ∞ / ((ρ∞-4)(ρ∞-2)ρ)).

    Here ρ∞ = 2/(1-β₂) - 1 and ρ = ρ∞ - 2kβ₂ᵏ/(1-β₂ᵏ), and m̂ and v̂ are as in Adam: the first steps, in which v is the
    mean of few gradients, do not divide by it. Denormal numbers of m and v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    epsilon_hat : bool
        Whether ε is added to √v and not to √v̂, as in torch.

    References
    ----------
    L. Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2020, algorithm 2, in the form of
    ``torch.optim.RAdam`` with ``decoupled_weight_decay=True``.

    Examples
    --------
    >>> LearningRateRAdam().state
    ('m', 'v')
    """

    eta0: float = 1e-3
    _: KW_ONLY
    epsilon_hat: bool = True
    elementwise: ClassVar[bool] = True

    def update(self, w: Value, g: Value, m: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        m, v = self._average(g, m, v, k)
        last, root = 2 / (1 - self.beta2) - 1, op.Sqrt(one_minus_power(self.beta2, k, g))
        power = op.Pow(constant(self.beta2, np.float64), k)
        rho = last - 2 * cast(k, power) * power / (1 - power)
        # At 5 and below nothing is rectified, and the root may be of a negative number.
        r = op.Sqrt(op.Max((rho - 4) * (rho - 2) * last / ((last - 4) * (last - 2) * rho), 0.0))
        epsilon = self.epsilon if self.epsilon_hat else self.epsilon * root
        scale = op.Where(rho > 5, cast(r, g) * root / (op.Sqrt(v) + epsilon), 1.0)
        # Not 1 / x, which onnxruntime 1.19.2 fuses with the product by η, and loses η where that is a sum with 0.
        return op.Reciprocal(one_minus_power(self.beta1, k, g)) * (m * scale), (m, v)

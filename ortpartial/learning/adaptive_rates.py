"""Optimizers that divide each element of the step by the size of its gradients: Adam and its kin."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from ortpartial.graph import Value, op

from .base import check_number
from .base_rate import BaseLearningRate, WeightDecay
from .update import decay, one_minus_power

__all__ = ["LearningRateAdagrad", "LearningRateAdam", "LearningRateAdamW", "LearningRateRMSProp"]


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
class LearningRateAdamW(WeightDecay, LearningRateAdam):
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
        λ, at least 0. It applies to every weight, biases included, but those of `no_decay`.
    no_decay : str or sequence of str
        Weights that do not decay: names, aliases and patterns such as ``"*.bias"``, and ``"vectors"`` for all of rank
        one or less.

    References
    ----------
    I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization, 2019, algorithm 2, in the form of
    ``torch.optim.AdamW``: the decay is scaled by η as well.

    Examples
    --------
    >>> rate = LearningRateAdamW(weight_decay=0.1, no_decay=["vectors", "*.embedding"])
    >>> rate.for_weight(["fc.bias"], [8]).weight_decay
    0.0
    """

    eta0: float = 1e-3
    _: KW_ONLY
    weight_decay: float = 0.01

"""Optimizers that step along the gradient or its moving average: SGD, with and without momentum, and Lion."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from ortpartial.docstrings import document
from ortpartial.graph import Value, op

from .base import check_number
from .base_rate import WeightDecay
from .update import decay

__all__ = ["LearningRateLion", "LearningRateSGD", "LearningRateSGDNesterov"]


@document(WeightDecay)
@dataclass(frozen=True)
class LearningRateSGD(WeightDecay):
    """step = g + λw.

    References
    ----------
    H. Robbins and S. Monro, A Stochastic Approximation Method, 1951; with λ, I. Loshchilov and F. Hutter, Decoupled
    Weight Decay Regularization, 2019, algorithm 1.

    Examples
    --------
    >>> LearningRateSGD(0.1, schedule="invscaling")
    LearningRateSGD(eta0=0.1, schedule=InvScalingSchedule(power_t=0.5), weight_decay=0.0, no_decay=())
    >>> [node.op_type for node in LearningRateSGD().build_onnx_function(shape=[3, 2]).graph.node]
    ['Mul', 'Sub']
    """

    elementwise: ClassVar[bool] = True

    def update(self, w: Value, g: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        return g, ()


@document(WeightDecay)
@dataclass(frozen=True)
class LearningRateSGDNesterov(WeightDecay):
    """v = μv + g;  step = g + μv + λw, or v + λw without `nesterov`.

    Denormal numbers of v become 0: see `BaseLearningRate`.

    Parameters
    ----------
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
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "momentum", low=0, below=1)

    def update(self, w: Value, g: Value, v: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        v = decay(self.momentum, v, k) + g
        return g + self.momentum * v if self.nesterov else v, (v,)


@document(WeightDecay)
@dataclass(frozen=True)
class LearningRateLion(WeightDecay):
    """step = sign(β₁m + (1-β₁)g) + λw;  m = β₂m + (1-β₂)g.

    Every element moves by the same amount, so that η is to be three to ten times less than for Adam, and λ as many
    times more. Denormal numbers of m become 0: see `BaseLearningRate`.

    Parameters
    ----------
    beta1 : float
        β₁, at least 0 and less than 1.
    beta2 : float
        β₂, at least 0 and less than 1.

    References
    ----------
    X. Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2.

    Examples
    --------
    >>> LearningRateLion(weight_decay=0.1, no_decay="vectors").state
    ('m',)
    """

    eta0: float = 1e-4
    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.99
    state: ClassVar[tuple[str, ...]] = ("m",)
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "beta1", "beta2", low=0, below=1)

    def update(self, w: Value, g: Value, m: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        step = op.Sign(self.beta1 * m + (1 - self.beta1) * g)
        return step, (decay(self.beta2, m, k) + (1 - self.beta2) * g,)

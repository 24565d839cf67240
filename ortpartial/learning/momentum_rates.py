"""Optimizers that step along the gradient, or along its moving average: gradient descent, with and without momentum."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from ortpartial.graph import Value

from .base import check_number
from .base_rate import WeightDecay
from .update import decay

__all__ = ["LearningRateSGD", "LearningRateSGDNesterov"]


@dataclass(frozen=True)
class LearningRateSGD(WeightDecay):
    """step = g + λw.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    weight_decay : float
        λ, at least 0: decoupled weight decay, see `WeightDecay`.
    no_decay : str or sequence of str
        Weights that do not decay: names, aliases, patterns, and ``"vectors"`` for all of rank one or less.

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

    def update(self, w: Value, g: Value, *, k: Value) -> tuple[Value, tuple[Value, ...]]:
        return g, ()


@dataclass(frozen=True)
class LearningRateSGDNesterov(WeightDecay):
    """v = μv + g;  step = g + μv + λw, or v + λw without `nesterov`.

    Denormal numbers of v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size, more than 0.
    schedule : Schedule or str
        η(k), the step size at batch k: "constant", "invscaling", "optimal", or a `Schedule`.
    weight_decay : float
        λ, at least 0: decoupled weight decay, see `WeightDecay`.
    no_decay : str or sequence of str
        Weights that do not decay: names, aliases, patterns, and ``"vectors"`` for all of rank one or less.
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

"""Losses by name: formulas from prediction and target to the cost of each element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import Value, op

from .base import check_number, resolve_piece
from .base_loss import BaseLearningLoss
from .cross_entropy import (
    FocalLearningLoss,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
)
from .function_loss import FunctionLearningLoss
from .next_token import NextTokenLearningLoss

__all__ = ["AbsoluteLearningLoss", "BaseLearningLoss", "ElasticLearningLoss", "FocalLearningLoss",
           "HingeLearningLoss", "HuberLearningLoss", "NegLogLearningLoss", "NextTokenLearningLoss",
           "PoissonLearningLoss", "SoftmaxCrossEntropyLearningLoss", "SoftmaxFocalLearningLoss", "SquareLearningLoss",
           "resolve_loss"]


@dataclass(frozen=True)
class SquareLearningLoss(BaseLearningLoss):
    """e² with e = y - t.

    References
    ----------
    https://en.wikipedia.org/wiki/Mean_squared_error

    Examples
    --------
    >>> model = SquareLearningLoss().build_onnx_function(shape=["N", 1], weighted=False)
    >>> [node.op_type for node in model.graph.node][:3]
    ['Sub', 'Pow', 'ReduceMean']
    """

    def __call__(self, y: Value, t: Value) -> Value:
        # The gradient of a power is a product; the gradient of e * e is two products and a sum.
        return (y - t) ** 2


@dataclass(frozen=True)
class AbsoluteLearningLoss(BaseLearningLoss):
    """|e| with e = y - t; its gradient is 0 where e = 0.

    References
    ----------
    https://en.wikipedia.org/wiki/Mean_absolute_error

    Examples
    --------
    >>> model = AbsoluteLearningLoss().build_onnx_function(shape=["N", 1], weighted=False)
    >>> [node.op_type for node in model.graph.node][:3]
    ['Sub', 'Abs', 'ReduceMean']
    """

    def __call__(self, y: Value, t: Value) -> Value:
        return op.Abs(y - t)


@dataclass(frozen=True)
class ElasticLearningLoss(BaseLearningLoss):
    """l₁|e| + l₂e² with e = y - t; its gradient is 0 where e = 0.

    Parameters
    ----------
    l1_weight : float
        l₁, at least 0.
    l2_weight : float
        l₂, at least 0; not both are 0.

    References
    ----------
    H. Zou and T. Hastie, Regularization and variable selection via the elastic net, 2005, applied to errors.

    Examples
    --------
    >>> ElasticLearningLoss(l1_weight=0.1, l2_weight=0.9)
    ElasticLearningLoss(l1_weight=0.1, l2_weight=0.9)
    """

    l1_weight: float = 0.5
    l2_weight: float = 0.5

    def __post_init__(self) -> None:
        check_number(self, "l1_weight", "l2_weight", low=0)
        if self.l1_weight == self.l2_weight == 0:
            raise SettingError("ElasticLearningLoss: l1_weight and l2_weight are both 0, one at least must be more.")

    def __call__(self, y: Value, t: Value) -> Value:
        e = y - t
        if self.l2_weight == 0:
            return self.l1_weight * op.Abs(e)
        square = self.l2_weight * (e * e)
        return self.l1_weight * op.Abs(e) + square if self.l1_weight else square


@dataclass(frozen=True)
class HuberLearningLoss(BaseLearningLoss):
    """½e² where |e| ≤ δ, and δ(|e| - ½δ) beyond, with e = y - t.

    Parameters
    ----------
    delta : float
        δ, the error beyond which the loss is linear, more than 0.

    Notes
    -----
    With c, the error clipped to ±δ, both cases are c(e - ½c), and the gradient is c.

    References
    ----------
    P. J. Huber, Robust Estimation of a Location Parameter, 1964; ``torch.nn.HuberLoss``.

    Examples
    --------
    >>> HuberLearningLoss(delta=1.5)
    HuberLearningLoss(delta=1.5)
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "delta", above=0)

    def __call__(self, y: Value, t: Value) -> Value:
        e = y - t
        c = op.Clip(e, -self.delta, self.delta)
        return c * (e - 0.5 * c)


@dataclass(frozen=True)
class PoissonLearningLoss(BaseLearningLoss):
    """eʸ - ty, with a raw score y = log E(t) and a count t, at least 0.

    Notes
    -----
    It is the negative log-likelihood of a Poisson distribution without the constant log t!. A prediction is the raw
    score, and the expected count its exponential. Nothing is clipped: eʸ is infinite in float32 from y = 88.8 on, in
    float64 from y = 709.8 on.

    References
    ----------
    https://en.wikipedia.org/wiki/Poisson_regression; ``torch.nn.PoissonNLLLoss(log_input=True, full=False)``.

    Examples
    --------
    >>> model = PoissonLearningLoss().build_onnx_function(shape=["N", 1], weighted=False)
    >>> [node.op_type for node in model.graph.node][:4]
    ['Exp', 'Mul', 'Sub', 'ReduceMean']
    """

    activations: ClassVar = ("Exp",)

    def __call__(self, y: Value, t: Value) -> Value:
        return op.Exp(y) - t * y

    def mean(self, y: np.ndarray) -> np.ndarray:
        return np.exp(y)

    def check_target(self, t: np.ndarray, what: str = "y") -> None:
        if t.size and not t.min() >= 0:
            raise DataError(f"{what} has numbers from {t.min()} on, where counts, at least 0, were expected.")


@dataclass(frozen=True)
class HingeLearningLoss(BaseLearningLoss):
    """max(0, 1 - sy) with s = 2t - 1, a raw score y and a label t of 0 or 1; its gradient is 0 where sy = 1.

    References
    ----------
    C. Cortes and V. Vapnik, Support-Vector Networks, 1995; ``sklearn.metrics.hinge_loss``.

    Examples
    --------
    >>> HingeLearningLoss().labels(np.array([-0.5, 2.0]))
    array([0, 1])
    """

    def __call__(self, y: Value, t: Value) -> Value:
        return op.Relu(1 - (2 * t - 1) * y)

    def check_target(self, t: np.ndarray, what: str = "y") -> None:
        # A target between 0 and 1 is not a probability here: at ½ every score would cost 1.
        if (wrong := t[(t != 0) & (t != 1)]).size:
            raise DataError(f"{what} has the number {wrong[0]}, where labels of 0 and 1 were expected"
                            f"{'; labels of -1 and 1 become these by y > 0' if wrong[0] == -1 else ''}.")

    def labels(self, y: np.ndarray) -> np.ndarray:
        return (y > 0).astype(np.int64)


_NAMES = {
    "square_error": SquareLearningLoss, "squared_error": SquareLearningLoss, "square": SquareLearningLoss,
    "absolute_error": AbsoluteLearningLoss, "absolute": AbsoluteLearningLoss,
    "elastic": ElasticLearningLoss, "elastic_error": ElasticLearningLoss,
    "huber": HuberLearningLoss, "poisson": PoissonLearningLoss, "hinge": HingeLearningLoss,
    "log_loss": NegLogLearningLoss, "log": NegLogLearningLoss, "logloss": NegLogLearningLoss,
    "neglog": NegLogLearningLoss, "focal": FocalLearningLoss,
    "softmax_cross_entropy": SoftmaxCrossEntropyLearningLoss, "cross_entropy": SoftmaxCrossEntropyLearningLoss,
    "softmax_focal": SoftmaxFocalLearningLoss, "next_token": NextTokenLearningLoss,
}


def resolve_loss(
    loss: BaseLearningLoss | type[BaseLearningLoss] | str | Callable[[Value, Value], Value]
) -> BaseLearningLoss:
    """The loss for a name such as "square_error" or "log_loss", a class, an object, or a function.

    Parameters
    ----------
    loss : BaseLearningLoss, type, str or callable
        The setting of the user; a function goes from prediction and target to the cost of each element.

    Returns
    -------
    BaseLearningLoss

    Raises
    ------
    SettingError
        The name is unknown, or the function does not take two arguments.

    Examples
    --------
    >>> resolve_loss("elastic")
    ElasticLearningLoss(l1_weight=0.5, l2_weight=0.5)
    """
    is_foreign = type(loss).__module__.startswith(("torch.", "keras.", "tensorflow."))
    if callable(loss) and not is_foreign and not isinstance(loss, (type, BaseLearningLoss)):
        return FunctionLearningLoss(loss)
    return resolve_piece(BaseLearningLoss, loss, _NAMES)

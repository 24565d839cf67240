"""Losses: formulas from prediction and target to the cost of each element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.exceptions import DataError, GraphError, SettingError
from ortpartial.graph import Value, build, constant, op, variable

from .base import BaseLearningOnnx, check_number, resolve_piece, weighted_mean

__all__ = ["AbsoluteLearningLoss", "BaseLearningLoss", "ElasticLearningLoss", "HingeLearningLoss", "HuberLearningLoss",
           "NegLogLearningLoss", "PoissonLearningLoss", "SoftmaxCrossEntropyLearningLoss", "SquareLearningLoss",
           "resolve_loss"]

Shape = Sequence["int | str | None"]


@dataclass(frozen=True)
class BaseLearningLoss(BaseLearningOnnx):
    """ℓ(y, t): the cost of each element of a prediction y with the target t.

    A subclass defines ``__call__(self, y, t)`` from two values to a third; with settings it is a frozen dataclass of
    them. The mean over a row, the weighted mean Σwᵢℓᵢ / Σwᵢ over the rows and the gradient are derived from it.

    Attributes
    ----------
    target_dtype : numpy dtype or None
        Element type of the target, by default that of the prediction.
    activations : tuple of str
        Operators that a prediction should not end in: first the one that the loss applies itself, to raw scores.

    Examples
    --------
    A custom loss, which every engine accepts:

    >>> class LogCosh(BaseLearningLoss):
    ...     def __call__(self, y, t):
    ...         return op.Log(op.Cosh(y - t))
    >>> model = LogCosh().build_onnx_function(shape=["N", 1])
    >>> [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    (['y', 't', 'w'], ['loss', 'y_grad'])
    """

    setting: ClassVar[str] = "learning_loss"
    target_dtype: ClassVar[Any] = None
    activations: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def __call__(self, y: Value, t: Value) -> Value:
        """The cost of each element."""

    def target_shape(self, output_shape: Shape) -> tuple[int | str | None, ...]:
        """The shape of the target of an output.

        Parameters
        ----------
        output_shape : sequence of int, str or None
            Shape of the output.

        Returns
        -------
        tuple of int, str or None
        """
        return tuple(output_shape)

    def check_target(self, t: np.ndarray, what: str = "y") -> None:
        """Raise DataError for a target outside the domain of the loss, by default any finite number.

        Parameters
        ----------
        t : numpy.ndarray
            The target.
        what : str
            The name of the target in errors.
        """

    def mean(self, y: np.ndarray) -> np.ndarray:
        """The expected target E(t) for a prediction, by default the prediction itself.

        Parameters
        ----------
        y : numpy.ndarray
            A prediction.

        Returns
        -------
        numpy.ndarray
        """
        return y

    def labels(self, y: np.ndarray) -> np.ndarray | None:
        """The predicted labels for scores; None where the target is a quantity.

        Parameters
        ----------
        y : numpy.ndarray
            A prediction.

        Returns
        -------
        numpy.ndarray or None
        """
        return None

    def build_onnx_function(self, *, dtype: Any = "float32", shape: Shape, weighted: bool = True) -> ModelProto:
        """Loss and gradient as an ONNX model: (y, t, w) -> (loss, y_grad).

        Parameters
        ----------
        dtype : numpy dtype or its name
            Element type of the prediction, the weights and, unless the loss sets another, the target.
        shape : sequence of int, str or None
            Shape of the prediction, rows first.
        weighted : bool
            Whether the model has an input "w" for weights of the rows.

        Returns
        -------
        onnx.ModelProto
            The loss is a scalar, the gradient has the shape of the prediction.
        """
        # Unknown sizes are named, so that prediction and target have the same.
        shape = [f"d{i}" if size is None else size for i, size in enumerate(shape)]
        y = variable("y", dtype, shape)
        t = variable("t", dtype if self.target_dtype is None else self.target_dtype, self.target_shape(shape))
        w = variable("w", dtype, shape[:1]) if weighted else None
        loss = weighted_mean(self(y, t), w)
        (dy,) = grad(loss, [y])
        inputs = [y, t] if w is None else [y, t, w]
        return build(inputs, {"loss": loss, "y_grad": dy}, name=type(self).__name__)


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
        # The gradient of a power is one product; that of e * e is two products and a sum.
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
            raise DataError(f"{what} has the number {wrong[0]}, where labels of 0 and 1 were expected.")

    def labels(self, y: np.ndarray) -> np.ndarray:
        return (y > 0).astype(np.int64)


@dataclass(frozen=True)
class NegLogLearningLoss(BaseLearningLoss):
    """log(1 + eʸ) - ty = -t log σ(y) - (1 - t) log(1 - σ(y)), with a raw score y and a label t of 0 or 1.

    Notes
    -----
    log(1 + eʸ) is computed as max(y, 0) + log(1 + exp(-|y|)) and its derivative as σ(y), both finite for every score
    without clipping. A target between 0 and 1 is a probability.

    References
    ----------
    https://en.wikipedia.org/wiki/Cross-entropy#Cross-entropy_loss_function_and_logistic_regression

    Examples
    --------
    >>> model = NegLogLearningLoss().build_onnx_function(shape=["N", 1], weighted=False)
    >>> [node.op_type for node in model.graph.node][:4]
    ['Softplus', 'Mul', 'Sub', 'ReduceMean']
    """

    activations: ClassVar = ("Sigmoid", "Softmax")

    def __call__(self, y: Value, t: Value) -> Value:
        return op.Softplus(y) - t * y

    def check_target(self, t: np.ndarray, what: str = "y") -> None:
        if t.size and not 0 <= t.min() <= t.max() <= 1:
            raise DataError(f"{what} has numbers from {t.min()} to {t.max()}, where labels of 0 and 1 were expected.")

    def labels(self, y: np.ndarray) -> np.ndarray:
        return (y > 0).astype(np.int64)


@dataclass(frozen=True)
class SoftmaxCrossEntropyLearningLoss(BaseLearningLoss):
    """-log softmax(y)ₜ, with raw scores y and a label t of 0 to C - 1.

    The prediction has the shape (N, C) or (N, C, d, ...), the target (N,) or (N, d, ...). A label out of range costs
    nothing and has no gradient.

    References
    ----------
    https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html

    Examples
    --------
    >>> loss = SoftmaxCrossEntropyLearningLoss()
    >>> loss.target_shape(["N", 10])
    ('N',)
    >>> model = loss.build_onnx_function(shape=["N", 10])
    >>> [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    (['y', 't', 'w'], ['loss', 'y_grad'])
    """

    target_dtype: ClassVar[Any] = np.int64
    activations: ClassVar = ("Softmax", "Sigmoid")

    def target_shape(self, output_shape: Shape) -> tuple[int | str | None, ...]:
        if len(output_shape) < 2:
            raise GraphError(f"SoftmaxCrossEntropyLearningLoss: the output has the shape {tuple(output_shape)}, "
                             f"scores of shape (N, C) or (N, C, d, ...) were expected.")
        return (*output_shape[:1], *output_shape[2:])

    def __call__(self, y: Value, t: Value) -> Value:
        self.target_shape(y.shape or ())
        # A mask is safe for labels out of range, where a Gather would crash or read out of bounds. It selects and does
        # not multiply, since the score of an excluded class may be -∞, and 0 · ∞ is NaN.
        mask = op.Equal(op.Unsqueeze(t, [1]), class_indices(y))
        return -op.ReduceSum(op.Where(mask, op.LogSoftmax(y, axis=1), 0), [1], keepdims=0)

    def labels(self, y: np.ndarray) -> np.ndarray:
        return y.argmax(axis=1)


def class_indices(y: Value) -> Value:
    """0 to C - 1 in the shape (C, 1, ...), which broadcasts against scores (N, C, d, ...)."""
    n = y.shape[1] if y.shape else None
    if isinstance(n, int):
        return constant(np.arange(n).reshape([n] + [1] * (y.rank - 2)))
    labels = op.Range(0, op.Gather(op.Shape(y), 1), 1)
    return op.Unsqueeze(labels, list(range(1, y.rank - 1))) if y.rank > 2 else labels


_NAMES = {
    "square_error": SquareLearningLoss, "squared_error": SquareLearningLoss, "absolute_error": AbsoluteLearningLoss,
    "elastic": ElasticLearningLoss, "huber": HuberLearningLoss, "poisson": PoissonLearningLoss,
    "hinge": HingeLearningLoss, "log_loss": NegLogLearningLoss,
    "softmax_cross_entropy": SoftmaxCrossEntropyLearningLoss, "cross_entropy": SoftmaxCrossEntropyLearningLoss,
}


def resolve_loss(loss: BaseLearningLoss | type[BaseLearningLoss] | str) -> BaseLearningLoss:
    """The loss for a name such as "square_error" or "log_loss", a class or an object.

    Parameters
    ----------
    loss : BaseLearningLoss, type or str
        The setting of the user.

    Returns
    -------
    BaseLearningLoss

    Raises
    ------
    SettingError
        The name is unknown.

    Examples
    --------
    >>> resolve_loss("elastic")
    ElasticLearningLoss(l1_weight=0.5, l2_weight=0.5)
    """
    return resolve_piece(BaseLearningLoss, loss, _NAMES)

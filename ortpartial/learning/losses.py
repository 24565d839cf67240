"""Losses: formulas from prediction and target to the cost of each element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.exceptions import DataError, GraphError, SettingError
from ortpartial.graph import Value, build, cast, constant, op, variable

from .base import BaseLearningOnnx, check_number, resolve_piece, weighted_mean
from .class_weights import balance_classes, check_class_weight, list_class_weights
from .validation import check_integer

__all__ = ["AbsoluteLearningLoss", "BaseLearningLoss", "ElasticLearningLoss", "HingeLearningLoss", "HuberLearningLoss",
           "NegLogLearningLoss", "PoissonLearningLoss", "SoftmaxCrossEntropyLearningLoss", "SquareLearningLoss",
           "resolve_loss"]

Shape = Sequence["int | str | None"]


@dataclass(frozen=True)
class BaseLearningLoss(BaseLearningOnnx):
    """ℓ(y, t): the cost of each element of a prediction y with the target t.

    A subclass defines ``__call__(self, y, t)`` from two values to a third; with settings it is a frozen dataclass of
    them. The mean over a row, the weighted mean Σwᵢℓᵢ / Σwᵢcᵢ, where cᵢ is by how much an element counts, usually 1,
    and the gradient are derived from it.

    Attributes
    ----------
    target_dtype : numpy dtype or None
        Element type of the target, by default that of the prediction.
    activations : tuple of str
        Operators that a prediction should not end in: first the one that the loss applies itself, to raw scores.
    ignore_index : int or None
        The label that does not count.

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
    # Without annotations, which would make them the first fields of a subclass that has them as settings.
    ignore_index = None
    class_weight = None

    @abstractmethod
    def __call__(self, y: Value, t: Value) -> Value:
        """The cost of each element."""

    def counts(self, y: Value, t: Value) -> Value | None:
        """c: by how much each element counts in the mean, which is divided by their sum.

        Parameters
        ----------
        y, t : Value
            A prediction and its target.

        Returns
        -------
        Value or None
            Of the shape and dtype of the costs; None, the default, where every element counts 1.
        """
        return None

    def count_array(self, t: np.ndarray) -> np.ndarray | None:
        """What `counts` computes, for an array of targets.

        Parameters
        ----------
        t : numpy.ndarray
            The target.

        Returns
        -------
        numpy.ndarray or None
        """
        return None

    def counting_all(self) -> BaseLearningLoss:
        """The same loss for targets without the label that does not count, which is not looked for.

        Returns
        -------
        BaseLearningLoss
        """
        return self

    #: Whether class weights are to be found in the labels first, by `balanced`.
    is_unbalanced = False

    def balanced(self, t: np.ndarray) -> BaseLearningLoss:
        """The loss with the class weights of all labels, where its settings leave them to the labels.

        Parameters
        ----------
        t : numpy.ndarray
            All labels.

        Returns
        -------
        BaseLearningLoss
        """
        return self

    def count_classes(self, output_shape: Shape) -> int | None:
        """The number of classes of an output; None where the target is a quantity, or the number is not known.

        Parameters
        ----------
        output_shape : sequence of int, str or None
            Shape of the output.

        Returns
        -------
        int or None
        """
        if self.target_dtype is None or np.dtype(self.target_dtype).kind not in "iu" or len(output_shape) < 2:
            return None
        return size if isinstance(size := output_shape[1], int) else None

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

    def check_output(self, output_shape: Shape) -> None:
        """Raise SettingError for an output of which the loss learns nothing.

        Parameters
        ----------
        output_shape : sequence of int, str or None
            Shape of the output.
        """

    def explain_shape(self, shape: Sequence[int], output_shape: Shape) -> str:
        """What to do about a target of a shape that is not that of `target_shape`.

        Parameters
        ----------
        shape : sequence of int
            Shape of the target.
        output_shape : sequence of int, str or None
            Shape of the output.

        Returns
        -------
        str
            The end of a sentence; empty where nothing is known.
        """
        return ""

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

    def build_onnx_function(
        self, *, dtype: Any = "float32", shape: Shape, weighted: bool | str = True
    ) -> ModelProto:
        """Loss and gradient as an ONNX model: (y, t, w) -> (loss, y_grad).

        Parameters
        ----------
        dtype : numpy dtype or its name
            Element type of the prediction, the weights and, unless the loss sets another, the target.
        shape : sequence of int, str or None
            Shape of the prediction, rows first.
        weighted : bool or "elements"
            Whether the model has an input "w", for weights of the rows, or of the shape of the target.

        Returns
        -------
        onnx.ModelProto
            The loss is a scalar, the gradient has the shape of the prediction.
        """
        # Unknown sizes are named, so that prediction and target have the same.
        shape = [f"d{i}" if size is None else size for i, size in enumerate(shape)]
        y = variable("y", dtype, shape)
        t = variable("t", dtype if self.target_dtype is None else self.target_dtype, self.target_shape(shape))
        w = variable("w", dtype, t.shape if weighted == "elements" else shape[:1]) if weighted else None
        loss = weighted_mean(self(y, t), w, self.counts(y, t))
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
            raise DataError(f"{what} has the number {wrong[0]}, where labels of 0 and 1 were expected"
                            f"{'; labels of -1 and 1 become these by y > 0' if wrong[0] == -1 else ''}.")

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
            hint = "; labels of -1 and 1 become these by y > 0" if (t.min(), t.max()) == (-1, 1) else ""
            raise DataError(f"{what} has numbers from {t.min()} to {t.max()}, where labels of 0 and 1 were expected"
                            f"{hint}.")

    def labels(self, y: np.ndarray) -> np.ndarray:
        return (y > 0).astype(np.int64)


@dataclass(frozen=True)
class SoftmaxCrossEntropyLearningLoss(BaseLearningLoss):
    """-Σₖ cₖqₖ log softmax(y)ₖ with q = 1 - ε + ε/C for the label t and ε/C for the others, of C classes; it counts cₜ.

    With the defaults it is -log softmax(y)ₜ. The mean is Σwℓ / Σwcₜ over all labels but `ignore_index`, as that of
    ``torch.nn.CrossEntropyLoss``, except that a batch in which nothing counts has a loss and a gradient of 0, where
    torch has NaN. Other labels are 0 to C - 1: `fit` and `TrainingSession` refuse one out of range, and a graph of your
    own takes it for a label of no class.

    Parameters
    ----------
    axis : int
        The axis of the classes: 1 for scores of shape (rows, C) or (rows, C, height, width), -1 for scores of shape
        (rows, tokens, C). The target has the shape of the scores without it.
    ignore_index : int or None
        The label of rows, tokens or pixels that do not count, such as those that pad a sequence; None for no such
        label.
    label_smoothing : float
        ε, from 0 to 1.
    class_weight : array_like of shape (C,), dict of int to float, "balanced" or None
        c, at least 0; 1 for classes that a dict leaves out. ``"balanced"``, for `fit` with all rows at once, takes
        those of scikit-learn: n / (m nₖ) for a class with nₖ of n labels and m classes among them, and 1 for a class
        without any; `fit` from batches and `partial_fit` do not know all labels and keep those of the last `fit`.

    References
    ----------
    ``torch.nn.CrossEntropyLoss``; https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html; C. Szegedy et al.,
    Rethinking the Inception Architecture for Computer Vision, 2016, for the smoothing of labels.

    Examples
    --------
    >>> loss = SoftmaxCrossEntropyLearningLoss()
    >>> loss.target_shape(["N", 10])
    ('N',)
    >>> model = loss.build_onnx_function(shape=["N", 10])
    >>> [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    (['y', 't', 'w'], ['loss', 'y_grad'])

    Classes of tokens, of which the first is frequent:

    >>> loss = SoftmaxCrossEntropyLearningLoss(axis=-1, class_weight={0: 0.1})
    >>> loss.target_shape(["N", "tokens", 5]), loss.count_array(np.array([[0, 4, -100]])).tolist()
    (('N', 'tokens'), [[0.1, 1.0, 0.0]])
    """

    axis: int = 1
    ignore_index: int | None = -100  # type: ignore[assignment]
    label_smoothing: float = 0.0
    class_weight: Any = None
    target_dtype: ClassVar[Any] = np.int64
    activations: ClassVar = ("Softmax", "Sigmoid")

    def __post_init__(self) -> None:
        check_integer(self, "axis")
        if self.axis == 0:
            raise SettingError("SoftmaxCrossEntropyLearningLoss: axis is 0, the axis of the rows; that of the classes "
                               "was expected, such as 1 or -1.")
        if self.ignore_index is not None:
            check_integer(self, "ignore_index")
        check_number(self, "label_smoothing", low=0, high=1)
        object.__setattr__(self, "class_weight", check_class_weight(self.class_weight))

    def class_axis(self, output_shape: Shape) -> int:
        """The axis of the classes, counted from the first.

        Parameters
        ----------
        output_shape : sequence of int, str or None
            Shape of the output.

        Returns
        -------
        int

        Raises
        ------
        GraphError
            The output has no such axis beside that of the rows.
        """
        rank = len(output_shape)
        if rank < 2:
            raise GraphError(f"SoftmaxCrossEntropyLearningLoss: the output has the shape {tuple(output_shape)}, "
                             f"scores of shape (N, C) or (N, C, d, ...) were expected.")
        axis = self.axis + rank if self.axis < 0 else self.axis
        if not 0 < axis < rank:
            raise GraphError(f"SoftmaxCrossEntropyLearningLoss: the output has the shape {tuple(output_shape)}, and "
                             f"no axis of classes {self.axis}.")
        return axis

    def target_shape(self, output_shape: Shape) -> tuple[int | str | None, ...]:
        axis = self.class_axis(output_shape)
        return (*output_shape[:axis], *output_shape[axis + 1 :])

    def count_classes(self, output_shape: Shape) -> int | None:
        return size if isinstance(size := output_shape[self.class_axis(output_shape)], int) else None

    def check_output(self, output_shape: Shape) -> None:
        if self.count_classes(output_shape) == 1:
            raise SettingError(f"SoftmaxCrossEntropyLearningLoss: the output has the shape {tuple(output_shape)}, one "
                               f"score for each label, of which the softmax is always 1, so that nothing is learned; "
                               f"learning_loss='log_loss' is for single scores, with labels of 0 and 1.")
        self._list_class_weights(output_shape)

    def explain_shape(self, shape: Sequence[int], output_shape: Shape) -> str:
        axis = self.class_axis(output_shape)
        if tuple(shape[1:]) == tuple(output_shape[1:]):
            return f"; for one-hot rows or probabilities of classes give their labels, y.argmax({axis})"
        for other in (1, -1):
            if tuple(shape[1:]) == replace(self, axis=other).target_shape(output_shape)[1:]:
                return (f"; where axis {other} of the scores, of shape {tuple(output_shape)}, is that of the classes, "
                        f"use SoftmaxCrossEntropyLearningLoss(axis={other})")
        return ""

    def counting_all(self) -> SoftmaxCrossEntropyLearningLoss:
        return replace(self, ignore_index=None)

    @property
    def is_unbalanced(self) -> bool:  # type: ignore[override]
        return isinstance(self.class_weight, str)

    def balanced(self, t: np.ndarray) -> SoftmaxCrossEntropyLearningLoss:
        if not self.is_unbalanced:
            return self
        return replace(self, class_weight=balance_classes(t[t != self.ignore_index]))

    def __call__(self, y: Value, t: Value) -> Value:
        axis = self.class_axis(y.shape or ())
        # A mask is safe for labels out of range, where a Gather would crash or read out of bounds. It selects and does
        # not multiply, since the score of an excluded class may be -∞, and 0 · ∞ is NaN.
        mask = op.Equal(op.Unsqueeze(t, [axis]), class_indices(y, axis))
        log_p = op.LogSoftmax(y, axis=axis)
        c = self._list_class_weights(y.shape or ())
        if c is not None:
            log_p = log_p * constant(c.astype(y.dtype).reshape([-1] + [1] * (y.rank - axis - 1)))
        if self.label_smoothing:
            n = cast(op.Gather(op.Shape(y), axis), y)
            log_p = (cast(mask, y) * (1 - self.label_smoothing) + self.label_smoothing / n) * log_p
        else:
            log_p = op.Where(mask, log_p, 0)
        cost = -op.ReduceSum(log_p, [axis], keepdims=0)
        # Without smoothing, a label that is none of the classes costs nothing as it is.
        n_classes = self.count_classes(y.shape or ())
        is_class = n_classes is None or (self.ignore_index is not None and 0 <= self.ignore_index < n_classes)
        if self.ignore_index is None or not (self.label_smoothing or is_class):
            return cost
        return op.Where(op.Equal(t, self.ignore_index), 0, cost)

    def counts(self, y: Value, t: Value) -> Value | None:
        c = self._list_class_weights(y.shape or ())
        if c is None:
            return None if self.ignore_index is None else cast(op.Not(op.Equal(t, self.ignore_index)), y)
        counts = op.Gather(constant(c.astype(y.dtype)), op.Clip(t, 0, len(c) - 1))
        return counts if self.ignore_index is None else op.Where(op.Equal(t, self.ignore_index), 0, counts)

    def count_array(self, t: np.ndarray) -> np.ndarray | None:
        c = list_class_weights(self.class_weight, int(t.max(initial=0)) + 1)
        if c is None:
            return None if self.ignore_index is None else (t != self.ignore_index).astype(np.float64)
        counts = c[np.clip(t, 0, len(c) - 1)]
        return counts if self.ignore_index is None else np.where(t == self.ignore_index, 0, counts)

    def _list_class_weights(self, output_shape: Shape) -> np.ndarray | None:
        """c, one number for each class of an output; None where all are 1."""
        n = self.count_classes(output_shape)
        if n is None and isinstance(self.class_weight, Mapping):
            raise GraphError(f"SoftmaxCrossEntropyLearningLoss: class_weight is a dict, and the number of classes of "
                             f"the scores of shape {tuple(output_shape)} is not known; give an array with a weight for "
                             f"each class.")
        c = list_class_weights(self.class_weight, n)
        if c is not None and n is not None and len(c) != n:
            raise GraphError(f"SoftmaxCrossEntropyLearningLoss: class_weight is for {len(c)} classes, and the scores "
                             f"of shape {tuple(output_shape)} have {n}.")
        return c

    def labels(self, y: np.ndarray) -> np.ndarray:
        return y.argmax(axis=self.axis)


def class_indices(y: Value, axis: int) -> Value:
    """0 to C - 1 in the shape (C, 1, ...), which broadcasts against scores whose classes are along an axis."""
    n, inner = y.shape[axis] if y.shape else None, y.rank - axis - 1
    if isinstance(n, int):
        return constant(np.arange(n).reshape([n] + [1] * inner))
    labels = op.Range(0, op.Gather(op.Shape(y), axis), 1)
    return op.Unsqueeze(labels, list(range(1, inner + 1))) if inner else labels


_NAMES = {
    "square_error": SquareLearningLoss, "squared_error": SquareLearningLoss, "square": SquareLearningLoss,
    "absolute_error": AbsoluteLearningLoss, "absolute": AbsoluteLearningLoss,
    "elastic": ElasticLearningLoss, "huber": HuberLearningLoss, "poisson": PoissonLearningLoss,
    "hinge": HingeLearningLoss, "log_loss": NegLogLearningLoss,
    "softmax_cross_entropy": SoftmaxCrossEntropyLearningLoss, "cross_entropy": SoftmaxCrossEntropyLearningLoss,
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
        from .function_loss import FunctionLearningLoss  # one of the losses, and so above them

        return FunctionLearningLoss(loss)
    return resolve_piece(BaseLearningLoss, loss, _NAMES)

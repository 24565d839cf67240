"""Losses of labels: cross-entropies and focal losses, of a single score, a score for each class, or probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import DataError, GraphError, SettingError
from ortpartial.graph import Value, cast, constant, op

from .base import check_number
from .base_loss import BaseLearningLoss, Shape
from .class_weights import balance_classes, check_class_weight, check_factors, list_class_weights
from .last_activation import find_last_activation, log_probabilities, to_logits
from .piece import replace_settings
from .validation import check_integer

__all__ = ["FocalLearningLoss", "NegLogLearningLoss", "SoftmaxCrossEntropyLearningLoss", "SoftmaxFocalLearningLoss"]


@dataclass(frozen=True)
class _ClassLoss(BaseLearningLoss):
    """A loss of labels, with the settings `ignore_index`, `label_smoothing`, `class_weight` and `from_logits`."""

    def __post_init__(self) -> None:
        if not isinstance(self.from_logits, (bool, np.bool_)):
            raise SettingError(f"{type(self).__name__}: from_logits is {self.from_logits!r}, True or False was "
                               f"expected.")
        ignored: Any = self.ignore_index
        if ignored is not None:
            check_integer(self, "ignore_index")
        check_number(self, "label_smoothing", low=0, high=1)
        object.__setattr__(self, "class_weight", check_class_weight(self.class_weight))

    def find_read(self, y: Value) -> Value:
        last = None if self.from_logits else find_last_activation(y)
        z = last.node.inputs[0] if last is not None else None
        return y if z is None else z

    def without_ignored_labels(self) -> BaseLearningLoss:
        return replace_settings(self, ignore_index=None)

    @property
    def is_unbalanced(self) -> bool:  # type: ignore[override]
        return isinstance(self.class_weight, str)

    def balanced(self, t: np.ndarray) -> BaseLearningLoss:
        if not self.is_unbalanced:
            return self
        labels = np.rint(t[t != self.ignore_index]).astype(np.int64)
        return replace_settings(self, class_weight=balance_classes(labels))


@dataclass(frozen=True)
class NegLogLearningLoss(_ClassLoss):
    """-c₁pq log σ(y) - c₀(1 - q) log(1 - σ(y)) with q = t(1 - ε) + ε/2, a raw score y and a label t of 0 or 1.

    With the defaults it is log(1 + eʸ) - ty.

    Parameters
    ----------
    ignore_index : int or None
        The label of elements that do not count, for example -1; None for no such label.
    label_smoothing : float
        ε, from 0 to 1.
    class_weight : array_like of shape (2,), dict of int to float, "balanced" or None
        c, at least 0: by how much labels of 0 and 1 count, so that the mean is divided by their sum. A dict, and
        ``"balanced"`` are as in `SoftmaxCrossEntropyLearningLoss`.
    pos_weight : float, array_like of shape (outputs,) or None
        p, at least 0: the factor of the cost of labels of 1, for all outputs or for each. The mean is not divided by
        it.
    from_logits : bool
        Whether y is the raw score; with False it is the probability s = σ(z), and the loss that of z.

    Notes
    -----
    log(1 + eʸ) is computed as max(y, 0) + log(1 + exp(-|y|)) and its derivative as σ(y), both finite for every score
    without clipping. A target between 0 and 1 is a probability. With ``from_logits=False``, z is the input of the
    Sigmoid that the graph of the output ends in, so that loss and gradient are as in a training on z; without a Sigmoid
    it is log s - log(1 - s), with logarithms of numbers not less than the smallest normal number.

    References
    ----------
    https://en.wikipedia.org/wiki/Cross-entropy#Cross-entropy_loss_function_and_logistic_regression;
    ``torch.nn.BCEWithLogitsLoss`` for `pos_weight`; ``keras.losses.BinaryCrossentropy`` for `label_smoothing` and
    `from_logits`.

    Examples
    --------
    >>> model = NegLogLearningLoss().build_onnx_function(shape=["N", 1], weighted=False)
    >>> [node.op_type for node in model.graph.node][:4]
    ['Softplus', 'Mul', 'Sub', 'ReduceMean']
    >>> NegLogLearningLoss(pos_weight=[1, 3.5]).pos_weight
    (1.0, 3.5)
    """

    _: KW_ONLY
    ignore_index: int | None = None  # type: ignore[assignment]
    label_smoothing: float = 0.0
    class_weight: Any = None
    pos_weight: Any = None
    from_logits: bool = True
    activations: ClassVar[tuple[str, ...]] = ("Sigmoid", "Softmax")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pos_weight", check_factors(self, "pos_weight"))
        self._list_class_weights()

    def __call__(self, y: Value, t: Value) -> Value:
        q = t * (1 - self.label_smoothing) + 0.5 * self.label_smoothing if self.label_smoothing else t
        cost = self._sum_costs(y if self.from_logits else to_logits(y), q)
        return cost if self.ignore_index is None else op.Where(op.Equal(t, self.ignore_index), 0, cost)

    def _sum_costs(self, y: Value, q: Value) -> Value:
        """The costs of both labels, q times that of 1 plus 1 - q times that of 0."""
        a, b = self._factors
        if np.all(a == 1) and b == 1:
            return op.Softplus(y) - q * y
        return weigh(op.Softplus(-y) * q, a) + weigh(op.Softplus(y) * (1 - q), b)

    @property
    def _factors(self) -> tuple[Any, float]:
        """c₁p and c₀, by which the costs of the labels 1 and 0 are multiplied: numbers, the first an array as well."""
        c0, c1 = (1.0, 1.0) if (c := self._list_class_weights()) is None else c.tolist()
        return c1 * (1.0 if self.pos_weight is None else np.array(self.pos_weight)), c0

    def counts(self, y: Value, t: Value) -> Value | None:
        c = self._list_class_weights()
        if c is None:
            return None if self.ignore_index is None else cast(op.Not(op.Equal(t, self.ignore_index)), y)
        counts = c[0] + float(c[1] - c[0]) * cast(t, y)
        return counts if self.ignore_index is None else op.Where(op.Equal(t, self.ignore_index), 0, counts)

    def count_array(self, t: np.ndarray) -> np.ndarray | None:
        c = self._list_class_weights()
        if c is None:
            return None if self.ignore_index is None else (t != self.ignore_index).astype(np.float64)
        counts = c[0] + (c[1] - c[0]) * np.asarray(t, np.float64)
        return counts if self.ignore_index is None else np.where(t == self.ignore_index, 0, counts)

    def _list_class_weights(self) -> np.ndarray | None:
        """c₀ and c₁; None where both are 1."""
        c = list_class_weights(self.class_weight, 2)
        if c is not None and len(c) != 2:
            raise SettingError(f"{type(self).__name__}: class_weight is for {len(c)} classes, and the labels are 0 and "
                               f"1.")
        return c

    def check_target(self, t: np.ndarray, what: str = "y") -> None:
        t = t if self.ignore_index is None else t[t != self.ignore_index]
        if t.size and not 0 <= t.min() <= t.max() <= 1:
            hint = "; labels of -1 and 1 become these by y > 0" if (t.min(), t.max()) == (-1, 1) else ""
            raise DataError(f"{what} has numbers from {t.min()} to {t.max()}, where labels of 0 and 1 were expected"
                            f"{hint}.")

    def labels(self, y: np.ndarray) -> np.ndarray:
        return (y > (0 if self.from_logits else 0.5)).astype(np.int64)


@dataclass(frozen=True)
class FocalLearningLoss(NegLogLearningLoss):
    """-α(1 - s)ᵞ q log s - (1 - α) sᵞ (1 - q) log(1 - s) with s = σ(y), a raw score y and a label t of 0 or 1.

    Labels that are predicted well count little. q, the labels after smoothing, and other weights are as in
    `NegLogLearningLoss`. A target between 0 and 1 is a probability: the costs of both labels are weighted by it, each
    with a focus of its own.

    Parameters
    ----------
    gamma : float
        γ, at least 0; without focus at 0.
    alpha : float or None
        α, from 0 to 1; None multiplies neither cost.
    ignore_index : int or None
        The label of elements that do not count; None for no such label.
    label_smoothing : float
        ε, from 0 to 1.
    class_weight : array_like of shape (2,), dict of int to float, "balanced" or None
        By how much labels of 0 and 1 count: the mean is divided by their sum, and by that of α never.
    pos_weight : float, array_like of shape (outputs,) or None
        The factor of the cost of labels of 1.
    from_logits : bool
        Whether y is the raw score; with False it is s.

    References
    ----------
    T.-Y. Lin et al., Focal Loss for Dense Object Detection, 2017, equation 5;
    ``torchvision.ops.sigmoid_focal_loss(reduction="mean")``.

    Examples
    --------
    >>> FocalLearningLoss(gamma=1.5, alpha=None).labels(np.array([-0.5, 2.0]))
    array([0, 1])
    """

    gamma: float = 2.0
    alpha: float | None = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "gamma", low=0)
        if self.alpha is not None:
            check_number(self, "alpha", low=0, high=1)

    def _sum_costs(self, y: Value, q: Value) -> Value:
        # 1 - σ(y) = exp(-log(1 + eʸ)), of which every power has a finite derivative.
        one, zero = op.Softplus(-y), op.Softplus(y)
        a, b = self._factors
        if self.alpha is not None:
            a, b = self.alpha * a, (1 - self.alpha) * b
        return (weigh(op.Exp(-self.gamma * zero) * one * q, a)
                + weigh(op.Exp(-self.gamma * one) * zero * (1 - q), b))


@dataclass(frozen=True)
class SoftmaxCrossEntropyLearningLoss(_ClassLoss):
    """-Σₖ cₖqₖ log softmax(y)ₖ with q = 1 - ε + ε/C for the label t and ε/C for the others, of C classes; it counts cₜ.

    With the defaults it is -log softmax(y)ₜ. The mean is Σwℓ / Σwcₜ over all labels but `ignore_index`, as that of
    ``torch.nn.CrossEntropyLoss``, except that a batch in which nothing counts has a loss and a gradient of 0, where
    torch has NaN. Other labels are 0 to C - 1: `fit` and `TrainingSession` refuse labels out of range, which a graph of
    your own takes for labels of no class.

    Parameters
    ----------
    axis : int
        The axis of the classes: 1 for scores of shape (rows, C) or (rows, C, height, width), -1 for scores of shape
        (rows, tokens, C). The target has the shape of the scores without it.
    ignore_index : int or None
        The label of rows, tokens or pixels that do not count, such as padding of a sequence; None for no such label.
    label_smoothing : float
        ε, from 0 to 1.
    class_weight : array_like of shape (C,), dict of int to float, "balanced" or None
        c, at least 0; 1 for classes that a dict leaves out. ``"balanced"``, for `fit` with all rows at once, takes
        scikit-learn's weights: n / (m nₖ) for a class with nₖ of n labels and m classes among them, and 1 for a class
        without labels; `fit` from batches and `partial_fit` do not know all labels and keep the weights of the last
        `fit`.
    from_logits : bool
        Whether y is raw scores; with False it is probabilities p, and log(pₖ / Σⱼpⱼ) stands for log softmax(y)ₖ.

    Notes
    -----
    With ``from_logits=False`` and an output whose graph ends in Softmax, loss and gradient are as in a training on the
    input of Softmax. Where it ends in Sigmoid, each class stands against all others, and (log pₖ + Σⱼ log(1 - pⱼ), j ≠
    k) / C stands for log softmax(y)ₖ: of two classes that sum up to 1, as skl2onnx has them, it is log pₖ, and they go
    on to do so. For other outputs log p is of numbers not less than the smallest normal number.

    References
    ----------
    ``torch.nn.CrossEntropyLoss``; https://onnx.ai/onnx/operators/onnx__SoftmaxCrossEntropyLoss.html; C. Szegedy et al.,
    Rethinking the Inception Architecture for Computer Vision, 2016, for the smoothing of labels;
    ``keras.losses.SparseCategoricalCrossentropy`` for `from_logits`.

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
    _: KW_ONLY
    from_logits: bool = True
    target_dtype: ClassVar[DTypeLike | None] = np.int64
    activations: ClassVar = ("Softmax", "Sigmoid")

    def __post_init__(self) -> None:
        check_integer(self, "axis")
        if self.axis == 0:
            raise SettingError(f"{type(self).__name__}: axis is 0, the axis of the rows; that of the classes "
                               "was expected, such as 1 or -1.")
        super().__post_init__()

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
            raise GraphError(f"{type(self).__name__}: the output has the shape {tuple(output_shape)}, "
                             f"scores of shape (N, C) or (N, C, d, ...) were expected.")
        axis = self.axis + rank if self.axis < 0 else self.axis
        if not 0 < axis < rank:
            raise GraphError(f"{type(self).__name__}: the output has the shape {tuple(output_shape)}, and "
                             f"no axis of classes {self.axis}.")
        return axis

    def target_shape(self, output_shape: Shape) -> tuple[int | str | None, ...]:
        axis = self.class_axis(output_shape)
        return (*output_shape[:axis], *output_shape[axis + 1 :])

    def count_classes(self, output_shape: Shape) -> int | None:
        return size if isinstance(size := output_shape[self.class_axis(output_shape)], int) else None

    def check_output(self, output_shape: Shape) -> None:
        if self.count_classes(output_shape) == 1:
            raise SettingError(f"{type(self).__name__}: the output has the shape {tuple(output_shape)}, one "
                               f"score for each label, of which the softmax is always 1, so that nothing is learned; "
                               f"learning_loss='log_loss' is for single scores, with labels of 0 and 1.")
        self._list_class_weights(output_shape)

    def explain_shape(self, shape: Sequence[int], output_shape: Shape) -> str:
        axis = self.class_axis(output_shape)
        if tuple(shape[1:]) == tuple(output_shape[1:]):
            return f"; for one-hot rows or probabilities of classes give their labels, y.argmax({axis})"
        for other in (1, -1):
            if tuple(shape[1:]) == replace_settings(self, axis=other).target_shape(output_shape)[1:]:
                return (f"; where axis {other} of the scores, of shape {tuple(output_shape)}, is that of the classes, "
                        f"use {type(self).__name__}(axis={other})")
        return ""

    def __call__(self, y: Value, t: Value) -> Value:
        axis = self.class_axis(y.shape or ())
        # A mask is safe for labels out of range, where a Gather would crash or read out of bounds. It selects and does
        # not multiply, since the score of an excluded class may be -∞, and 0 · ∞ is NaN.
        mask = op.Equal(op.Unsqueeze(t, [axis]), class_indices(y, axis))
        log_p = self._focus(op.LogSoftmax(y, axis=axis) if self.from_logits else log_probabilities(y, axis), mask)
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

    def _focus(self, log_p: Value, mask: Value) -> Value:
        """The logarithms of the probabilities of all classes, as they count where the mask is that of the labels."""
        return log_p

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
        """c, a number for each class of an output; None where all are 1."""
        n = self.count_classes(output_shape)
        if n is None and isinstance(self.class_weight, Mapping):
            raise GraphError(f"{type(self).__name__}: class_weight is a dict, and the number of classes of "
                             f"the scores of shape {tuple(output_shape)} is not known; give an array with a weight for "
                             f"each class.")
        c = list_class_weights(self.class_weight, n)
        if c is not None and n is not None and len(c) != n:
            raise GraphError(f"{type(self).__name__}: class_weight is for {len(c)} classes, and the scores "
                             f"of shape {tuple(output_shape)} have {n}.")
        return c

    def labels(self, y: np.ndarray) -> np.ndarray:
        return y.argmax(axis=self.axis)

    def class_scores(self, y: np.ndarray) -> np.ndarray:
        return np.moveaxis(y, self.axis, -1)


@dataclass(frozen=True)
class SoftmaxFocalLearningLoss(SoftmaxCrossEntropyLearningLoss):
    """-Σₖ αₖcₖqₖ (1 - pₖ)ᵞ log pₖ with p = softmax(y) and q = 1 - ε + ε/C for the label t and ε/C for the others.

    Labels that are predicted well count little; with γ = 0 it is the loss of `SoftmaxCrossEntropyLearningLoss`.

    Parameters
    ----------
    axis : int
        The axis of the classes.
    ignore_index : int or None
        The label of rows, tokens or pixels that do not count; None for no such label.
    label_smoothing : float
        ε, from 0 to 1.
    class_weight : array_like of shape (C,), dict of int to float, "balanced" or None
        c, at least 0, by how much labels count: the mean is divided by the sum of cₜ, and by that of α never.
    from_logits : bool
        Whether y is raw scores; with False it is probabilities.
    gamma : float
        γ, at least 0.
    alpha : float, array_like of shape (C,) or None
        α, at least 0, for all classes or for each; None for 1.

    References
    ----------
    T.-Y. Lin et al., Focal Loss for Dense Object Detection, 2017; ``keras.losses.CategoricalFocalCrossentropy``, from
    raw scores.

    Examples
    --------
    >>> SoftmaxFocalLearningLoss(gamma=1.5, alpha=[0.25, 0.5, 0.25]).target_shape(["N", 3])
    ('N',)
    """

    _: KW_ONLY
    gamma: float = 2.0
    alpha: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "gamma", low=0)
        object.__setattr__(self, "alpha", check_factors(self, "alpha"))

    def _focus(self, log_p: Value, mask: Value) -> Value:
        if not self.label_smoothing:  # The score of an excluded class may be -∞: see `__call__`.
            log_p = op.Where(mask, log_p, 0)
        # Where p = 1 the derivative of a power less than 1 would be infinite.
        focused = log_p * op.Max(1 - op.Exp(log_p), float(ml_dtypes.finfo(log_p.dtype).tiny)) ** self.gamma
        if self.alpha is None or isinstance(self.alpha, float):
            return focused if self.alpha is None else self.alpha * focused
        inner = log_p.rank - self.class_axis(log_p.shape or ()) - 1
        return focused * constant(np.reshape(self.alpha, [-1] + [1] * inner).astype(log_p.dtype))


def class_indices(y: Value, axis: int) -> Value:
    """0 to C - 1 in the shape (C, 1, ...), which broadcasts against scores whose classes are along an axis."""
    n, inner = y.shape[axis] if y.shape else None, y.rank - axis - 1
    if isinstance(n, int):
        return constant(np.arange(n).reshape([n] + [1] * inner))
    labels = op.Range(0, op.Gather(op.Shape(y), axis), 1)
    return op.Unsqueeze(labels, list(range(1, inner + 1))) if inner else labels


def weigh(costs: Value, factor: object) -> Value:
    """Costs times a number, or an array of them along their last axis; themselves where that is 1."""
    return costs if np.all(factor == 1) else costs * constant(np.asarray(factor, costs.dtype))

"""Base class of losses: formulas from prediction and target to the cost of each element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import DTypeLike
from ortpartial.autodiff import grad
from ortpartial.graph import Value, build, variable

from .base import BaseLearningOnnx, weighted_mean

__all__ = ["BaseLearningLoss", "RowCosts", "Shape"]

Shape = Sequence["int | str | None"]


@dataclass(frozen=True)
class RowCosts:
    """Costs that depend on a row of a prediction each, the prediction as a matrix.

    Parameters
    ----------
    cost : callable
        From rows of the prediction and of `labels` to a column of costs.
    labels : Value of shape (rows, 1)
        The labels that a cost reads beside its row.
    arrange : callable
        From the column of all costs to the costs of the elements of the target.
    """

    cost: Callable[[Value, Value], Value]
    labels: Value
    arrange: Callable[[Value], Value]


class BaseLearningLoss(BaseLearningOnnx):
    """ℓ(y, t): the cost of each element of a prediction y with the target t.

    A subclass defines ``__call__(self, y, t)`` from two values to a third; its settings are the fields of a dataclass,
    or attributes that its constructor assigns. The mean over a row, the weighted mean Σwᵢℓᵢ / Σwᵢcᵢ, where cᵢ is by how
    much an element counts, usually 1, and the gradient are derived from it.

    Attributes
    ----------
    target_dtype : numpy dtype or None
        Element type of the target, by default that of the prediction.
    activations : tuple of str
        Operators that a prediction should not end in: first the operator that the loss applies itself, to raw scores.
    ignore_index : int or None
        The label that does not count.
    from_logits : bool
        Whether a prediction is raw scores, where the loss has activations.

    Examples
    --------
    A custom loss, which every engine accepts:

    >>> from ortpartial.graph import op
    >>> class LogCosh(BaseLearningLoss):
    ...     def __call__(self, y, t):
    ...         return op.Log(op.Cosh(y - t))
    >>> model = LogCosh().build_onnx_function(shape=["N", 1])
    >>> [i.name for i in model.graph.input], [o.name for o in model.graph.output]
    (['y', 't', 'w'], ['loss', 'y_grad'])
    """

    setting: ClassVar[str] = "learning_loss"
    target_dtype: ClassVar[DTypeLike | None] = None
    activations: ClassVar[tuple[str, ...]] = ()
    # Without annotations, which would make them the first fields of a subclass that has them as settings.
    ignore_index = None
    class_weight = None
    from_logits = True

    @abstractmethod
    def __call__(self, y: Value, t: Value) -> Value:
        """The cost of each element."""

    def by_row(self, t: Value) -> RowCosts | None:
        """The loss as costs of single rows of a prediction, which a step may compute in chunks.

        Parameters
        ----------
        t : Value
            The target.

        Returns
        -------
        RowCosts or None
            None, the default, where predictions are read as a whole.
        """
        return None

    def find_read(self, y: Value) -> Value:
        """The value inside of the graph of a prediction that the loss reads in place of it.

        Parameters
        ----------
        y : Value
            A prediction.

        Returns
        -------
        Value
            The prediction itself, unless the loss is of probabilities that the graph shows the logits of.
        """
        return y

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
        """The weights of `counts` for an array of targets.

        Parameters
        ----------
        t : numpy.ndarray
            The target.

        Returns
        -------
        numpy.ndarray or None
        """
        return None

    def find_ignored(self, t: np.ndarray) -> np.ndarray | None:
        """Which elements of an array of targets do not count, whatever their weights.

        Parameters
        ----------
        t : numpy.ndarray
            The target.

        Returns
        -------
        numpy.ndarray of bool or None
            None where the loss has no label that does not count.
        """
        return None if self.ignore_index is None else t == self.ignore_index

    def without_ignored_labels(self) -> BaseLearningLoss:
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
        """Advice about a target whose shape is not that of `target_shape`.

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
        if len(output_shape) > 1 and tuple(shape[1:]) == tuple(output_shape[1:-1]):
            tokens = ", and where they are the ids of the tokens, 'next_token'" if len(shape) == 2 else ""
            return (f", as the output has; where these are labels of classes, the loss is 'softmax_cross_entropy'"
                    f"{tokens}")
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

    def class_scores(self, y: np.ndarray) -> np.ndarray | None:
        """The scores of classes, along the last axis behind the axes of the labels; None where each score has a label.

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
        self, *, dtype: DTypeLike = "float32", shape: Shape, weighted: bool | str = True
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

"""The loss that a model computes itself: a scalar output."""

from __future__ import annotations

from dataclasses import dataclass

from ortpartial.graph import Value, op
from ortpartial.learning import BaseLearningLoss

__all__ = ["LossOutput"]


@dataclass(frozen=True)
class LossOutput(BaseLearningLoss):
    """y: an output that is itself the loss of a batch. It has no target: labels and weights are inputs of the model.

    Parameters
    ----------
    label_names : tuple of str
        The inputs that are labels.
    row_weights : str or None
        The input that is the weights of the rows.
    predictions : tuple of str
        The outputs that are predictions.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> LossOutput(label_names=("t",))(variable("loss", "float32", [1])).shape
    ()
    """

    label_names: tuple[str, ...] = ()
    row_weights: str | None = None
    predictions: tuple[str, ...] = ()

    def __call__(self, y: Value, t: Value | None = None) -> Value:
        return op.Squeeze(y, [0]) if y.rank else y

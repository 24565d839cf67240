"""The setting of a loss that the model computes itself: an output of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortpartial.learning import Piece

__all__ = ["OutputLoss"]


@dataclass(frozen=True, eq=False, repr=False)
class OutputLoss(Piece):
    """A loss that the model computes itself, from features and labels: an output that is a scalar.

    It is the setting `learning_loss` of an `OrtGradientForwardBackwardOptimizer`; `OrtGradientOptimizer` has its
    parameters as settings of its own.

    Parameters
    ----------
    name : str
        The output: a real number of shape () or (1,).
    label_names : str or sequence of str, optional
        The inputs that are labels; by default the inputs that no other output depends on. Outputs that depend on labels
        are no predictions.
    sample_weight_name : str, optional
        The input that is the weights of the rows; by default ``"sample_weight"``, where the loss alone reads it.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
    >>> x, t, w = variable("x", "float32", ["N", 1]), variable("t", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> model = build([x, t], {"y": x @ w, "cost": op.ReduceMean(abs(x @ w - t), keepdims=0)})
    >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, learning_loss=OutputLoss("cost"), learning_rate=0.1)
    >>> losses = optimizer.fit(X, 3 * X).train_losses_
    >>> losses[-1] < losses[0] / 10
    True
    """

    name: str = "loss"
    label_names: str | Sequence[str] | None = None
    sample_weight_name: str | None = None

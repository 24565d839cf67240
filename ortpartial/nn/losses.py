"""Losses for `train_one_batch`: the mean of a loss of the library, as a scalar."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortpartial.exceptions import GraphError
from ortpartial.graph import Arithmetic, Value, cast, constant, op, reshape_like, zeros_like
from ortpartial.learning import NamedSettings, resolve_loss, weighted_mean

from .changes import note_change
from .trace import Compared, current_trace

__all__ = ["Loss"]


class Loss(NamedSettings):
    """The weighted mean Σwᵢℓᵢ / Σwᵢ of a loss over a batch, a scalar.

    Parameters
    ----------
    loss : BaseLearningLoss, str or callable
        ℓ, the loss of an element, such as ``"square_error"``, ``"log_loss"`` or ``"softmax_cross_entropy"``, or a
        function of prediction and target.

    Examples
    --------
    >>> from ortpartial import nn
    >>> y, t = nn.placeholder(["N", 3]), nn.placeholder(["N"], "int64")
    >>> nn.Loss("softmax_cross_entropy")(y, t).shape
    ()
    """

    def __init__(self, loss: Any = "square_error"):
        self.loss = resolve_loss(loss)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, resolve_loss(value) if name == "loss" else value)
        note_change()

    def __call__(self, output: Value, target: Value | np.ndarray | float, weights: Value | None = None) -> Value:
        """The loss of a batch.

        Parameters
        ----------
        output : Value of shape (N, ...)
            The prediction.
        target : Value, array or number
            The target, of the shape of the output, or labels for a loss that takes them; a number stands for all.
        weights : Value of shape (N,) or of the shape of the target, optional
            Weights of the rows, or of the elements.

        Returns
        -------
        Value
            A scalar.

        Raises
        ------
        GraphError
            Output and target do not fit together.
        """
        y, trace = output, current_trace()
        if trace is not None:
            trace.wide.add(y)  # In mixed precision, losses are computed in the dtype of the module.
        shape = self.loss.target_shape(y.shape or ())
        dtype = np.dtype(self.loss.target_dtype or y.dtype)
        t = self._match(target, y, shape, dtype)
        if (trace := current_trace()) is not None:
            trace.compared.append(Compared(self.loss, y, t, weights))
        elements = self.loss(y, t)
        return weighted_mean(elements, None if weights is None else cast(weights, elements), self.loss.counts(y, t))

    def _match(self, target: Any, y: Value, shape: tuple[int | str | None, ...], dtype: np.dtype) -> Value:
        """The target in the dtype and the shape that the loss reads."""
        if not isinstance(target, Arithmetic):
            array = np.asarray(target, dtype)
            if not array.ndim and tuple(shape) == tuple(y.shape or ()):
                return cast(zeros_like(y), constant(array)) + constant(array)
            target = constant(array)
        t: Value = target.astype(dtype)
        trace, classes = current_trace(), self.loss.count_classes(y.shape or ())
        self.loss.check_output(y.shape or ())
        if trace is not None and classes is not None:
            trace.declare_labels(target, classes, self.loss.ignore_index)
        if t.rank == len(shape) + 1 and t.shape and t.shape[-1] == 1:
            t = op.Squeeze(t, [-1])  # Labels as a column.
        elif t.rank == len(shape) - 1 and shape[-1] == 1:
            t = op.Unsqueeze(t, [-1])
        if not _fits(t, shape):
            raise GraphError(f"{type(self.loss).__name__}: the output is {y.type_name}, whose target is {dtype} of "
                             f"shape ({', '.join(map(str, shape))}), and {t.type_name} was given{self._explain(t, y)}.")
        return t.stated(shape) if t.shape == shape else reshape_like(t, y) if tuple(shape) == y.shape else t

    def _explain(self, t: Value, y: Value) -> str:
        """Advice about a target of another shape; a size that has a name is the output's."""
        of_y, of_t = y.shape or (), t.shape or ()
        sizes = [n if isinstance(m, int) else m for m, n in zip(of_y, of_t, strict=False)]
        return self.loss.explain_shape([*sizes, *of_t[len(sizes):]], of_y)  # type: ignore[list-item]

    def __repr__(self) -> str:
        return f"Loss({self.loss!r})"


def _fits(t: Value, shape: tuple[int | str | None, ...]) -> bool:
    """Whether a target may have this shape."""
    sizes = zip(t.shape or (), shape, strict=False)
    return t.rank == len(shape) and all(m == n for m, n in sizes if isinstance(m, int) and isinstance(n, int))

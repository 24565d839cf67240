"""Base class of losses, penalties and optimizers; weighted means of losses over the rows of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, op

from .aliases import NamedSettings
from .validation import PieceType, check_number, resolve_piece

__all__ = ["BaseLearningOnnx", "check_number", "resolve_piece", "row_losses", "weighted_mean", "weighted_sums"]


@dataclass(frozen=True)
class BaseLearningOnnx(NamedSettings, metaclass=PieceType):
    """A piece of training: a frozen dataclass of settings with a formula, a function of values.

    Pieces with equal class and settings are equal; pieces can be hashed, copied and pickled, and hold no session.
    Settings are validated at construction: a subclass states their ranges in ``__post_init__``, for example
    ``check_number(self, "delta", above=0)``.
    """

    setting: ClassVar[str] = "piece"

    @abstractmethod
    def build_onnx_function(self, *, dtype: Any = "float32", shape: Sequence[int | str | None]) -> ModelProto:
        """The formula and its gradient as an ONNX model, with the settings as constants.

        Parameters
        ----------
        dtype : numpy dtype or its name
            Element type of its tensors.
        shape : sequence of int, str or None
            Shape of the prediction or of the weight.

        Returns
        -------
        onnx.ModelProto
        """


def row_losses(loss: Callable[[Value, Value], Value], y: Value, t: Value) -> Value:
    """ℓᵢ: the loss of each row, the mean over all axes but the first.

    Parameters
    ----------
    loss : callable
        From prediction and target to the cost of each element.
    y : Value
        The prediction, one example a row.
    t : Value
        The target.

    Returns
    -------
    Value
        Of shape (N,).

    Raises
    ------
    GraphError
        The loss is a scalar.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> y, t = (variable(name, "float32", ["N", 3]) for name in "yt")
    >>> row_losses(lambda y, t: (y - t) * (y - t), y, t).shape
    ('N',)
    """
    elements = loss(y, t)
    sizes = inner_sizes(elements)
    axes = list(range(1, elements.rank))
    if all(size == 1 for size in sizes):
        return op.Squeeze(elements, axes) if axes else elements
    return op.ReduceMean(elements, axes, keepdims=0)


def inner_sizes(rows: Value) -> tuple[int | str | None, ...]:
    """The sizes of all axes but the first."""
    if rows.rank == 0:
        raise GraphError(f"The loss {rows!r} is a scalar, one number an element or one a row was expected; leave the "
                         f"mean over the rows to the library.")
    return (rows.shape or ())[1:]


def weighted_mean(rows: Value, w: Value | None = None) -> Value:
    """Σwᵢℓᵢ / Σwᵢ, and 0 where Σwᵢ = 0.

    Parameters
    ----------
    rows : Value
        ℓ of shape (N,), or the elements of a loss, (N, ...), which are averaged over the other axes.
    w : Value, optional
        Weights of the rows, (N,), all 1 by default.

    Returns
    -------
    Value
        A scalar.

    Raises
    ------
    GraphError
        The loss is a scalar.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import variable
    >>> rows = variable("rows", "float32", ["N"])
    >>> [node.op_type for node in build([rows], [weighted_mean(rows)]).graph.node]
    ['ReduceMean']
    """
    sizes = inner_sizes(rows)
    if w is None:
        return op.ReduceMean(rows, keepdims=0)
    axes, n = list(range(1, rows.rank)), math.prod(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes):
        rows, axes, n = op.ReduceMean(rows, axes, keepdims=0), [], 1
    # The weights are normalized first, so that they are the gradient with respect to the rows; w / ∞ = 0 where Σw = 0.
    total = op.ReduceSum(w, keepdims=0)
    total = op.Where(op.Equal(total, 0), np.inf, total)
    share = w / (total if n == 1 else total * n)
    return op.ReduceSum(rows * (op.Unsqueeze(share, axes) if axes else share), keepdims=0)


def weighted_sums(rows: Value, w: Value | None = None) -> tuple[Value, Value]:
    """Σwᵢℓᵢ and Σwᵢ, which several processes add up before they divide.

    Parameters
    ----------
    rows : Value
        ℓ, of shape (N,).
    w : Value, optional
        Weights of the rows, (N,), all 1 by default.

    Returns
    -------
    tuple of Value
        Two scalars of the dtype of `rows`.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> rows, w = (variable(name, "float32", ["N"]) for name in ("rows", "w"))
    >>> [value.shape for value in weighted_sums(rows, w)]
    [(), ()]
    """
    if w is None:
        return op.ReduceSum(rows, keepdims=0), op.Cast(op.Size(rows), to=rows.type.tensor_type.elem_type)
    return op.ReduceSum(rows * w, keepdims=0), op.ReduceSum(w, keepdims=0)

"""What do losses, penalties and rates share? Each is a formula with settings that writes its own ONNX graph."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, op

from .validation import check_number, resolve_piece

__all__ = ["BaseLearningOnnx", "check_number", "resolve_piece", "row_losses", "weighted_mean", "weighted_sums"]


@dataclass(frozen=True)
class BaseLearningOnnx(ABC):
    """A piece of training: a frozen dataclass of settings whose formula is a function of values.

    Pieces are equal when class and settings are, can be hashed, copied and pickled, and hold no session. Settings are
    validated when a piece is made: a subclass says in ``__post_init__`` what it expects of them, for example
    ``number(self, "delta", above=0)``.
    """

    setting: ClassVar[str] = "piece"

    @abstractmethod
    def build_onnx_function(self, *, dtype: Any = "float32", shape: Sequence[int | str | None]) -> ModelProto:
        """The formula with its gradient, for these settings and nothing else, as an ONNX model.

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
    """ℓᵢ: the elements of a loss averaged over all axes but the first.

    Parameters
    ----------
    loss : callable
        From prediction and target to the cost of each element.
    y : Value
        The prediction, one row an example.
    t : Value
        The target.

    Returns
    -------
    Value
        Of shape (N,).

    Raises
    ------
    GraphError
        The loss has no axis for the rows.

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
    """Sizes of all axes but the first, which there must be."""
    if rows.rank == 0:
        raise GraphError(f"The loss {rows!r} is a scalar, one number an element or one a row was expected; leave the "
                         f"mean over the rows to the library.")
    return (rows.shape or ())[1:]


def weighted_mean(rows: Value, w: Value | None = None) -> Value:
    """Σwᵢℓᵢ / Σwᵢ, and 0 where Σwᵢ = 0.

    Parameters
    ----------
    rows : Value
        ℓ of shape (N,), or the elements of a loss, (N, ...), whose other axes are averaged.
    w : Value, optional
        Weights of the rows, (N,); without them it is the plain mean.

    Returns
    -------
    Value
        A scalar.

    Raises
    ------
    GraphError
        There is no axis for the rows.

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
    axes, known = list(range(1, rows.rank)), [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        rows, axes, known = op.ReduceMean(rows, axes, keepdims=0), [], []
    # The weights are normalized first, so that they are the gradient by the rows; w / ∞ = 0 is the case Σw = 0.
    total = op.ReduceSum(w, keepdims=0)
    total = op.Where(op.Equal(total, 0), np.inf, total)
    share = w / (total if math.prod(known) == 1 else total * math.prod(known))
    return op.ReduceSum(rows * (op.Unsqueeze(share, axes) if axes else share), keepdims=0)


def weighted_sums(rows: Value, w: Value | None = None) -> tuple[Value, Value]:
    """Σwᵢℓᵢ and Σwᵢ apart, so that several processes can add theirs up before they divide.

    Parameters
    ----------
    rows : Value
        ℓ, of shape (N,).
    w : Value, optional
        Weights of the rows, (N,); without them each is 1.

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

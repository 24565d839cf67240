"""Base class of losses, penalties and optimizers; weighted means of losses over the rows of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, cast, ones_like, op

from .piece import Piece
from .validation import check_number, resolve_piece

__all__ = ["BaseLearningOnnx", "check_number", "mean_rows", "resolve_piece", "weighted_mean", "weighted_sums"]


class BaseLearningOnnx(Piece):
    """A piece of training: settings with a formula, a function of values.

    A subclass is a dataclass, frozen or not, or has an ordinary constructor. Pieces of the same class with equal
    settings are equal; pieces can be hashed, copied and pickled, and hold no session. A setting that changes after a
    `fit` belongs to the next. The pieces of the library are frozen dataclasses, which validate settings at
    construction: a subclass states their ranges in ``__post_init__``, for example
    ``check_number(self, "delta", above=0)``.
    """

    setting: ClassVar[str] = "piece"

    @abstractmethod
    def build_onnx_function(self, *, dtype: DTypeLike = "float32", shape: Sequence[int | str | None]) -> ModelProto:
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


def mean_rows(elements: Value, w: Value | None = None, counts: Value | None = None) -> Value:
    """ℓᵢ: the loss of each row, Σⱼwᵢⱼℓᵢⱼ / Σⱼwᵢⱼcᵢⱼ over all axes but the first, and 0 where Σⱼwᵢⱼcᵢⱼ = 0.

    Parameters
    ----------
    elements : Value
        ℓ of shape (N,) or (N, ...).
    w : Value, optional
        Weights of the rows, (N,), or of the elements; all 1 by default. Weights of rows alone change nothing.
    counts : Value, optional
        c, by how much each element counts; all 1 by default.

    Returns
    -------
    Value
        Of shape (N,).

    Raises
    ------
    GraphError
        The loss is a scalar, or the weights belong neither to rows nor to elements.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> mean_rows(variable("elements", "float32", ["N", 3])).shape
    ('N',)
    """
    sizes = inner_sizes(elements)
    axes = list(range(1, elements.rank))
    if counts is not None or (w is not None and w.rank > 1):
        weighed = elements if w is None else elements * _weights_of(elements, w)
        return _sum_over(weighed, axes) / _sum_counts(elements, w, counts, axes)
    if all(size == 1 for size in sizes):
        return op.Squeeze(elements, axes) if axes else elements
    return op.ReduceMean(elements, axes, keepdims=0)


def inner_sizes(rows: Value) -> tuple[int | str | None, ...]:
    """The sizes of all axes but the first."""
    if rows.rank == 0:
        raise GraphError(f"The loss {rows!r} is a scalar, one number an element or one a row was expected; leave the "
                         f"mean over the rows to the library.")
    return (rows.shape or ())[1:]


def _weights_of(elements: Value, w: Value) -> Value:
    """The weights of rows or of elements, with the axes of the elements."""
    if w.rank == elements.rank:
        return w
    if w.rank != 1:
        raise GraphError(f"The loss has the shape {elements.shape} and the weights {w.shape}; weights of the rows, or "
                         f"of the shape of the loss, were expected.")
    return op.Unsqueeze(w, list(range(1, elements.rank)))


def _sum_counts(elements: Value, w: Value | None, counts: Value | None, axes: Sequence[int]) -> Value:
    """Σwc along some axes, or ∞ where that is 0, so that a quotient is 0 and not NaN."""
    factors = ([] if w is None else [_weights_of(elements, w)]) + ([] if counts is None else [counts])
    counted = math.prod(factors[1:], start=factors[0])
    total = _sum_over(counted, axes)
    return op.Where(op.Equal(total, 0), np.inf, total)


def _sum_over(x: Value, axes: Sequence[int]) -> Value:
    """The sum over some axes; without axes, where ReduceSum would take all of them, the value itself."""
    return op.ReduceSum(x, list(axes), keepdims=0) if axes else x


def weighted_mean(elements: Value, w: Value | None = None, counts: Value | None = None) -> Value:
    """Σwᵢℓᵢ / Σwᵢcᵢ, and 0 where Σwᵢcᵢ = 0.

    Parameters
    ----------
    elements : Value
        ℓ of shape (N,) or (N, ...).
    w : Value, optional
        Weights of the rows, (N,), or of the elements; all 1 by default.
    counts : Value, optional
        c, by how much each element counts; all 1 by default.

    Returns
    -------
    Value
        A scalar.

    Raises
    ------
    GraphError
        The loss is a scalar, or the weights belong neither to rows nor to elements.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import variable
    >>> rows = variable("rows", "float32", ["N"])
    >>> [node.op_type for node in build([rows], [weighted_mean(rows)]).graph.node]
    ['ReduceMean']
    """
    if elements.dtype.itemsize == 2 and (w is not None or counts is not None):
        # Half precision counts up to 65504, and whole numbers up to 2048, or 256 in bfloat16.
        others = (None if v is None else v.astype(np.float32) for v in (w, counts))
        return cast(weighted_mean(elements.astype(np.float32), *others), elements)
    sizes = inner_sizes(elements)
    if counts is not None or (w is not None and w.rank > 1):
        share = 1 / _sum_counts(elements, w, counts, range(elements.rank))
        share = share if w is None else _weights_of(elements, w) * share
        return op.ReduceSum(elements * share, keepdims=0)
    if w is None:
        return op.ReduceMean(elements, keepdims=0)
    axes, n = list(range(1, elements.rank)), math.prod(size for size in sizes if isinstance(size, int))
    if not all(isinstance(size, int) for size in sizes):
        elements, axes, n = op.ReduceMean(elements, axes, keepdims=0), [], 1
    # The weights are normalized first, so that they are the gradient with respect to the rows; w / ∞ = 0 where Σw = 0.
    total = op.ReduceSum(w, keepdims=0)
    total = op.Where(op.Equal(total, 0), np.inf, total)
    share = w / (total if n == 1 else total * n)
    return op.ReduceSum(elements * (op.Unsqueeze(share, axes) if axes else share), keepdims=0)


def weighted_sums(elements: Value, w: Value | None = None, counts: Value | None = None) -> tuple[Value, Value]:
    """Σwᵢℓᵢ and Σwᵢcᵢ, which several processes add up before they divide.

    Parameters
    ----------
    elements : Value
        ℓ of shape (N,), or with weights of elements, or counts, of shape (N, ...).
    w : Value, optional
        Weights of the rows, (N,), or of the elements; all 1 by default.
    counts : Value, optional
        c, by how much each element counts; all 1 by default.

    Returns
    -------
    tuple of Value
        Two scalars of the dtype of `elements`.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> rows, w = (variable(name, "float32", ["N"]) for name in ("rows", "w"))
    >>> [value.shape for value in weighted_sums(rows, w)]
    [(), ()]
    """
    if w is None and counts is None:
        return op.ReduceSum(elements, keepdims=0), op.Cast(op.Size(elements), to=elements.type.tensor_type.elem_type)
    if w is None:
        return op.ReduceSum(elements, keepdims=0), op.ReduceSum(counts, keepdims=0)
    if counts is None and w.rank < elements.rank:
        counts = ones_like(elements)
    w = _weights_of(elements, w)
    total = op.ReduceSum(w if counts is None else w * counts, keepdims=0)
    return op.ReduceSum(elements * w, keepdims=0), total

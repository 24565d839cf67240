"""Embeddings: a vector for each index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Value, op, stop_gradient

from ..initializers import Initializer, Normal
from ..parameter import Parameter
from ..trace import current_trace
from .layer import Layer

__all__ = ["Embedding"]


@dataclass(frozen=True)
class _NormalButRow(Initializer):
    """w ~ N(0, 1), but for a row of zeros."""

    row: int

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        others = np.ones((shape[0], 1), dtype)
        others[self.row] = 0
        return Normal()(shape, dtype, seed=seed) * others


class Embedding(Layer):
    """The row of the weight of each index.

    The first weight is drawn from N(0, 1).

    Parameters
    ----------
    num_embeddings : int
        The number of indices.
    embedding_dim : int
        The size of a vector.
    padding_idx : int, optional
        An index whose vector, at first 0, is not trained.
    max_norm : None
        Rows are not scaled while they are read; set a penalty.
    norm_type : float
        Without effect.
    scale_grad_by_freq : {False}
        Gradients are not divided by the number of times that an index is in the batch.
    sparse : bool
        Without effect: gradients are equal, and their storage is left to the library.
    dtype : numpy dtype or its name
        The element type of the weight.

    Attributes
    ----------
    weight : Parameter of shape (num_embeddings, embedding_dim)
        The vectors.

    References
    ----------
    ``torch.nn.Embedding``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.Embedding(10, 3, padding_idx=0).compile(nn.placeholder(["N", "T"], "int64"))
    >>> y = model(np.array([[2, 0]]))
    >>> y.shape, y[0, 1].tolist()
    ((1, 2, 3), [0.0, 0.0, 0.0])
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: None = None,
                 norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, *,
                 dtype: DTypeLike = "float32"):
        if max_norm is not None:
            raise SettingError("Embedding: max_norm rewrites the weight in forward, which a graph does not; set a "
                               "penalty of the weights.")
        if scale_grad_by_freq:
            raise SettingError("Embedding: scale_grad_by_freq=True is not supported; gradients are those of the loss.")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise SettingError(f"Embedding: padding_idx is {padding_idx}, one of {num_embeddings} indices was "
                               f"expected.")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        first = Normal() if self.padding_idx is None else _NormalButRow(self.padding_idx)
        self.weight = Parameter([num_embeddings, embedding_dim], first, dtype=dtype)

    def forward(self, x: Value) -> Value:
        if x.dtype not in (np.int32, np.int64):
            raise GraphError(f"x is {x.type_name}, and indices, int64 or int32, were expected.")
        y = op.Gather(self.weight, x)
        trace = current_trace()
        if self.padding_idx is None or trace is None or not trace.training:
            return y
        return op.Where(op.Unsqueeze(op.Equal(x, self.padding_idx), [-1]), stop_gradient(y), y)

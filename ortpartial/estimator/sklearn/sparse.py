"""Sparse matrices: rows that become dense batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

__all__ = ["SparseBatches", "predict_sparse"]

#: Elements of the dense rows of a prediction.
_CHUNK = 2**22


class SparseBatches:
    """The batches of a sparse matrix, in a new order each time they are iterated over.

    Parameters
    ----------
    X : scipy.sparse matrix or array in CSR format
        The rows.
    y : numpy.ndarray
        Their targets.
    sample_weight : numpy.ndarray or None
        Their weights.
    batch_size : int
        Rows of a batch.
    rng : numpy.random.RandomState or None
        Source of the order; None keeps that of X.
    """

    def __init__(self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None, batch_size: int,
                 rng: np.random.RandomState | None):
        self.X, self.y, self.sample_weight, self.batch_size, self.rng = X, y, sample_weight, batch_size, rng

    def __len__(self) -> int:
        return -(-self.X.shape[0] // self.batch_size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        n = self.X.shape[0]
        order = np.arange(n) if self.rng is None else self.rng.permutation(n)
        for start in range(0, n, self.batch_size):
            rows = order[start : start + self.batch_size]
            weight = () if self.sample_weight is None else (self.sample_weight[rows],)
            yield (self.X[rows].toarray(), self.y[rows], *weight)


def predict_sparse(predict: Callable[[np.ndarray], np.ndarray], X: Any) -> np.ndarray:
    """Predict the rows of a sparse matrix.

    Parameters
    ----------
    predict : callable
        From dense rows to their predictions.
    X : scipy.sparse matrix or array in CSR format
        The rows.

    Returns
    -------
    numpy.ndarray

    Examples
    --------
    >>> from scipy.sparse import eye
    >>> predict_sparse(lambda rows: rows.sum(1), eye(3, format="csr"))
    array([1., 1., 1.])
    """
    size = max(1, _CHUNK // max(1, X.shape[1]))
    return np.concatenate([predict(X[i : i + size].toarray()) for i in range(0, X.shape[0], size)])

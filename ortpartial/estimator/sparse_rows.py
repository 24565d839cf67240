"""Sparse rows: a sparse matrix as the engines read an array, whose rows become dense batch by batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ortpartial.annotations import Data

__all__ = ["SparseRows"]

#: Numbers in the dense rows of a part of a prediction.
_PART = 2**20


class SparseRows:
    """A sparse matrix that gives its rows dense, as an engine gathers those of a batch.

    Parameters
    ----------
    matrix : scipy.sparse matrix or array
        The rows, in CSR format.

    Attributes
    ----------
    shape, dtype, ndim : object
        Those of the dense array.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> rows = SparseRows(csr_array([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]))
    >>> rows.take([1, 0], 0, out := np.empty((2, 2)), "clip"), out.tolist()
    (None, [[2.0, 0.0], [0.0, 1.0]])
    >>> len(rows), rows[:1].tolist()
    (3, [[0.0, 1.0]])
    """

    ndim = 2

    def __init__(self, matrix: Data):
        self.matrix, self.shape, self.dtype = matrix, tuple(matrix.shape), matrix.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Data) -> np.ndarray:
        return self.matrix[rows].toarray()

    def take(self, rows: Data, axis: int, out: np.ndarray, mode: str) -> None:
        """Write some rows to a dense array, as ``numpy.ndarray.take`` does.

        Parameters
        ----------
        rows : array_like of int
            Which rows.
        axis : int
            0.
        out : numpy.ndarray
            The dense array.
        mode : str
            Ignored: no row is out of range.
        """
        self.matrix[rows].toarray(out=out)

    def astype(self, dtype: np.dtype) -> SparseRows:
        """The same rows in another dtype.

        Parameters
        ----------
        dtype : numpy.dtype
            The dtype.

        Returns
        -------
        SparseRows
        """
        return self if self.dtype == dtype else SparseRows(self.matrix.astype(dtype))

    def parts(self) -> Iterator[np.ndarray]:
        """All rows in order, dense, some at a time.

        Yields
        ------
        numpy.ndarray
        """
        size = max(1, _PART // max(1, self.shape[1]))
        for start in range(0, len(self), size):
            yield self[start : start + size]


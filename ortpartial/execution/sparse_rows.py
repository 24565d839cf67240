"""Sparse rows: a sparse matrix as the engines read an array, whose rows become dense batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ortpartial.annotations import Data

__all__ = ["SparseRows", "wrap_sparse"]

#: Numbers in the dense rows of a part of a prediction.
_PART = 2**20


class SparseRows:
    """A sparse matrix that gives its rows dense, as an engine gathers the rows of a batch.

    Parameters
    ----------
    matrix : scipy.sparse matrix or array
        The rows, in CSR format.

    Attributes
    ----------
    shape, dtype, ndim : object
        As of the dense array.

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

    def select(self, rows: Data) -> SparseRows:
        """Some rows, which stay sparse.

        Parameters
        ----------
        rows : array_like of int
            Which rows.

        Returns
        -------
        SparseRows
        """
        return SparseRows(self.matrix[rows])

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

    def convert(self, function: Callable[[np.ndarray], np.ndarray]) -> SparseRows:
        """The same rows, whose stored numbers a function converts.

        Parameters
        ----------
        function : callable
            From the numbers to as many, of any dtype; it keeps 0.

        Returns
        -------
        SparseRows
        """
        matrix = self.matrix
        if (numbers := function(matrix.data)) is matrix.data:
            return self
        return SparseRows(type(matrix)((numbers, matrix.indices, matrix.indptr), shape=matrix.shape))

    @property
    def part(self) -> int:
        """The number of rows of a part of a prediction that is dense at a time."""
        return max(1, _PART // max(1, self.shape[1]))


def wrap_sparse(data: Data) -> Data:
    """Wrap a sparse matrix of any format, also in a dict.

    Parameters
    ----------
    data : object
        Possibly a matrix or an array of scipy.sparse, which is not imported.

    Returns
    -------
    object
        `SparseRows` in place of a matrix; anything else as it is.
    """
    if isinstance(data, Mapping):
        is_sparse = any(_is_sparse(a) for a in data.values())
        return {n: wrap_sparse(a) for n, a in data.items()} if is_sparse else data
    return SparseRows(data.tocsr()) if _is_sparse(data) else data


def _is_sparse(data: Data) -> bool:
    return hasattr(data, "nnz") and hasattr(data, "tocsr")

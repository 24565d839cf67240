"""The affine layer: x Wᵀ + b."""

from __future__ import annotations

from math import sqrt
from typing import Any

from ortpartial.annotations import DTypeLike
from ortpartial.checks import check_whole
from ortpartial.graph import Value, op

from ..initializers import Uniform
from ..parameter import Parameter
from .layer import Layer
from .sizes import check_dtype, check_size, read_size

__all__ = ["Linear"]


class Linear(Layer):
    """y = x Wᵀ + b on the last axis of x, of any rank.

    The first W and b are drawn from U(-1/√n, 1/√n), where n is the number of input features.

    Parameters
    ----------
    in_features : int or None
        n, the size of the last axis of x; None for that of the first x, which makes the weights.
    out_features : int
        The size of the last axis of y.
    bias : bool
        Whether b is added.
    dtype : numpy dtype or its name
        The element type of W and b.

    Attributes
    ----------
    weight : Parameter of shape (out_features, in_features)
        W.
    bias : Parameter of shape (out_features,) or None
        b.

    References
    ----------
    ``torch.nn.Linear``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.Linear(3, 2).compile(nn.placeholder(["N", "T", 3]))
    >>> [(name, p.shape) for name, p in model.named_parameters()]
    [('weight', (2, 3)), ('bias', (2,))]
    """

    def __init__(self, in_features: int | None, out_features: int, bias: bool = True, *, dtype: DTypeLike = "float32"):
        self.in_features: int | None = None
        self.out_features, self.dtype = out_features, dtype
        self.weight: Any = None
        self.bias: Any = None
        self._has_bias = bias
        if in_features is not None:
            self._make(in_features)

    def _make(self, n: int) -> None:
        """Make the weights for n features."""
        self.in_features = check_whole(f"{type(self).__name__}: in_features", n, 0)
        first = Uniform(-1 / sqrt(n), 1 / sqrt(n)) if n else 0.0
        self.weight = Parameter([self.out_features, n], first, dtype=self.dtype)
        if self._has_bias:
            self.bias = Parameter([self.out_features], first, dtype=self.dtype)

    def forward(self, x: Value) -> Value:
        """x Wᵀ + b.

        Parameters
        ----------
        x : Value of shape (..., in_features)
            The input.

        Returns
        -------
        Value of shape (..., out_features)
        """
        if self.in_features is None:
            self._make(read_size(x, -1))
        check_size(x, -1, self.in_features, "features")
        check_dtype(x, self.weight.dtype)
        if x.rank == 2:
            return op.Gemm(x, self.weight, self.bias, transB=1)
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias

"""Layers that change the shape of a value, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, cast

from ortpartial.checks import is_whole, to_tuple
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Value, op

from .layer import Layer
from .sizes import get_size

__all__ = ["Flatten", "Identity", "Unflatten"]


class Flatten(Layer):
    """Some axes joined, by default all but the axis of the rows.

    Parameters
    ----------
    start_dim, end_dim : int
        The first and the last of them; a negative number counts from the end.

    References
    ----------
    ``torch.nn.Flatten``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Flatten().compile(nn.placeholder(["N", 2, 3]))(np.ones((4, 2, 3), np.float32)).shape
    (4, 6)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Value) -> Value:
        start, end = (axis + x.rank * (axis < 0) for axis in (self.start_dim, self.end_dim))
        if not 0 <= start <= end < max(x.rank, 1):
            raise GraphError(f"x is {x.type_name}, which has no axes from {self.start_dim} to {self.end_dim}.")
        if start == 1 and end == x.rank - 1:
            return op.Flatten(x, axis=1)
        shape = x.shape or ()
        merged, behind = shape[start : end + 1], shape[end + 1 :]
        size = prod(merged) if all(isinstance(n, int) for n in merged) else -1  # type: ignore[arg-type]
        if all(isinstance(n, int) and n for n in behind):
            return op.Reshape(x, [*[0] * start, size, *behind])  # 0 copies a size
        return op.Reshape(x, op.Concat(op.Shape(x, end=start), [size], op.Shape(x, start=end + 1), axis=0))


class Unflatten(Layer):
    """An axis in several.

    Parameters
    ----------
    dim : int
        The axis; a negative number counts from the end.
    unflattened_size : sequence of int
        The sizes, a single -1 among them.

    References
    ----------
    ``torch.nn.Unflatten``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Unflatten(1, (2, 3)).compile(nn.placeholder(["N", 6]))(np.ones((4, 6), np.float32)).shape
    (4, 2, 3)
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        sizes = to_tuple(unflattened_size)
        if sizes is None or not all(map(is_whole, sizes)):
            raise SettingError(f"Unflatten: unflattened_size is a list of whole numbers, not {unflattened_size!r}.")
        self.dim, self.unflattened_size = dim, cast("tuple[int, ...]", sizes)

    def forward(self, x: Value) -> Value:
        n, total = get_size(x, self.dim), prod(self.unflattened_size)
        axis = range(x.rank)[self.dim]
        if isinstance(n, int) and (n % total if total < 0 else n != total):
            raise GraphError(f"axis {axis} of x, {x.type_name}, cannot become {self.unflattened_size}.")
        # Without elements, a size of -1 does not follow from the others.
        parts = [n // -total if m == -1 and isinstance(n, int) and total else m for m in self.unflattened_size]
        behind = (x.shape or ())[axis + 1 :]
        if all(isinstance(m, int) and m for m in behind):
            return op.Reshape(x, [*[0] * axis, *parts, *behind])  # 0 copies a size
        sizes = op.Concat(op.Shape(x, end=axis), parts, op.Shape(x, start=axis + 1), axis=0)
        return op.Reshape(x, sizes)


class Identity(Layer):
    """Its input.

    Parameters
    ----------
    *settings, **others : object
        Without effect.

    References
    ----------
    ``torch.nn.Identity``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Identity().compile(nn.placeholder(["N"]))(np.ones(2, np.float32)).tolist()
    [1.0, 1.0]
    """

    def __init__(self, *settings: Any, **others: Any):
        pass

    def forward(self, x: Any) -> Any:
        return x

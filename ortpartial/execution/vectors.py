"""Vectors: small tensors of the state side by side, which a step reads and writes as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ortpartial.graph import Value, op

__all__ = ["Vector"]


@dataclass(frozen=True)
class Vector:
    """Tensors that make a vector.

    Parameters
    ----------
    shapes : dict of str to tuple of int
        The shapes of the tensors, by name, in their order in the vector.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> vector = Vector({"w": (3, 2), "b": (3,)})
    >>> flat = vector.join([variable(n, "float32", shape) for n, shape in vector.shapes.items()])
    >>> flat, vector.split(flat)
    (<Value Concat float32[9]>, {'w': <Value Reshape float32[3x2]>, 'b': <Value Split float32[3]>})
    """

    shapes: Mapping[str, tuple[int, ...]]

    @property
    def first(self) -> str:
        """The first tensor."""
        return next(iter(self.shapes))

    @property
    def size(self) -> int:
        """The number of elements."""
        return sum(map(prod, self.shapes.values()))

    def split_array(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """The tensors as views of an array, by name."""
        parts = np.split(flat, np.cumsum([prod(shape) for shape in self.shapes.values()])[:-1])
        return {n: part.reshape(shape) for part, (n, shape) in zip(parts, self.shapes.items(), strict=True)}

    def join(self, values: Sequence[Value]) -> Value:
        """The vector of tensors of these shapes."""
        return op.Concat(*(v if v.rank == 1 else op.Reshape(v, [-1]) for v in values), axis=0)

    def split(self, flat: Value) -> dict[str, Value]:
        """The tensors that a vector consists of, by name."""
        sizes = np.array([prod(shape) for shape in self.shapes.values()])
        parts = op.Split(flat, sizes, axis=0, n_outputs=len(sizes))
        return {n: part if len(shape) == 1 else op.Reshape(part, np.array(shape, np.int64))
                for part, (n, shape) in zip(parts, self.shapes.items(), strict=True)}

"""Expressions: the elements of a tensor as functions of its indices; and the arrays that they are read from.

An expression has a shape, and a leaf of it reads an array at a place that is affine in the indices. So a view, such as
a slice or a transpose, is the same expression with other strides, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

__all__ = ["Affine", "Array", "Call", "Expression", "Iota", "Literal", "Load", "leaves", "move"]

Shape = tuple[int, ...]


@dataclass(eq=False)
class Array:
    """Memory of a static size.

    Parameters
    ----------
    dtype : numpy.dtype
        Of its elements.
    size : int
        How many there are.
    role : str
        ``"state"``, which a step changes; ``"row"``, a batch; ``"given"``, another input; ``"table"``, a constant; or
        ``"scratch"``, an intermediate result.
    name : str
        The name of its field in C; empty for intermediate results.
    content : numpy.ndarray, optional
        The numbers of a constant.
    former : Array, optional
        The array of the state whose place this array takes after a step, in the same memory.
    """

    dtype: np.dtype
    size: int
    role: str = "scratch"
    name: str = ""
    content: np.ndarray | None = None
    former: Array | None = None

    @property
    def memory(self) -> Array:
        """The array that owns the memory."""
        return self if self.former is None else self.former


@dataclass(frozen=True)
class Affine:
    """An affine function of indices: offset + Σ stride · index.

    Parameters
    ----------
    shape, strides : tuple of int
        By index, its range and its factor.
    offset : int
        The value at the first element.
    outer : tuple of (str, int)
        Loops around, by the names of their counters, and the factors of these.
    """

    shape: Shape
    strides: Shape
    offset: int = 0
    outer: tuple[tuple[str, int], ...] = ()

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> Affine:
        """The places of a tensor whose elements are adjacent."""
        return cls(tuple(shape), strides_of(shape))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are adjacent, in order."""
        return all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, strides_of(self.shape), strict=True))

    def permuted(self, order: Sequence[int]) -> Affine:
        """With the axes in another order."""
        return replace(self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order))

    def sliced(self, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Affine:
        """From a first element on, in steps."""
        offset = self.offset + sum(a * s for a, s in zip(starts, self.strides, strict=True))
        return replace(self, shape=tuple(shape), offset=offset,
                       strides=tuple(a * s for a, s in zip(steps, self.strides, strict=True)))

    def broadcast(self, shape: Sequence[int]) -> Affine:
        """Repeated along new axes in front, and along axes of size 1."""
        new = len(shape) - len(self.shape)
        kept = [s if n == m else 0 for s, n, m in zip(self.strides, self.shape, shape[new:], strict=True)]
        return replace(self, shape=tuple(shape), strides=(*[0] * new, *kept))

    def squeezed(self) -> Affine:
        """Without axes of size 1."""
        kept = [i for i, n in enumerate(self.shape) if n != 1]
        return replace(self, shape=tuple(self.shape[i] for i in kept), strides=tuple(self.strides[i] for i in kept))

    def reshaped(self, shape: Sequence[int]) -> Affine | None:
        """With the same elements in the same order on other axes; None where no strides say that."""
        if 0 in shape:
            return replace(self, shape=tuple(shape), strides=(0,) * len(shape))
        merged = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        strides: list[int] = []
        i = 0
        groups: list[tuple[int, int]] = []
        for n, s in merged:  # Neighbors that are a single axis in truth are merged.
            if groups and groups[-1][1] == n * s:
                groups[-1] = groups[-1][0] * n, s
            else:
                groups.append((n, s))
        left = 1
        for n in reversed(shape):
            if n == 1:
                strides.append(0)
                continue
            if left == 1:
                if i == len(groups):
                    return None
                left, stride = groups[-1 - i]
                i += 1
            if left % n:
                return None
            strides.append(stride)
            stride, left = stride * n, left // n
        return replace(self, shape=tuple(shape), strides=tuple(reversed(strides))) if left == 1 else None


def strides_of(shape: Sequence[int]) -> Shape:
    """The strides of a tensor whose elements are adjacent."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


@dataclass(frozen=True, eq=False)
class Expression:
    """The elements of a tensor."""

    dtype: np.dtype
    shape: Shape

    #: The cost of computing an element, in additions.
    cost = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Literal(Expression):
    """The same number everywhere."""

    value: Any


@dataclass(frozen=True, eq=False)
class Iota(Expression):
    """An affine function of the indices themselves."""

    at: Affine


@dataclass(frozen=True, eq=False)
class Load(Expression):
    """The elements of an array.

    Parameters
    ----------
    dtype, shape : object
        As of every expression.
    array : Array
        Where they are.
    at : Affine
        At which places.
    index : Expression, optional
        A further place, computed for each element: a row number that is data.
    stride : int
        The factor of the index.
    """

    array: Array
    at: Affine
    index: Expression | None = None
    stride: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether it is the whole array as it lies in memory."""
        at = self.at
        is_whole = self.index is None and not at.offset and not at.outer and self.size == self.array.size
        return is_whole and at.is_contiguous

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for equal places of equal memory."""
        strides = tuple((n, s) for n, s in zip(self.shape, self.at.strides, strict=True) if n != 1)
        return id(self.array.memory), strides, self.at.offset, self.at.outer, id(self.index), self.stride


@dataclass(frozen=True, eq=False)
class Call(Expression):
    """An operation on the elements of other expressions of the same shape.

    Parameters
    ----------
    dtype, shape : object
        As of every expression.
    template : str
        The C expression, with ``{0}`` for the first argument.
    args : tuple of Expression
        The arguments.
    weight : int
        The cost of the operation alone.
    """

    template: str
    args: tuple[Expression, ...]
    weight: int = 1
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cost", self.weight + sum(a.cost for a in self.args))


def leaves(expression: Expression, seen: set[int] | None = None) -> Iterator[Load | Iota]:
    """The places that an expression reads, and the indices that it computes with, each once."""
    seen = set() if seen is None else seen
    if id(expression) in seen:
        return
    seen.add(id(expression))
    if isinstance(expression, Load):
        yield expression
        if expression.index is not None:
            yield from leaves(expression.index, seen)
    elif isinstance(expression, Iota):
        yield expression
    elif isinstance(expression, Call):
        for a in expression.args:
            yield from leaves(a, seen)


def move(expression: Expression, change: Callable[[Affine], Affine | None]) -> Expression | None:
    """The expression with other places, as of a view of it; None where a place cannot be said.

    Parameters
    ----------
    expression : Expression
        The expression that is viewed.
    change : callable
        From each affine function of its indices to an affine function of the indices of the view, or None.

    Returns
    -------
    Expression or None
    """
    moved: dict[int, Expression | None] = {}

    def visit(e: Expression) -> Expression | None:
        if id(e) not in moved:
            moved[id(e)] = build(e)
        return moved[id(e)]

    def build(e: Expression) -> Expression | None:
        if isinstance(e, Literal):
            at = change(Affine.contiguous(e.shape))
            return None if at is None else replace(e, shape=at.shape)
        if isinstance(e, (Load, Iota)):
            at = change(e.at)
            if at is None:
                return None
            if isinstance(e, Load) and e.index is not None:
                index = visit(e.index)
                return None if index is None else replace(e, shape=at.shape, at=at, index=index)
            return replace(e, shape=at.shape, at=at)
        assert isinstance(e, Call)
        args = tuple(visit(a) for a in e.args)
        if any(a is None for a in args):
            return None
        return Call(e.dtype, args[0].shape, e.template, args, e.weight)  # type: ignore[union-attr, arg-type]

    return visit(expression)

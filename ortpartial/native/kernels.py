"""Kernels: the loops of a step, with the arrays that each reads and writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .convolutions import ConvolutionShape
from .expressions import Expression, Load, leaves
from .products import ProductShape

__all__ = ["Branch", "Check", "Convolution", "Kernel", "Loop", "Product", "Reduction", "Repeat", "Store"]


@dataclass(frozen=True, eq=False)
class Store:
    """The elements of an expression, written to an array.

    Parameters
    ----------
    to : Load
        The places that are written to.
    value : Expression
        The value that is written.
    template : str
        How it is combined with the present element, ``{0}``; by default it takes its place.
    """

    to: Load
    value: Expression
    template: str = "{1}"

    @property
    def adds(self) -> bool:
        """Whether the present element counts."""
        return "{0}" in self.template


class Kernel:
    """Some loops."""

    @property
    def bodies(self) -> list[list[Kernel]]:
        """The kernels inside, where there are such."""
        return []

    @property
    def refuses(self) -> bool:
        """Whether it may end the step, which must not have changed a state before."""
        return any(kernel.refuses for body in self.bodies for kernel in body)

    def reads(self) -> Iterator[Load]:
        """The places that are read."""
        raise NotImplementedError

    def writes(self) -> Iterator[Load]:
        """The places that are written to."""
        raise NotImplementedError


@dataclass(eq=False)
class Loop(Kernel):
    """Stores of expressions of the same shape, in turn for each index."""

    stores: list[Store]

    @property
    def shape(self) -> tuple[int, ...]:
        """The ranges of the indices."""
        return self.stores[0].value.shape

    def reads(self) -> Iterator[Load]:
        for s in self.stores:
            yield from (v for v in leaves(s.value) if isinstance(v, Load))
            if s.to.index is not None:
                yield from (v for v in leaves(s.to.index) if isinstance(v, Load))
            if s.adds:
                yield s.to

    def writes(self) -> Iterator[Load]:
        for s in self.stores:
            yield s.to


@dataclass(eq=False)
class Check(Kernel):
    """Whole numbers that have to be in a range: the step ends at the first that is not.

    Parameters
    ----------
    value : Expression
        The numbers, of type int64.
    low, high : int
        The range, with both ends.
    refusal : str
        The error, as `ortpartial.graph.describe_refusal` words it.
    shift : int
        By how much they are more than the numbers that the error is about.
    to : Load, optional
        Where the numbers go as indices from 0 on; kernels that read them there run after the check.
    """

    value: Expression
    low: int
    high: int
    refusal: str
    shift: int = 0
    to: Load | None = None

    @property
    def refuses(self) -> bool:
        return True

    def reads(self) -> Iterator[Load]:
        return (v for v in leaves(self.value) if isinstance(v, Load))

    def writes(self) -> Iterator[Load]:
        if self.to is not None:
            yield self.to


@dataclass(eq=False)
class Reduction(Kernel):
    """An expression combined over its last axes.

    Parameters
    ----------
    to : Load
        Where the result goes; its shape is that of the axes that remain.
    value : Expression
        The value that is reduced, on the axes that remain, then on the others.
    template : str
        How two elements are combined, ``{0}`` and ``{1}``.
    first : str
        The start of the reduction, a C expression.
    """

    to: Load
    value: Expression
    template: str
    first: str

    def reads(self) -> Iterator[Load]:
        return (v for v in leaves(self.value) if isinstance(v, Load))

    def writes(self) -> Iterator[Load]:
        yield self.to


@dataclass(eq=False)
class Product(Kernel):
    """Matrix products, for each index of a batch: α A B + β D.

    Parameters
    ----------
    batch : tuple of int
        The ranges of the indices of the batch.
    shape : ProductShape
        The sizes of a product.
    a, b, to : Load
        The factors and the result; their first axes are the axes of the batch.
    addend : Load, optional
        D.
    scratch : Load, optional
        Memory that an operand is packed into.
    is_large : bool
        Whether a kernel with sizes at run time computes it.
    """

    batch: tuple[int, ...]
    shape: ProductShape
    a: Load
    b: Load
    to: Load
    addend: Load | None = None
    scratch: Load | None = None
    is_large: bool = False

    def reads(self) -> Iterator[Load]:
        yield from (self.a, self.b)
        if self.addend is not None:
            yield self.addend

    def writes(self) -> Iterator[Load]:
        yield self.to
        if self.scratch is not None:
            yield self.scratch


@dataclass(eq=False)
class Convolution(Kernel):
    """A convolution or a gradient of one, by a kernel with sizes at run time.

    Parameters
    ----------
    shape : ConvolutionShape
        The sizes.
    first, second, to : Load
        What is convolved by what, and the result: whole tensors, whose elements are adjacent.
    addend : Load, optional
        The bias; or what the gradient by kernels is added to, at the places of the result.
    scratch : Load
        Memory to compute in.
    """

    shape: ConvolutionShape
    first: Load
    second: Load
    to: Load
    addend: Load | None
    scratch: Load

    def reads(self) -> Iterator[Load]:
        yield from (self.first, self.second)
        if self.addend is not None:
            yield self.addend

    def writes(self) -> Iterator[Load]:
        yield from (self.to, self.scratch)


@dataclass(eq=False)
class Repeat(Kernel):
    """Kernels that run several times, in order of the time steps.

    Parameters
    ----------
    counter : str
        The name of the counter, which places inside refer to.
    count : int
        How often.
    kernels : list of Kernel
        The kernels.
    """

    counter: str
    count: int
    kernels: list[Kernel]

    @property
    def bodies(self) -> list[list[Kernel]]:
        return [self.kernels]

    def reads(self) -> Iterator[Load]:
        for kernel in self.kernels:
            yield from kernel.reads()

    def writes(self) -> Iterator[Load]:
        for kernel in self.kernels:
            yield from kernel.writes()


@dataclass(eq=False)
class Branch(Kernel):
    """Kernels that run where a condition holds, and others that run where it does not.

    Parameters
    ----------
    condition : Load
        A truth value of a single element.
    then, otherwise : list of Kernel
        The kernels.
    """

    condition: Load
    then: list[Kernel]
    otherwise: list[Kernel]

    @property
    def bodies(self) -> list[list[Kernel]]:
        return [self.then, self.otherwise]

    def reads(self) -> Iterator[Load]:
        yield self.condition
        for kernel in (*self.then, *self.otherwise):
            yield from kernel.reads()

    def writes(self) -> Iterator[Load]:
        for kernel in (*self.then, *self.otherwise):
            yield from kernel.writes()

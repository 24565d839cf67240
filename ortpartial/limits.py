"""Limits of size: from which size on, or up to which, another form of a graph takes less time.

Every threshold that decides which graph is made stands here, so that a test may set all of them to zero. Elsewhere
stand bounds on memory and on strangers' files (`external_data.BIG`, `shape_policy._ROOM`, `selection._BIG`,
`prepare._MOST_NUMBERS`), the constants that shape inference reads (`graph.SMALL`), and choices between programs that
compute the same: engines and their cost model, the number of threads, and the shapes that get a program of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Limits", "limits", "use_limits"]

#: More than any tensor has.
_ANY = 2**62


@dataclass(frozen=True)
class Limits:
    """The sizes that rewrites ask for.

    Parameters
    ----------
    moved_elements : int
        Elements of a Transpose from which on it is a move to the right over two axes. onnxruntime 1.19 to 1.31 takes a
        third of the time for that (64 x 64 runs of 4: 6 and 31 us, of 16: 8 and 31). Speed.
    moved_run : tuple of int
        The shortest and the longest run of adjacent elements that such a Transpose moves. Speed.
    column_rows : int
        Rows from which on a product with a column saves more than its two further nodes take (onnxruntime 1.19 to
        1.31). Speed.
    kernel_places : int
        Elements of a kernel, over its spatial axes, up to which columns are made for a product of all images: with a
        larger kernel they take more time than a product for each image. Speed.
    row_factor_elements : int
        Elements of an array that is not made, from which on that is worth two further products of rows. Speed.
    block_cost : int
        Multiplications of a convolution from which on it takes more time than its images and kernels take to be laid
        out in blocks of channels. Speed.
    block_depth : int
        Products in the sum of an output from which on it takes more time than laying it out. Speed.
    block_waste : float
        The most channels, zeros of the last block included, for each real channel. Speed.
    few_windows : int
        Positions of a window up to which a single product for all images beats a product for each, whose few columns
        leave the widest registers empty. Speed.
    unseen_margin : int
        Places of the margin that no window sees, from which on the gradient by a kernel leaves them out; numbers change
        within rounding. Speed.
    small_kernel : int
        Elements of a kernel up to which its gradient is a product of columns, for the same reason. Speed.
    cached_elements : int
        Numbers of such columns that fit into a cache. Speed.
    small_pool : int
        Elements of a window up to which the gradient of MaxPool compares them in place of reading indices. Speed.
    folded_elements : int
        Elements of a constant up to which it is computed before the model is differentiated; most of them are sizes.
        Speed, and the size of the graph.
    chunk_elements, chunk_rows : int
        A chunk of logits has so many numbers, or so many rows where that is more: a product of few rows takes as long
        as a larger product, since it waits for the weights to be read. Memory, then speed.
    dequantized_elements : int
        Numbers of a packed weight that are dequantized at once: a layer of some thousands of rows, not a vocabulary.
        Memory.
    flat_weight, flat_group : int
        Elements of a weight, and of a group, up to which weights are updated as a vector. It saves operators and takes
        copies: of weights of 16384 elements, or groups that leave the nearest cache, more. Speed.
    flush_elements : int
        Elements of a state from which on an If of its own, to flush denormal numbers, costs nothing that could be
        measured; smaller states share an If. Speed.
    scanned_step : int
        Rows times trained numbers up to which steps of an epoch are a Scan: beside a longer step, calling onnxruntime
        costs nothing (1e6 take about 0.1 ms). Speed.
    scanned_rows : int
        Rows of a batch up to which a Scan gathers them, and a third of that where the data leave the nearest cache:
        numpy takes a row in a tenth to a half of the time of onnxruntime 1.19 to 1.32, so that more rows save more than
        a call for each step costs. Speed.
    scanned_axes : int
        Axes of the data up to which steps are a Scan, which takes up to 1.13 times as long for images. Speed.
    translated_constant : int
        Elements of a constant up to which it is computed before a step is written in C. Memory, the size of the file.
    fused_stores : int
        Stores of a fused loop in C at most: each needs registers. Speed.

    Examples
    --------
    >>> limits().column_rows
    128
    >>> with use_limits(Limits.zero()):
    ...     limits().column_rows
    0
    """

    moved_elements: int = 2**13
    moved_run: tuple[int, int] = (4, 31)
    column_rows: int = 128
    kernel_places: int = 25
    row_factor_elements: int = 2**20
    block_cost: int = 2**20
    block_depth: int = 64
    block_waste: float = 1.34
    few_windows: int = 16
    unseen_margin: int = _ANY
    small_kernel: int = 16
    cached_elements: int = 2**21
    small_pool: int = 4
    folded_elements: int = 64
    chunk_elements: int = 2**23
    chunk_rows: int = 128
    dequantized_elements: int = 2**24
    flat_weight: int = 2**13
    flat_group: int = 2**15
    flush_elements: int = 4096
    scanned_step: int = 10**6
    scanned_rows: int = 64
    scanned_axes: int = 3
    translated_constant: int = 2**16
    fused_stores: int = 16

    @classmethod
    def zero(cls) -> Limits:
        """The limits under which a rewrite applies wherever its pattern matches, at any size.

        Returns
        -------
        Limits
            The least sizes are 0 or 1, and the largest exceed every tensor.
        """
        return cls(
            moved_elements=0, moved_run=(1, _ANY), column_rows=0, kernel_places=_ANY, row_factor_elements=0,
            block_cost=0, block_depth=0, block_waste=_ANY, few_windows=_ANY, unseen_margin=1, small_kernel=_ANY,
            cached_elements=_ANY, small_pool=_ANY, folded_elements=_ANY, chunk_elements=0, chunk_rows=1,
            dequantized_elements=1, flat_weight=_ANY, flat_group=_ANY, flush_elements=_ANY, scanned_step=_ANY,
            scanned_rows=_ANY, scanned_axes=_ANY, translated_constant=_ANY, fused_stores=_ANY)


_in_force = [Limits()]
_here: ContextVar[Limits | None] = ContextVar("limits", default=None)


def limits() -> Limits:
    """The limits in force.

    Returns
    -------
    Limits
    """
    return _here.get() or _in_force[-1]


@contextmanager
def use_limits(chosen: Limits, *, everywhere: bool = True) -> Iterator[None]:
    """Rewrite by other limits for a while: graphs that are made before and later keep theirs.

    Parameters
    ----------
    chosen : Limits
        The limits.
    everywhere : bool
        Whether they hold in all threads, or in this one alone.
    """
    if not everywhere:
        token = _here.set(chosen)
        try:
            yield
        finally:
            _here.reset(token)
        return
    _in_force.append(chosen)
    try:
        yield
    finally:
        _in_force.pop()

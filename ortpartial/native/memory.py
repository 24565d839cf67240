"""The memory plan: intermediate results that are not needed at the same time share memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .expressions import Array
from .kernels import Branch, Kernel, Loop, Repeat

__all__ = ["MemoryPlan", "plan_memory"]

#: Bytes that arrays are aligned to: a line of the cache.
_LINE = 64


class MemoryPlan:
    """Where intermediate results are.

    Attributes
    ----------
    offsets : dict of Array to int
        The first element of each in the pool of its type.
    sizes : dict of numpy.dtype to int
        The elements of each pool.
    registers : dict of Array to int
        Arrays of a single element, which are variables, with their numbers.
    fused : set of Array
        Arrays that exist inside a single loop alone, and take no memory.
    """

    def __init__(self) -> None:
        self.offsets: dict[Array, int] = {}
        self.sizes: dict[np.dtype, int] = {}
        self.registers: dict[Array, int] = {}
        self.fused: set[Array] = set()


def plan_memory(kernels: Sequence[Kernel], kept: Sequence[Array] = ()) -> MemoryPlan:
    """Plan the memory of kernels in their order.

    Parameters
    ----------
    kernels : sequence of Kernel
        In order.
    kept : sequence of Array
        Arrays that are read after the last kernel.

    Returns
    -------
    MemoryPlan
    """
    plan = MemoryPlan()
    steps = list(_walk(kernels))
    accesses = _list_accesses([kernel for kernel, _ in steps])
    extents = _find_extents(steps)
    spans = {array: _span([(i, steps[i][1]) for i in those], extents) for array, those in accesses.items()}
    for array in kept:
        if array in spans:
            spans[array] = spans[array][0], len(steps)
    for array, (first, last) in spans.items():
        if first == last and _is_fused(array, steps[first][0]):
            plan.fused.add(array)
        elif array.size == 1:
            plan.registers[array] = len(plan.registers)
    needed = {a: s for a, s in spans.items() if a not in plan.fused and a not in plan.registers}
    for dtype in dict.fromkeys(a.dtype for a in needed):
        _place({a: s for a, s in needed.items() if a.dtype == dtype}, plan, dtype)
    return plan


Around = tuple[Kernel, ...]


def _walk(kernels: Iterable[Kernel], around: Around = ()) -> Iterator[tuple[Kernel, Around]]:
    """The kernels that do something themselves, in the order of the text, with the loops around each."""
    for kernel in kernels:
        if isinstance(kernel, Branch) or not kernel.bodies:
            yield kernel, around
        inside = (*around, kernel) if isinstance(kernel, Repeat) else around
        for body in kernel.bodies:
            yield from _walk(body, inside)


def _list_accesses(kernels: Sequence[Kernel | Branch]) -> dict[Array, list[int]]:
    """By scratch array the numbers of the kernels that read or write it."""
    accesses: dict[Array, list[int]] = defaultdict(list)
    for i, kernel in enumerate(kernels):
        places = [kernel.condition] if isinstance(kernel, Branch) else (*kernel.reads(), *kernel.writes())
        for array in dict.fromkeys(p.array for p in places if p.array.role == "scratch"):
            accesses[array].append(i)
    return accesses


def _find_extents(steps: Sequence[tuple[Kernel, Around]]) -> dict[Kernel, tuple[int, int]]:
    """By loop, the first and the last kernel inside."""
    extents: dict[Kernel, tuple[int, int]] = {}
    for i, (_, around) in enumerate(steps):
        for loop in around:
            extents[loop] = extents.get(loop, (i, i))[0], i
    return extents


def _span(accesses: Sequence[tuple[int, Around]], extents: dict[Kernel, tuple[int, int]]) -> tuple[int, int]:
    """When an array is needed: during all of a loop if it is used in the loop and outside of it, as states are."""
    first, last = accesses[0][0], accesses[-1][0]
    common = next((k for k, loops in enumerate(zip(*(around for _, around in accesses), strict=False))
                   if len(set(loops)) > 1), min(len(around) for _, around in accesses))
    for _, around in accesses:
        for loop in around[common:]:
            first, last = min(first, extents[loop][0]), max(last, extents[loop][1])
    return first, last


def _is_fused(array: Array, kernel: Kernel) -> bool:
    """Whether an array is written and read at the same places of a single loop."""
    if not isinstance(kernel, Loop):
        return False
    writes = [s.to for s in kernel.stores if s.to.array is array]
    reads = [r for r in kernel.reads() if r.array is array]
    return len(writes) == 1 and not any(s.adds for s in kernel.stores if s.to.array is array) and all(
        r.key == writes[0].key for r in reads)


def _place(spans: dict[Array, tuple[int, int]], plan: MemoryPlan, dtype: np.dtype) -> None:
    """Give each array the lowest place that is free while it is needed, the largest first."""
    line = _LINE // dtype.itemsize
    placed: list[tuple[int, int, int, int]] = []  # first kernel, last kernel, first element, end
    for array, (first, last) in sorted(spans.items(), key=lambda item: -item[0].size):
        taken = sorted((a, b) for f, e, a, b in placed if f <= last and first <= e)
        start = 0
        for a, b in taken:
            if a - start >= array.size:
                break
            start = max(start, b)
        end = start + -(-array.size // line) * line
        placed.append((first, last, start, end))
        plan.offsets[array] = start
    plan.sizes[dtype] = max((end for *_, end in placed), default=0)

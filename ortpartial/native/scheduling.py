"""The order of kernels: states are overwritten in place, after all that reads them; loops are fused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ortpartial.limits import limits

from .expressions import Affine, Array, Call, Literal, Load
from .kernels import Branch, Convolution, Kernel, Loop, Product, Repeat, Store

__all__ = ["drop_unread", "fuse_updates", "order_kernels"]


def order_kernels(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels in an order in which no kernel reads a state that another has overwritten, with loops fused.

    Where there is no such order, a new state is computed beside the former one, and copied at the end.

    Parameters
    ----------
    kernels : sequence of Kernel
        In the order in which they were written, each after the kernels that it reads from.

    Returns
    -------
    list of Kernel
    """
    kernels = list(kernels)
    copies: list[Kernel] = []
    for kernel in kernels:
        for array in {w.array for w in kernel.writes() if w.array.former is not None}:
            if not _may_overwrite(kernel, array):
                copies.append(_set_aside(array, kernels))
    while True:
        ordered, stuck = _sort(kernels)
        if stuck is None:
            return ordered + copies
        copies.append(_set_aside(stuck, kernels))


def _may_overwrite(kernel: Kernel, new: Array) -> bool:
    """Whether a kernel reads each former element of a state before it writes the new element."""
    if kernel.refuses:
        return False
    places = {w.key for w in kernel.writes() if w.array is new}
    if isinstance(kernel, (Loop, Product, Convolution)):
        former = [r for r in kernel.reads() if r.array is new.former]
        factors = ((kernel.a, kernel.b) if isinstance(kernel, Product) else
                   (kernel.first, kernel.second) if isinstance(kernel, Convolution) else ())
        if any(r.array is new.former for r in factors):
            return False
        return len(places) == 1 and all(r.key in places for r in former)
    return not any(r.array is new.former for r in kernel.reads())


def _set_aside(array: Array, kernels: Sequence[Kernel]) -> Kernel:
    """Compute a new state beside the former one; return the kernel that copies it."""
    state = array.former
    assert state is not None
    array.former, array.role, array.name = None, "scratch", ""
    at = Affine.contiguous((array.size,))
    final = Array(array.dtype, array.size, "state", state.name, former=state)
    return Loop([Store(Load(array.dtype, at.shape, final, at), Load(array.dtype, at.shape, array, at))])


def _sort(kernels: Sequence[Kernel]) -> tuple[list[Kernel], Array | None]:
    """Kernels in order; or the new state that none can be written before.

    Among the kernels that may come next, a kernel that fuses with the last is preferred.
    """
    after = _find_edges(kernels)
    waiting = {i: len(before) for i, before in enumerate(_reverse(after, len(kernels)))}
    ready = [i for i, n in waiting.items() if not n]
    ordered: list[Kernel] = []
    done: set[int] = set()
    while ready:
        last = ordered[-1] if ordered else None
        i = next((j for j in ready if last is not None and _may_fuse(last, kernels[j])), None)
        if i is None:
            i = min(ready)
            ordered.append(Loop(list(kernels[i].stores)) if isinstance(kernels[i], Loop) else kernels[i])  # type: ignore[attr-defined]
        else:
            last.stores.extend(kernels[i].stores)  # type: ignore[union-attr, attr-defined]
        ready.remove(i)
        done.add(i)
        for j in after[i]:
            waiting[j] -= 1
            if not waiting[j]:
                ready.append(j)
        ready.sort()
    if len(done) == len(kernels):
        return ordered, None
    left = [kernels[i] for i in range(len(kernels)) if i not in done]
    return ordered, next(w.array for k in left for w in k.writes() if w.array.former is not None)


def _find_edges(kernels: Sequence[Kernel]) -> list[set[int]]:
    """By kernel, the kernels that have to come after it."""
    after: list[set[int]] = [set() for _ in kernels]
    writers: dict[Array, list[int]] = defaultdict(list)
    readers: dict[Array, list[int]] = defaultdict(list)
    for i, kernel in enumerate(kernels):
        reads, writes = {r.array for r in kernel.reads()}, {w.array for w in kernel.writes()}
        for array in reads:
            for j in writers[array]:
                after[j].add(i)
        for array in writes:
            for j in (*writers[array], *readers[array]):
                after[j].add(i)
        for array in reads:
            readers[array].append(i)
        for array in writes:
            writers[array].append(i)
    for array, those in writers.items():
        if array.former is not None:
            for j in readers[array.former]:
                after[j].update(those)
    changing = {i for array, those in writers.items() if array.former is not None for i in those}
    for i, later in enumerate(after):
        if kernels[i].refuses:  # A refusal leaves the state as it was.
            later |= changing
        later.discard(i)
    return after


def _reverse(after: Sequence[set[int]], count: int) -> list[set[int]]:
    before: list[set[int]] = [set() for _ in range(count)]
    for i, those in enumerate(after):
        for j in those:
            before[j].add(i)
    return before


def _may_fuse(first: Kernel, second: Kernel) -> bool:
    """Whether two loops can be one: each element depends on elements of the same index alone."""
    if not isinstance(first, Loop) or not isinstance(second, Loop):
        return False
    if _extent(first) != _extent(second) or len(first.stores) + len(second.stores) > limits().fused_stores:
        return False
    if any(s.adds for s in (*first.stores, *second.stores)):
        return False  # Places of a sum may coincide.
    written = [s.to for s in first.stores]
    touched = [*second.reads(), *second.writes()]
    rewritten, read = [s.to for s in second.stores], list(first.reads())
    return _are_same(written, touched) and _are_same(rewritten, read)


def _are_same(writes: Iterable[Load], others: Sequence[Load]) -> bool:
    """Whether all other reads and writes of the written arrays are at the same places, each once."""
    for w in writes:
        same = [o for o in others if o.array.memory is w.array.memory]
        if same and (not _is_injective(w) or any(o.key != w.key for o in same)):
            return False
    return True


def _is_injective(w: Load) -> bool:
    """Whether different indices are different places."""
    return w.index is None and all(s or n == 1 for n, s in zip(w.shape, w.at.strides, strict=True))


def _extent(loop: Loop) -> tuple[int, ...]:
    """The ranges of a loop that count."""
    return tuple(n for n in loop.shape if n != 1)


def fuse_updates(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels in which a gradient by the kernels of a convolution updates them, where W - η G alone reads it.

    Parameters
    ----------
    kernels : sequence of Kernel
        A step.

    Returns
    -------
    list of Kernel
    """
    readers = Counter(r.array for kernel in kernels for r in kernel.reads())
    gradients = {k.to.array: k for k in kernels
                 if isinstance(k, Convolution) and k.shape.kind == "kernels" and readers[k.to.array] == 1}
    updates: dict[Kernel, Kernel] = {}
    dropped: set[Kernel] = set()
    for kernel in kernels:
        update = _read_update(kernel)
        gradient = None if update is None else gradients.get(update.g.array)
        if update is not None and gradient is not None:
            updates[kernel] = replace(gradient, shape=gradient.shape.scaled(-update.rate, 1.0), to=update.to,
                                      addend=update.w)
            dropped.add(gradient)
    return [updates.get(kernel, kernel) for kernel in kernels if kernel not in dropped]


@dataclass(frozen=True)
class _Update:
    """A new state W - η G, where all elements are adjacent and η is a number."""

    to: Load
    w: Load
    g: Load
    rate: float


def _read_update(kernel: Kernel) -> _Update | None:
    """The update that a loop computes, if that is all."""
    if not isinstance(kernel, Loop) or len(kernel.stores) != 1:
        return None
    store = kernel.stores[0]
    match store.value:
        case Call(template="{0} - {1}",
                  args=(Load() as w, Call(template="{0} * {1}", args=(Literal() as rate, Load() as g)))):
            is_whole = all(e.is_plain for e in (store.to, w, g))
            is_state = store.to.array.former is not None and w.array is store.to.array.former
            return _Update(store.to, w, g, float(rate.value)) if is_whole and is_state and not store.adds else None
    return None


def drop_unread(kernels: Sequence[Kernel], kept: Array) -> list[Kernel]:
    """Kernels without those whose results nothing reads.

    Parameters
    ----------
    kernels : sequence of Kernel
        A step.
    kept : Array
        The array that is read after the last kernel.

    Returns
    -------
    list of Kernel
    """
    needed, count = list(kernels), -1
    while True:  # An array read by a dropped kernel may have no reader left.
        read = {r.array for kernel in needed for r in kernel.reads()} | {kept}
        if len(read) == count:
            return needed
        needed, count = _keep_read(needed, read), len(read)


def _keep_read(kernels: Sequence[Kernel], read: Collection[Array]) -> list[Kernel]:
    """The kernels, and the stores of loops, that change a state or an array that is read."""

    def counts(array: Array) -> bool:
        return array.role != "scratch" or array in read

    kept: list[Kernel] = []
    for kernel in kernels:
        if isinstance(kernel, Loop):
            stores = [s for s in kernel.stores if counts(s.to.array)]
            kept += [Loop(stores)] * bool(stores)
        elif kernel.refuses or any(counts(w.array) for w in kernel.writes()):
            if isinstance(kernel, Repeat):
                kernel = replace(kernel, kernels=_keep_read(kernel.kernels, read))
            elif isinstance(kernel, Branch):
                kernel = replace(kernel, then=_keep_read(kernel.then, read),
                                 otherwise=_keep_read(kernel.otherwise, read))
            kept.append(kernel)
    return kept

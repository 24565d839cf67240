"""Prefetching: a thread fetches the next batches of data while a step runs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Any

from ortpartial.annotations import Same
from ortpartial.exceptions import ProcessError

__all__ = ["is_prefetching", "prefetch"]

_END = object()

_here = local()


def is_prefetching() -> bool:
    """Whether this is a thread that fetches batches, for which another thread waits.

    Returns
    -------
    bool
    """
    return hasattr(_here, "is_prefetching")


def _mark() -> None:
    _here.is_prefetching = True


def prefetch(batches: Iterable[Same], ahead: int = 2) -> Generator[Same, None, None]:
    """Iterate over the elements of an iterable; a thread fetches the next elements while the current is used.

    Parameters
    ----------
    batches : iterable
        Any iterable; an error in it is raised in place of its element.
    ahead : int
        Number of elements that are fetched in advance.

    Yields
    ------
    object

    Examples
    --------
    >>> list(prefetch(range(3)))
    [0, 1, 2]
    """
    process = os.getpid()
    pool = ThreadPoolExecutor(1, "ortpartial prefetch", initializer=_mark)
    try:
        iterator, is_over = iter(batches), False

        def fetch() -> Any:
            nonlocal is_over
            if is_over:  # After its end, or an error, an iterator is not asked again: it might wait forever.
                return _END
            is_over = True
            batch = next(iterator, _END)
            is_over = batch is _END
            return batch

        def wait(batch: Future[Same]) -> Same:
            if os.getpid() != process:
                raise ProcessError("This process was forked during a training, and the thread that fetches its batches "
                                   "is that of the parent: begin a training of its own.")
            return batch.result()

        pending = deque(pool.submit(fetch) for _ in range(ahead))
        while (batch := wait(pending.popleft())) is not _END:
            pending.append(pool.submit(fetch))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)

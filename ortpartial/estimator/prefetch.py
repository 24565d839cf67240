"""Prefetching: a thread fetches the next batches of data while a step runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any

from ortpartial.exceptions import DataError

__all__ = ["prefetch", "split_batch"]

_END = object()


def prefetch(batches: Iterable[Any], ahead: int = 2) -> Generator[Any, None, None]:
    """Iterate over the elements of an iterable; a thread fetches the next ones while the current one is used.

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
    ready: queue.Queue[Any] = queue.Queue(ahead)
    over = threading.Event()

    def put(what: Any) -> bool:
        while not over.is_set():
            try:
                ready.put(what, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def fetch() -> None:
        try:
            for batch in batches:
                if not put((batch, None)):
                    return
            put((_END, None))
        except BaseException as e:
            put((_END, e))

    thread = threading.Thread(target=fetch, name="ortpartial prefetch", daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                raise error
            if batch is _END:
                return
            yield batch
    finally:
        over.set()
        thread.join()


def split_batch(batch: Any) -> tuple[Any, Any, Any]:
    """Split a batch into X, y and sample_weight, which may be missing.

    Raises
    ------
    DataError
        The batch is neither a pair nor a triple.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        kind = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
        raise DataError(f"A batch is (X, y) or (X, y, sample_weight), not a {kind}; give y where X is all the data.")
    X, y, *w = batch
    return X, y, w[0] if w else None

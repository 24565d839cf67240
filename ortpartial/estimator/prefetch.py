"""What if the data come batch by batch? `prefetch` makes the next ones ready while a step runs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any

from ortpartial.exceptions import DataError

__all__ = ["prefetch", "split_batch"]

_END = object()


def prefetch(batches: Iterable[Any], ahead: int = 2) -> Generator[Any, None, None]:
    """The elements of an iterable, the next ones fetched by a thread while the present one is used.

    Parameters
    ----------
    batches : iterable
        What is fetched; an error in it is raised where its element would have come.
    ahead : int
        How many elements are kept ready.

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
    """X, y and the weights of the rows, if any, of one batch.

    Raises
    ------
    DataError
        It is no pair and no triple.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        found = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, (tuple, list)) else type(batch).__name__
        raise DataError(f"A batch is (X, y) or (X, y, sample_weight), not a {found}; give y where X is all the data.")
    X, y, *w = batch
    return X, y, w[0] if w else None

"""The mode of a thread: whether it computes nodes as it makes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np

__all__ = ["MODE", "deferring", "switched"]


class _Mode(threading.local):
    """Whether a thread computes the nodes that it makes, or defers them as they are inside of a body."""

    is_on = False
    is_deferred = False
    random: np.random.Generator | None = None


MODE = _Mode()


@contextmanager
def switched(**settings: object) -> Iterator[None]:
    """The mode of this thread with other settings."""
    former = {name: getattr(MODE, name) for name in settings}
    MODE.__dict__.update(settings)
    try:
        yield
    finally:
        MODE.__dict__.update(former)


def deferring() -> AbstractContextManager[None]:
    """A context in which a node is computed only when its numbers are asked for, as a branch may not be taken."""
    return switched(is_deferred=True)

"""A fair lock: threads that share an object take turns."""

from __future__ import annotations

import os
from threading import RLock
from typing import Any
from weakref import WeakSet

__all__ = ["FairLock"]

_turns: WeakSet[FairLock] = WeakSet()


class FairLock:
    """A lock of an object, which neither its copies nor the children of its process share.

    A thread may take it again in its own turn, as a callback does.

    Attributes
    ----------
    lock : threading.RLock
        To be read for each turn, as a child process has its own.

    Examples
    --------
    >>> import pickle
    >>> turn = FairLock()
    >>> with turn.lock:
    ...     copied = pickle.loads(pickle.dumps(turn))
    >>> copied.lock is turn.lock
    False
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock: Any = RLock()
        _turns.add(self)

    def __reduce__(self) -> tuple[type[FairLock], tuple[()]]:
        return FairLock, ()


def _renew() -> None:
    """Give a child process locks of its own: the threads that held the others do not exist in it."""
    for turn in list(_turns):
        if not turn.lock._is_owned():
            turn.lock = RLock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew)

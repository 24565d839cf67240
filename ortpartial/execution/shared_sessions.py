"""Sessions that equal trainings share, such as the folds of a cross-validation: a graph is compiled once."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

from ortpartial.annotations import Same
from ortpartial.limits import limits

__all__ = ["SharedSessions", "shared_sessions"]


class SharedSessions:
    """The sessions that were asked for last. A session holds no weights, and runs in several threads at once.

    Parameters
    ----------
    most : int
        How many are kept.

    Examples
    --------
    >>> sessions = SharedSessions(most=1)
    >>> [sessions.get("training", kind, list) is sessions.get("training", "step", list) for kind in ("step", "epoch")]
    [True, False]
    """

    def __init__(self, most: int):
        self._most, self._lock = most, Lock()
        self._sessions: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, identity: Hashable, key: Hashable, compile_session: Callable[[], Same]) -> Same:
        """The session of a training for a key, which is compiled where there is none.

        Parameters
        ----------
        identity : hashable
            The identity of trainings that share their sessions; None where it is compiled for a single training.
        key : hashable
            Which session of a training.
        compile_session : callable
            Returns a new session.

        Returns
        -------
        Session
        """
        if identity is None:
            return compile_session()
        with self._lock:
            session = self._sessions.pop((identity, key, limits()), None)
        session = compile_session() if session is None else session
        with self._lock:
            self._sessions[identity, key, limits()] = session
            if len(self._sessions) > self._most:
                self._sessions.popitem(last=False)
        return session

    def clear(self) -> None:
        """Forget all sessions, which a child process must not use."""
        self._lock = Lock()
        self._sessions = OrderedDict()


#: The sessions of this process. A session of a small network takes about 0.3 MB.
shared_sessions = SharedSessions(most=64)

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=shared_sessions.clear)

"""Forked processes: a child keeps the sessions of its parent unused, and ends without waiting for their threads."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import NoReturn, Protocol
from weakref import WeakSet

from ortpartial.exceptions import ProcessError

__all__ = ["Inherited", "keep_at_fork"]


class Inherited:
    """The stand-in, in a child process, for an object of onnxruntime that its parent has opened: each use is an error.

    Examples
    --------
    >>> Inherited().run()
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ProcessError: This process was forked after its parent had compiled a graph, ...
    """

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse()

    def __call__(self, *arguments: object) -> NoReturn:
        _refuse()


def _refuse() -> NoReturn:
    raise ProcessError("This process was forked after its parent had compiled a graph, and a session of onnxruntime "
                       "does not survive a fork: use the start method 'spawn', or build the optimizer inside of the "
                       "worker.")


class _Holder(Protocol):
    """An object that holds objects of onnxruntime."""

    def replace_inherited(self) -> list[object]:
        """Put an `Inherited` in place of objects of onnxruntime, and return these."""


_holders: WeakSet[_Holder] = WeakSet()


def keep_at_fork(holder: _Holder) -> None:
    """See to it that children of this process neither use nor free the contents of an object.

    Parameters
    ----------
    holder : object
        Has a method `replace_inherited`, which puts an `Inherited` in place of the contents, and returns them.
    """
    _holders.add(holder)


def _keep_unused() -> None:
    """Give all objects opened before the fork another reference, which nothing takes back.

    onnxruntime 1.32 waits for the threads of a session when it is freed, and a child has none of them.
    """
    for holder in list(_holders):
        for kept in (holder, *holder.replace_inherited()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    _holders.clear()
    if "onnxruntime" in sys.modules:
        _leave_out_exit_handlers()


def _leave_out_exit_handlers() -> None:
    """Let the process end after Python has ended, before the C library destroys the global objects of libraries.

    A handler of onnxruntime 1.32 waits forever for a thread of the parent. Only the GNU C library has `on_exit`, and
    only there does destroying an object wait for the threads that wait for it. Handlers run in reverse order: buffers
    are written before.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        library.on_exit(library._exit, None)
        library.fflush.argtypes = [ctypes.c_void_p]
        library.__cxa_atexit(library.fflush, None, None)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_keep_unused)

"""Logging: the logger of the package, and which compilation a thread is busy with.

The logger is "ortpartial". It says at level INFO how a training starts and ends and which compilations take a second or
more, at level DEBUG every compilation, every rewrite that has changed something, and every epoch. Unless logging is
configured, nothing is shown.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["compiling", "logger", "seconds_compiling"]

logger = logging.getLogger("ortpartial")
logger.addHandler(logging.NullHandler())

#: When each thread that compiles now has begun.
_starts: dict[int, float] = {}


@contextmanager
def compiling(program: str) -> Iterator[None]:
    """A context in which a program is compiled: its time is logged, and a progress bar shows that it is going on.

    Garbage is collected after it: the graphs of a large model are hundreds of thousands of objects that all stay, and
    looking through them again and again takes a sixth of the time.

    Parameters
    ----------
    program : str
        The compiled object, for the log.

    Yields
    ------
    None

    Examples
    --------
    >>> with compiling("the step for batches of 32 rows"):
    ...     seconds_compiling(threading.get_ident()) >= 0
    True
    >>> seconds_compiling(threading.get_ident())
    0.0
    """
    thread, start = threading.get_ident(), time.monotonic()
    is_outermost = thread not in _starts
    _starts.setdefault(thread, start)
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_collecting:
            gc.enable()
        if is_outermost:
            del _starts[thread]
    seconds = time.monotonic() - start
    logger.log(logging.INFO if seconds >= 1 else logging.DEBUG, "compiled %s in %.2f s", program, seconds)


def seconds_compiling(thread: int) -> float:
    """How long a thread has been compiling.

    Parameters
    ----------
    thread : int
        Its identifier, as of ``threading.get_ident``.

    Returns
    -------
    float
        Seconds; 0 if it does not compile.
    """
    start = _starts.get(thread)
    return 0.0 if start is None else time.monotonic() - start

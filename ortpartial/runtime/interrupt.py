"""Interruption of a run: a deadline, or Ctrl-C, becomes onnxruntime's own termination."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Any

from ortpartial.exceptions import DeadlineError, OrtPartialError

from .device import C

__all__ = ["Interrupt"]

_WAKE = b"\0"  # No signal has the number 0.


class _Listener:
    """A thread that waits for signals and deadlines, on behalf of all watches of a process."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        self.lock = threading.Lock()
        self.watches: list[Interrupt] = []
        threading.Thread(target=self._wait, name="ortpartial watch", daemon=True).start()

    def _wait(self) -> None:
        while True:
            with self.lock:
                ends = [w.end for w in self.watches if w.end is not None]
            select.select([self.reader], [], [], max(0.0, min(ends) - time.monotonic()) if ends else None)
            with self.lock:
                self._hear()

    def _hear(self) -> None:
        """Hand on what signals have told, and whose time is up."""
        try:
            told = os.read(self.reader, 64).replace(_WAKE, b"")
        except BlockingIOError:  # The other thread has heard it.
            told = b""
        now = time.monotonic()
        for watch in self.watches:
            watch._hear(told, now)

    def add(self, watch: Interrupt) -> None:
        """Listen for one more watch."""
        with self.lock:
            self.watches.append(watch)
        if watch.end is not None:
            os.write(self.writer, _WAKE)

    def remove(self, watch: Interrupt) -> None:
        """Listen no more; what was told until now is for this watch and not for the next one."""
        with self.lock:
            self._hear()
            self.watches.remove(watch)


@cache
def _listener(process: int) -> _Listener:
    """The listener of a process: threads do not survive a fork."""
    return _Listener()


class Interrupt:
    """A context in which runs that are given its `options` end at a deadline or at Ctrl-C, between two nodes.

    While onnxruntime runs a graph, Python handles no signal. But the C handler of Python writes the number of every
    signal to a pipe, where a thread waits for it; that costs a run nothing, and the first watch of a process starts it.

    Parameters
    ----------
    seconds : float, optional
        Time from the entry on; None for no deadline.

    Attributes
    ----------
    options : onnxruntime.RunOptions
        To be given to every run.

    Raises
    ------
    DeadlineError
        On leaving the context, in place of the error of the run that was ended.

    Examples
    --------
    >>> with Interrupt(seconds=60) as watch:
    ...     watch.options.terminate
    False
    """

    def __init__(self, seconds: float | None = None):
        self.options: Any = C.RunOptions()
        self.seconds = seconds
        #: When the time is up.
        self.end: float | None = None
        self._expired = False

    def __enter__(self) -> Interrupt:
        self._listener = _listener(os.getpid())
        # A handler that somebody else set may not want the run to end; and signals reach the main thread alone.
        self._signals = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        self._former = -1
        if self._signals:
            self._former = signal.set_wakeup_fd(self._listener.writer, warn_on_full_buffer=False)
        self.end = None if self.seconds is None else time.monotonic() + self.seconds
        self._listener.add(self)
        return self

    def _hear(self, told: bytes, now: float) -> None:
        """End the run when the time is up or SIGINT comes; hand on what signals tell to who listened before."""
        if self.end is not None and now >= self.end:
            self._expired = self.options.terminate = True
            self.end = None
        if told and self._signals:
            if self._former not in (-1, self._listener.writer):  # A watch around this one hears it by itself.
                with suppress(OSError):  # Nobody may read there, and others are still to be told.
                    os.write(self._former, told)
            if signal.SIGINT in told:
                self.options.terminate = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._signals:
            signal.set_wakeup_fd(self._former, warn_on_full_buffer=False)
        self._listener.remove(self)
        if self._expired and isinstance(error, OrtPartialError):
            raise DeadlineError(f"The run was not over after {self.seconds:g} s, the timeout.") from None

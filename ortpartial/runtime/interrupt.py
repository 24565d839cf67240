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

from ortpartial.exceptions import DeadlineError, OrtPartialError

from .device import C
from .ort_types import RunOptions

__all__ = ["Interrupt"]

_WAKE = b"\0"  # No signal has the number 0.


class _Listener:
    """A thread that waits for signals and deadlines on behalf of all interrupts of a process."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        self.lock = threading.Lock()
        self.interrupts: list[Interrupt] = []
        threading.Thread(target=self._wait, name="ortpartial interrupt", daemon=True).start()

    def _wait(self) -> None:
        while True:
            with self.lock:
                ends = [i.end for i in self.interrupts if i.end is not None]
            select.select([self.reader], [], [], max(0.0, min(ends) - time.monotonic()) if ends else None)
            with self.lock:
                self._notify()

    def _notify(self) -> None:
        """Pass the pending signals and the time on to all interrupts."""
        try:
            signals = os.read(self.reader, 64).replace(_WAKE, b"")
        except BlockingIOError:  # The other thread has read them.
            signals = b""
        now = time.monotonic()
        for interrupt in self.interrupts:
            interrupt._notify(signals, now)

    def add(self, interrupt: Interrupt) -> None:
        """Listen for another interrupt."""
        with self.lock:
            self.interrupts.append(interrupt)
        if interrupt.end is not None:
            os.write(self.writer, _WAKE)

    def remove(self, interrupt: Interrupt) -> None:
        """Stop listening for an interrupt, after passing on the pending signals, hidden from the next."""
        with self.lock:
            self._notify()
            self.interrupts.remove(interrupt)


@cache
def _listener() -> _Listener:
    """The listener of this process."""
    return _Listener()


def _leave_listener() -> None:
    """Have a child process listen anew: threads do not survive a fork, and signals of the child are its own."""
    if not _listener.cache_info().currsize:
        return
    inherited = _listener()
    _listener.cache_clear()
    if any(i.handles_signals for i in inherited.interrupts):
        signal.set_wakeup_fd(-1)
    inherited.interrupts.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_listener)


class Interrupt:
    """A context that ends runs with its `options` at a deadline or at Ctrl-C, before the next node.

    Python handles no signal while onnxruntime runs a graph. But Python's C handler writes the number of each signal to
    a pipe, which a thread reads; this does not slow down a run. The first interrupt of a process starts the thread.

    Parameters
    ----------
    seconds : float, optional
        Time from the start of the context; None for no deadline.

    Attributes
    ----------
    options : onnxruntime.RunOptions
        The options to pass to every run.

    Raises
    ------
    DeadlineError
        At the end of the context, in place of the error of the run that was ended.

    Examples
    --------
    >>> with Interrupt(seconds=60) as interrupt:
    ...     interrupt.options.terminate
    False
    """

    def __init__(self, seconds: float | None = None):
        self.options: RunOptions = C.RunOptions()
        self.seconds = seconds
        #: The time of the deadline, by the monotonic clock.
        self.end: float | None = None
        self._expired = False

    def __enter__(self) -> Interrupt:
        self._listener = _listener()
        # With a handler other than Python's, the user decides what Ctrl-C does. Signals reach the main thread alone.
        self.handles_signals = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        self._previous_fd = -1
        if self.handles_signals:
            self._previous_fd = signal.set_wakeup_fd(self._listener.writer, warn_on_full_buffer=False)
        self.end = None if self.seconds is None else time.monotonic() + self.seconds
        self._listener.add(self)
        return self

    def _notify(self, signals: bytes, now: float) -> None:
        """End the run at the deadline or at SIGINT; forward signals to the descriptor that was set before."""
        if self.end is not None and now >= self.end:
            self._expired = self.options.terminate = True
            self.end = None
        if signals and self.handles_signals:
            if self._previous_fd not in (-1, self._listener.writer):  # An outer interrupt shares the listener.
                with suppress(OSError):  # The pipe may be full or closed, which must not keep the run going.
                    os.write(self._previous_fd, signals)
            if signal.SIGINT in signals and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self.options.terminate = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self not in self._listener.interrupts:  # It was entered before a fork, in the parent.
            return
        if self.handles_signals:
            signal.set_wakeup_fd(self._previous_fd, warn_on_full_buffer=False)
        self._listener.remove(self)
        if self._expired and isinstance(error, OrtPartialError):
            raise DeadlineError(f"The run was not over after {self.seconds:g} s, the timeout.") from None

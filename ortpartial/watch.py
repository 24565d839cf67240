"""How does a run end before it is done? A `Watch` turns a deadline, or Ctrl-C, into onnxruntime's own termination."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from types import TracebackType
from typing import Any

from .exceptions import DeadlineError, OrtPartialError
from .runtime import C

__all__ = ["Watch"]

_CLOSE = b"\0"  # No signal has the number 0.


class Watch:
    """A context in which runs that are given its `options` end at a deadline or at Ctrl-C, between two nodes.

    While onnxruntime runs a graph, Python handles no signal. But the C handler of Python writes the number of every
    signal to a pipe, where a thread waits for it; that costs a run nothing.

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
    >>> with Watch(seconds=60) as watch:
    ...     watch.options.terminate
    False
    """

    def __init__(self, seconds: float | None = None):
        self.options: Any = C.RunOptions()
        self.seconds = seconds
        self._expired = False

    def __enter__(self) -> Watch:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # A handler that somebody else set may not want the run to end; and signals reach the main thread alone.
        self._signals = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        self._former = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False) if self._signals else -1
        self._thread = threading.Thread(target=self._wait, name="ortpartial watch", daemon=True)
        self._thread.start()
        return self

    def _wait(self) -> None:
        """End the run when the time is up or SIGINT comes; hand on what signals tell to who listened before."""
        end = None if self.seconds is None else time.monotonic() + self.seconds
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._reader], [], [], left)[0]:
                self._expired = self.options.terminate = True
                end = None
                continue
            told = os.read(self._reader, 64)
            if self._former >= 0 and (others := told.replace(_CLOSE, b"")):
                os.write(self._former, others)
            if signal.SIGINT in told:
                self.options.terminate = True
            if _CLOSE in told:
                return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._signals:
            signal.set_wakeup_fd(self._former, warn_on_full_buffer=False)
        os.write(self._writer, _CLOSE)
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)
        if self._expired and isinstance(error, OrtPartialError):
            raise DeadlineError(f"The run was not over after {self.seconds:g} s, the timeout.") from None

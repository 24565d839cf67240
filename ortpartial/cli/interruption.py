"""Ctrl-C: an orderly end of the training, and never of the work after it."""

from __future__ import annotations

import signal
import threading
from typing import Any

__all__ = ["Interruption"]


class Interruption:
    """Ctrl-C, which ends a training and never the work after it, such as writing the model."""

    def __init__(self) -> None:
        #: Whether the next Ctrl-C raises a KeyboardInterrupt.
        self.is_raised = True
        self.is_requested = False

    def __enter__(self) -> Interruption:
        self._former: Any = None
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as by a shell for programs in the background
        if threading.current_thread() is threading.main_thread() and not is_ignored:  # Signals reach no other thread.
            self._former = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, *_: object) -> None:
        self.is_requested = True
        if self.is_raised:
            self.is_raised = False
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

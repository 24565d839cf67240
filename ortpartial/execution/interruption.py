"""Interruption of a training: its runs end at a timeout, and at Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ortpartial.checks import to_number
from ortpartial.exceptions import SettingError
from ortpartial.runtime import Interrupt

__all__ = ["check_timeout", "interruptible"]


def check_timeout(timeout: float | None) -> float | None:
    """Check a timeout, None or seconds; return it."""
    if timeout is not None and to_number(timeout, above=0) is None:
        raise SettingError(f"timeout is None or a number of seconds above 0, not {timeout!r}.")
    return timeout


@contextmanager
def interruptible(part: Any, timeout: float | None, always: bool = False) -> Iterator[None]:
    """A context in which runs end at the timeout and at Ctrl-C.

    Parameters
    ----------
    part : object
        Has an `engine`, which may be replaced meanwhile. The options of the engine hold for every run of this thread in
        the context, also for runs that are not its own.
    timeout : float or None
        In seconds. A context inside of another has the timeout of the outer.
    always : bool
        Whether Ctrl-C ends a run even without a timeout; that costs some microseconds.

    Yields
    ------
    None
    """
    if part.engine.local.options is not None or not (always or timeout):
        yield
        return
    with Interrupt(timeout) as interrupt:
        part.engine.local.options = interrupt.options
        try:
            yield
        finally:
            part.engine.local.options = None

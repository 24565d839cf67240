"""Stepper: single steps of a training whose loop is the caller's, by an engine that was asked for, in time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from time import monotonic

import numpy as np

from ortpartial.exceptions import DeadlineError

from .interruption import check_timeout, interruptible
from .native_engine import NativeEngine
from .selection import select_for_memory, select_for_steps
from .step import Arrays, StepSource

__all__ = ["EngineNames", "Stepper"]


class EngineNames:
    """The attributes of an object whose steps a `Stepper` takes."""

    _steps: Stepper

    @property
    def engine_(self) -> str:
        """The engine that takes the steps."""
        return self._steps.engine.name

    @property
    def engine_reason_(self) -> str:
        """Why it was chosen."""
        return self._steps.engine.reason


class Stepper:
    """Single steps of a training.

    Parameters
    ----------
    source : StepSource
        Composes the steps.
    engine : str
        ``"auto"``, or a name of `engines`.
    engines : collection of str
        The names that make sense where the steps are taken.
    timeout : float or None
        Seconds that a step may take.

    Attributes
    ----------
    engine : StepRunner
        Holds the state and takes the steps.
    timeout : float or None
        Seconds.

    Raises
    ------
    SettingError
        The engine is not among the engines that make sense, or the timeout is no number above 0.
    """

    def __init__(self, source: StepSource, engine: str, engines: Collection[str], timeout: float | None):
        kind, reason = select_for_memory(engine, select_for_steps(engine, source, engines), source)
        self.timeout = check_timeout(timeout)
        self.engine = kind(source)
        self.engine.reason = reason
        if isinstance(self.engine, NativeEngine):
            self.engine.compiles_calls = True

    def step(self, feeds: Arrays, kind: Hashable = None, check: Callable[[Arrays], object] | None = None
             ) -> dict[str, np.ndarray]:
        """Take a step on a batch, as `StepRunner.step` does, within the timeout.

        Raises
        ------
        DeadlineError
            It was not over in time; the state is that before it.
        """
        if (timeout := self.timeout) is None:
            return self.engine.step(feeds, kind, check)
        end = monotonic() + timeout

        def check_time(outputs: Arrays) -> None:
            """Refuse a step that ended too late, as short steps do that cannot be interrupted."""
            if monotonic() > end:
                raise DeadlineError(f"The run was not over after {timeout:g} s, the timeout.")
            if check is not None:
                check(outputs)

        with interruptible(self, timeout):
            return self.engine.step(feeds, kind, check_time)

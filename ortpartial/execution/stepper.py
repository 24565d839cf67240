"""Stepper: single steps of a training whose loop is the caller's, by an engine that was asked for, in time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable
from time import monotonic

import numpy as np

from ortpartial.checks import check_flag
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DeadlineError

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
    raise_on_divergence : bool
        Whether a step that the check of its caller finds diverged is an error, or else a warning.

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

    def __init__(self, source: StepSource, engine: str, engines: Collection[str], timeout: float | None,
                 raise_on_divergence: bool = True):
        kind, reason = select_for_memory(engine, select_for_steps(engine, source, engines), source)
        self.timeout = check_timeout(timeout)
        self.raise_on_divergence = check_flag("raise_on_divergence", raise_on_divergence)
        self.engine = kind(source)
        self.engine.reason = reason
        if isinstance(self.engine, NativeEngine):
            self.engine.compiles_calls = True

    def step(self, feeds: Arrays, kind: Hashable = None, check: Callable[[Arrays], object] | None = None, *,
             is_told: bool = False, ahead: bool = False) -> dict[str, np.ndarray]:
        """Take a step on a batch, as `StepRunner.step` does, within the timeout; a loop has divergences told by itself.

        Raises
        ------
        ConvergenceError
            `check` has raised it; the state is that before the step, as it is where this is a warning.
        DeadlineError
            It was not over in time; the state is that before it.
        """
        if self.raise_on_divergence or is_told or check is None:
            return self._step(feeds, kind, check, ahead)
        diverged: list[dict[str, np.ndarray]] = []

        def keep(outputs: Arrays) -> None:
            """Keep the results of a step that is not taken."""
            try:
                check(outputs)
            except ConvergenceError:
                diverged.append({n: np.array(a) for n, a in outputs.items()})
                raise

        try:
            return self._step(feeds, kind, keep, ahead)
        except ConvergenceError as e:
            warnings.warn(str(e), ConvergenceWarning, stacklevel=4)
            return diverged[0]

    def _step(self, feeds: Arrays, kind: Hashable, check: Callable[[Arrays], object] | None, ahead: bool
              ) -> dict[str, np.ndarray]:
        """Take a step within the timeout."""
        if (timeout := self.timeout) is None:
            return self.engine.step(feeds, kind, check, ahead=ahead)
        end = monotonic() + timeout

        def check_time(outputs: Arrays) -> None:
            """Refuse a step that ended too late, as short steps do that cannot be interrupted."""
            if monotonic() > end:
                raise DeadlineError(f"The run was not over after {timeout:g} s, the timeout.")
            if check is not None:
                check(outputs)

        with interruptible(self, timeout):
            return self.engine.step(feeds, kind, check_time, ahead=ahead)

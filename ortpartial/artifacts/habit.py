"""The habit of a training loop: whether a step of the optimizer follows each call of a module."""

from __future__ import annotations

__all__ = ["StepHabit"]

#: Steps in a row after which the next is expected.
_OFTEN = 2


class StepHabit:
    """How often in a row a step of the optimizer has followed a call of a module, for calls of two kinds.

    Gradients and update are then a single graph, of which `Optimizer.step` takes over the second half. Where gradients
    of several batches are added, the first call of a sum has no step after it, and later calls have one now and then.

    Examples
    --------
    >>> habit = StepHabit()
    >>> for _ in range(2):
    ...     habit.note_call(accumulates=False, updates=False)
    ...     habit.note_step()
    >>> habit.expects_step(accumulates=False), habit.expects_step(accumulates=True)
    (True, False)
    """

    def __init__(self) -> None:
        self._steps = {False: 0, True: 0}
        #: The kind of the last call, if no step has followed it yet.
        self._open: bool | None = None

    def expects_step(self, accumulates: bool) -> bool:
        """Whether a step is expected after a call.

        Parameters
        ----------
        accumulates : bool
            Whether the call adds to earlier gradients.

        Returns
        -------
        bool
        """
        return self._steps[accumulates] >= _OFTEN

    def note_call(self, accumulates: bool, updates: bool) -> None:
        """Note a call.

        Parameters
        ----------
        accumulates : bool
            Whether it adds to earlier gradients.
        updates : bool
            Whether it has taken a step itself.
        """
        if self._open is not None:
            self._steps[self._open] = 0
        self._open = None if updates else accumulates

    def note_step(self) -> None:
        """Note a step of the optimizer."""
        if self._open is not None:
            self._steps[self._open] += 1
            self._open = None

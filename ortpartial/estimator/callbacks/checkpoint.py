"""Checkpoint: write the state of a training to a folder, from which `fit` goes on if it is cut off."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from ortpartial.annotations import Estimator
from ortpartial.exceptions import SettingError
from ortpartial.execution import TaskContext, Trainer, add_checkpoint
from ortpartial.learning import check_integer, check_number

from .base import Callback, check_place

__all__ = ["Checkpoint"]

#: Seconds from one look at the clock, and for Ctrl-C, to the next.
_PERIOD = 0.2


class Checkpoint(Callback):
    """Write checkpoints to a folder, from which ``fit(X, y, resume=folder)`` goes on with a fit that was cut off.

    There is one when the training begins, after every `every` epochs, where `seconds` have passed since the last, also
    within an epoch, and when the training ends. Ctrl-C ends it after the batch that runs, with a checkpoint of there; a
    second Ctrl-C ends it at once. Where several processes train together, the first writes.

    Parameters
    ----------
    folder : path
        The folder, which is made if it is not there. It is for a single training.
    keep : int
        The number of checkpoints that stay in it, the newest.
    every : int or None
        Number of epochs between checkpoints; with None, none is written because an epoch is over.
    seconds : float, optional
        Seconds between checkpoints.

    Attributes
    ----------
    path_ : pathlib.Path or None
        The last file that was written.

    Raises
    ------
    SettingError
        A setting is out of range.
    OSError
        Raised by `fit` where a checkpoint cannot be written; the training until then is kept.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), max_iter=5, random_state=0,
    ...                                                 callbacks=[Checkpoint("run", keep=2)])
    >>> optimizer.fit(X, 3 * X, resume="run").n_iter_
    5
    >>> optimizer.set_params(max_iter=8).fit(X, 3 * X, resume="run").n_iter_
    8
    """

    #: Its checkpoints hold what all other callbacks have changed.
    is_called_last = True

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3, every: int | None = 1,
                 seconds: float | None = None):
        self.folder, self.keep, self.every, self.seconds = check_place("folder", folder), keep, every, seconds
        if Path(folder).is_file() or Path(folder).suffix == ".safetensors":
            raise SettingError(f"Checkpoint: folder is {str(folder)!r}, the name of a file; it writes several of them, "
                               f"give a folder.")
        check_integer(self, "keep", *([] if every is None else ["every"]), low=1)
        if seconds is not None:
            check_number(self, "seconds", low=0)
        self.path_: Path | None = None
        self._handler: Any = None
        self._batches, self._is_interrupted = 1, False
        self._written = self._looked = monotonic()

    @property
    def batches_between_calls(self) -> int:  # type: ignore[override]
        """After how many batches it looks whether it is time, a power of two that makes it some tenths of a second."""
        return self._batches

    def setup(self, estimator: Estimator, context: TaskContext) -> None:
        """Take over Ctrl-C, where nobody else has."""
        self._is_interrupted, self._handler = False, None
        self._written = self._looked = monotonic()
        if (threading.current_thread() is threading.main_thread()
                and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def on_fit_task_begin(self, estimator: Estimator, context: TaskContext) -> None:
        """Write the first checkpoint, so that a folder never leads back to a former training."""
        self._looked = monotonic()
        place = _find_trainer(estimator).loop.place
        if context.task_name == "epoch" and place.epoch == place.batches == 0:
            self._write(estimator)

    def on_fit_task_end(self, estimator: Estimator, context: TaskContext) -> bool:
        """Write a checkpoint if it is time, or after Ctrl-C."""
        loop = _find_trainer(estimator).loop
        place, now = loop.place, monotonic()
        is_due = self.seconds is not None and now - self._written >= self.seconds
        if context.task_name == "batches":
            self._adapt(now)
            if place.is_stopped:  # The epoch ends here.
                return False
        elif context.task_name == "epoch":
            is_over = place.is_stopped or place.epoch >= loop.settings.max_iter
            is_due = is_due or is_over or (self.every is not None and place.epoch % self.every == 0)
        else:
            return False
        if is_due or self._is_interrupted:
            self._write(estimator)
        if self._is_interrupted:
            raise KeyboardInterrupt(f"The training was interrupted after {place.epoch} epochs and {place.batches} "
                                    f"batches; fit(X, y, resume={str(self.folder)!r}) goes on from there.")
        return False

    def teardown(self, estimator: Estimator, context: TaskContext) -> None:
        """Give Ctrl-C back."""
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None

    def _write(self, estimator: Estimator) -> None:
        """Write a checkpoint."""
        with _find_trainer(estimator).capture() as state:
            self.path_ = add_checkpoint(state, self.folder, self.keep)
        self._written = self._looked = monotonic()

    def _adapt(self, now: float) -> None:
        """Look more or less often, by how long it has been since the last time."""
        period = _PERIOD if self.seconds is None else min(_PERIOD, self.seconds / 2)
        if now - self._looked < period / 2:
            self._batches *= 2
        elif now - self._looked > 2 * period and self._batches > 1:
            self._batches //= 2
        self._looked = now

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Note that the training is to end; the second time, end it."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        self._is_interrupted = True


def _find_trainer(estimator: object) -> Trainer:
    """The training of an optimizer, which an estimator of scikit-learn may compose, or of a module."""
    owner = getattr(estimator, "optimizer_", estimator)
    if not hasattr(owner, "trainer"):
        raise SettingError(f"Checkpoint writes the state of an optimizer of ortpartial, and a "
                           f"{type(estimator).__name__} has none.")
    return owner.trainer

"""Progress of a training: a bar on a terminal, a line for each epoch elsewhere, and the lines of the log."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread, get_ident
from types import TracebackType
from typing import TextIO

from ortpartial.exceptions import ConvergenceError, DeadlineError
from ortpartial.logs import logger, seconds_compiling
from ortpartial.texts import printable

__all__ = ["Bar", "Progress", "is_interactive"]

#: Seconds between two looks at the training, and until a compilation is reported.
_PERIOD, _LONG_COMPILATION = 0.2, 1.0

#: A narrow terminal cuts off the end.
_FORMAT = "{desc}{postfix} {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {rate_fmt}"
_FORMAT_WITHOUT_END = "{desc}{postfix}, {n_fmt} {units} in {elapsed}, {rate_fmt}"

#: Why a training ended, for errors that end it.
_ENDINGS: tuple[tuple[type[BaseException], str], ...] = (
    (KeyboardInterrupt, "interrupted"), (DeadlineError, "timeout"), (ConvergenceError, "loss not finite"))


class Progress:
    """A context that shows how far a training is, and at its end why it ended.

    The bar is drawn by a thread that looks at the training from time to time, so that it moves within an epoch and
    costs the steps nothing, however short they are.

    Parameters
    ----------
    read : callable
        Returns the number of batches taken so far, and the mean loss of the epoch that runs, None before its first
        step.
    is_shown : bool
        Whether anything is shown.
    is_logged : bool
        Whether the log is written.

    Attributes
    ----------
    ending : str
        Why the training ended, if not by an error.

    Examples
    --------
    >>> with Progress(lambda: (0, None)) as progress:  # doctest: +ELLIPSIS
    ...     progress.begin_epoch(1, 1, lambda: 10, verbose=2)
    ...     progress.end_epoch(lambda: {"loss": 0.25})
    epoch 1/1: loss=0.25, ... s
    training ended after 1 of 1 epochs: max_iter reached
    """

    def __init__(self, read: Callable[[], tuple[int, float | None]], is_shown: bool = True, is_logged: bool = True):
        self.read, self.is_shown, self.ending = read, is_shown, "max_iter reached"
        self._thread, self._first = get_ident(), read()[0]
        self._epoch = self._done = self._max_iter = self._verbose = self._over = 0
        self._total: int | None = None
        self._losses: dict[str, float] = {}
        self._start = self._epoch_start = time.monotonic()
        self._bar: Bar | None = None
        self._is_logged = is_logged and logger.isEnabledFor(logging.DEBUG)
        self._tells = is_logged
        self._is_followed = False

    def __enter__(self) -> Progress:
        return self

    def go_on(self, epoch: int, max_iter: int, batches: int, verbose: int) -> None:
        """Tell that a training goes on which was cut off.

        Parameters
        ----------
        epoch, max_iter : int
            The number of finished epochs, and the number of the last.
        batches : int
            Number of finished batches of the next.
        verbose : int
            As for `begin_epoch`.
        """
        self._done, self._max_iter, self._over = epoch, max_iter, batches
        self._verbose = verbose if self.is_shown else 0

    def begin_epoch(self, epoch: int, max_iter: int, count_steps: Callable[[], int | None], verbose: int) -> None:
        """Tell that an epoch begins.

        Parameters
        ----------
        epoch, max_iter : int
            Its number, from 1, and the number of the last.
        count_steps : callable
            Returns the number of batches of an epoch, None if it is not known; called where somebody follows.
        verbose : int
            1 for a bar, or lines where the output is no terminal; 2 for lines; 0 for neither.
        """
        self._verbose = verbose if self.is_shown else 0
        has_bar = self._verbose == 1 and is_interactive()
        if self._bar is not None and not has_bar:
            self._bar.close()
            self._bar = None
        self._epoch, self._max_iter = epoch, max_iter
        self._is_followed = bool(self._verbose) or self._is_logged
        if not self._is_followed:
            return
        steps = count_steps()
        self._total = None if steps is None else (
            self.read()[0] - self._first + steps * (max_iter - epoch + 1) - self._over)
        self._over = 0
        self._epoch_start = time.monotonic()
        if self._bar is None and has_bar:
            self._bar = Bar(self._look)

    def end_epoch(self, read_losses: Callable[[], Mapping[str, float]]) -> None:
        """Tell that the epoch has ended.

        Parameters
        ----------
        read_losses : callable
            Returns its losses by name; it is not called where nobody follows the training.
        """
        self._done = self._epoch
        if not self._is_followed:
            return
        self._losses = {printable(n): loss for n, loss in read_losses().items()}
        listed = "".join(f"{n}={loss:.4g}, " for n, loss in self._losses.items())
        line = f"epoch {self._epoch}/{self._max_iter}: {listed}{time.monotonic() - self._epoch_start:.3f} s"
        if self._is_logged:
            logger.debug(line)
        if self._verbose and self._bar is None:
            self._print(line)

    def _print(self, line: str) -> None:
        """Print a line: to stderr in place of a bar, to stdout where lines were asked for."""
        print(line, file=sys.stdout if self._verbose > 1 else sys.stderr, flush=True)

    def _look(self, remark: str = "") -> tuple[str, int, int | None, dict[str, float]]:
        """The state of the training: in words, its batches, all of them, and the losses."""
        taken, loss = self.read()
        losses = self._losses if loss is None or self._done == self._epoch else {**self._losses, "loss": loss}
        if not remark and seconds_compiling(self._thread) > _LONG_COMPILATION:
            remark = "compiling"
        text = f"epoch {self._epoch}/{self._max_iter}" + (f", {remark}" if remark else "")
        return text, taken - self._first, self._total, losses

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.ending = next((text for cls, text in _ENDINGS if isinstance(error, cls)), type(error).__name__)
        line = f"training ended after {self._done} of {self._max_iter} epochs: {self.ending}"
        if self._tells:
            logger.info("%s, %.2f s", line, time.monotonic() - self._start)
        if self._bar is not None:
            self._bar.close(self.ending)
        elif self._verbose:
            self._print(line)


class Bar:
    """A bar on a terminal, which a thread moves until it is closed.

    Parameters
    ----------
    look : callable
        From a remark to the text beside the bar, the steps taken, all of them if known, and the losses.
    unit, units : str
        The word for a step, and its plural.
    """

    def __init__(self, look: Callable[..., tuple[str, int, int | None, dict[str, float]]], unit: str = "batch",
                 units: str = "batches"):
        from tqdm import tqdm  # late: few programs show a bar

        self.look, self._without_end = look, _FORMAT_WITHOUT_END.replace("{units}", units)
        text, _, total, _ = look()
        # tqdm 4.70 writes nothing to a terminal that does not know its size, as under `script` and sometimes docker.
        has_width = _count_columns(sys.stderr) != 0
        self.tqdm = tqdm(total=total, desc=text, unit=unit, mininterval=0, miniters=0, dynamic_ncols=has_width,
                         ncols=None if has_width else 80, nrows=None if has_width else 24, file=sys.stderr,
                         bar_format=_FORMAT if total else self._without_end)
        self.is_over = Event()
        self.thread = Thread(target=self._watch, name="ortpartial progress", daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.is_over.wait(_PERIOD):
            self.tqdm.update(self._describe())

    def _describe(self, remark: str = "") -> int:
        """Set the text beside the bar; return the number of batches that it does not show yet."""
        text, taken, total, losses = self.look(remark)
        self.tqdm.total, self.tqdm.bar_format = total, _FORMAT if total else self._without_end
        self.tqdm.set_description_str(text, refresh=False)
        self.tqdm.set_postfix({n: f"{loss:.4g}" for n, loss in losses.items()}, refresh=False)
        return max(0, taken - self.tqdm.n)

    def close(self, remark: str = "") -> None:
        """Draw the bar a last time."""
        self.is_over.set()
        self.thread.join()
        self.tqdm.n += self._describe(remark)
        self.tqdm.close()


def _count_columns(stream: TextIO) -> int | None:
    """The width that a terminal states; None for a stream that is none, such as that of a notebook."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (AttributeError, OSError, ValueError):
        return None


def is_interactive() -> bool:
    """Whether text on stderr can be overwritten: on a terminal, and in a notebook.

    Returns
    -------
    bool
    """
    is_terminal = getattr(sys.stderr, "isatty", lambda: False)()
    return bool(is_terminal) or type(sys.stderr).__module__.startswith("ipykernel")

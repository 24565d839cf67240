"""Settings of a fit that no graph depends on, and checks of flags and counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortpartial.annotations import CallbackLike
from ortpartial.exceptions import SettingError

from .hooks import check_callbacks

__all__ = ["FitSettings", "check_count", "check_flag"]


@dataclass(frozen=True)
class FitSettings:
    """The settings of a fit that no graph depends on, validated.

    Attributes
    ----------
    max_iter : int
        Number of epochs.
    batch_size : int
        Number of rows of a step.
    shuffle : bool
        Whether every epoch has the rows in another order.
    init : str
        The first weights: those of the ``"model"``, or ``"random"`` ones.
    random_state : int, numpy.random.Generator or None
        What random numbers are drawn from.
    warm_start : bool
        Whether a fit goes on from the weights of the one before it.
    validation_every : float
        A share of `max_iter`, or a number of epochs from one validation to the next.
    callbacks : tuple
        Functions of the owner of the loop, and objects with hooks.
    timeout : float or None
        Seconds.
    verbose : int
        1 for a bar, 2 for lines.
    exc : bool
        Whether a loss that is not finite is an error, or else a warning.
    check : bool
        Whether the first step is compared with the model as it is written.

    Raises
    ------
    SettingError
        A setting is out of range; the message names it.
    """

    max_iter: int = 100
    batch_size: int = 10
    shuffle: bool = True
    init: str = "model"
    random_state: int | np.random.Generator | None = None
    warm_start: bool = False
    validation_every: float = 0.1
    callbacks: tuple[CallbackLike, ...] = ()
    timeout: float | None = None
    verbose: int = 0
    exc: bool = True
    check: bool = False

    def __post_init__(self) -> None:
        for name in ("shuffle", "warm_start", "exc", "check"):
            object.__setattr__(self, name, check_flag(name, getattr(self, name)))
        if self.init not in ("model", "random"):
            raise SettingError(f"init is 'model' or 'random', not {self.init!r}.")
        if not _is_positive(self.validation_every):
            raise SettingError(f"validation_every is a share of max_iter or a number of epochs, not "
                               f"{self.validation_every!r}.")
        if self.timeout is not None and not _is_positive(self.timeout):
            raise SettingError(f"timeout is None or a number of seconds above 0, not {self.timeout!r}.")
        if not isinstance(self.verbose, (int, np.integer, np.bool_)):
            raise SettingError(f"verbose is 0, 1 or 2, not {self.verbose!r}.")
        if not isinstance(self.callbacks, Iterable):
            raise SettingError(f"callbacks is a sequence of callbacks, not {self.callbacks!r}; give a list of them.")
        object.__setattr__(self, "callbacks", tuple(self.callbacks))
        check_callbacks(self.callbacks)
        try:
            np.random.default_rng(self.random_state)
        except (TypeError, ValueError):
            raise SettingError(
                f"random_state is None, a seed from 0 on or a Generator, not {self.random_state!r}.") from None
        for name in ("max_iter", "batch_size"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))

    @property
    def validation_period(self) -> int:
        """Number of epochs from one validation to the next."""
        share = self.validation_every if self.validation_every >= 1 else self.validation_every * self.max_iter
        return max(1, round(share))


def check_flag(name: str, value: object) -> bool:
    """Check a setting that is True or False.

    Parameters
    ----------
    name : str
        The name of the setting.
    value : object
        True or False, of Python or numpy, or 1 or 0.

    Returns
    -------
    bool

    Raises
    ------
    SettingError
        It is neither, such as the string "no", which is true in Python.
    """
    if isinstance(value, (bool, np.bool_, int)) and value in (0, 1):
        return bool(value)
    raise SettingError(f"{name} is True or False, not {value!r}.")


def check_count(name: str, number: Any) -> int:
    """Check a setting that is a whole number of at least 1.

    Parameters
    ----------
    name : str
        The name of the setting.
    number : object
        An integer of Python or numpy.

    Returns
    -------
    int

    Raises
    ------
    SettingError
        It is none, or less than 1.
    """
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        is_whole = isinstance(number, float) and number >= 1 and number.is_integer()
        hint = f"; did you mean {int(number)}?" if is_whole else "."
        raise SettingError(f"{name} is a whole number of at least 1, not {number!r}{hint}")
    return int(number)


def _is_positive(number: Any) -> bool:
    """Whether a value is a finite number above 0."""
    is_real = isinstance(number, (int, float, np.number)) and not isinstance(number, bool)
    return bool(is_real and 0 < number < np.inf)

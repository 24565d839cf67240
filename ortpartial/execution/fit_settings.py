"""Settings of a fit that no graph depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortpartial.annotations import CallbackLike, MetricLike
from ortpartial.checks import check_choice, check_count, check_flag, to_generator, to_number, to_tuple
from ortpartial.exceptions import SettingError
from ortpartial.learning import Metric, check_metrics, resolve_metric

from .hooks import check_callbacks
from .interruption import check_timeout

__all__ = ["FitSettings"]


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
        The first weights: of the ``"model"``, or ``"random"``.
    random_state : int, numpy.random.Generator or None
        The source of random numbers.
    warm_start : bool
        Whether a fit goes on from the weights of the fit before it.
    validation_every : float
        The number of epochs between validations, or, less than 1, that number as a share of `max_iter`.
    callbacks : tuple
        Functions of the owner of the loop, and objects with hooks.
    metrics : tuple of str, callable or Metric
        Metrics, computed beside the validation loss.
    timeout : float or None
        Seconds.
    verbose : int
        1 for a bar, 2 for lines.
    raise_on_divergence : bool
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
    validation_every: float = 1
    callbacks: tuple[CallbackLike, ...] = ()
    metrics: tuple[MetricLike, ...] = ()
    timeout: float | None = None
    verbose: int = 0
    raise_on_divergence: bool = True
    check: bool = False

    def __post_init__(self) -> None:
        for name in ("shuffle", "warm_start", "raise_on_divergence", "check"):
            object.__setattr__(self, name, check_flag(name, getattr(self, name)))
        check_choice("init", self.init, ("model", "random"))
        if to_number(self.validation_every, above=0) is None:
            raise SettingError(f"validation_every is a share of max_iter or a number of epochs, not "
                               f"{self.validation_every!r}.")
        check_timeout(self.timeout)
        if not isinstance(self.verbose, (int, np.integer, np.bool_)):
            raise SettingError(f"verbose is 0, 1 or 2, not {self.verbose!r}.")
        callbacks = to_tuple(self.callbacks)
        if callbacks is None:
            raise SettingError(f"callbacks is a sequence of callbacks, not {self.callbacks!r}; give a list of them.")
        object.__setattr__(self, "callbacks", callbacks)
        check_callbacks(self.callbacks)
        object.__setattr__(self, "metrics", check_metrics(self.metrics))
        to_generator("random_state", self.random_state)
        for name in ("max_iter", "batch_size"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))

    @property
    def validation_period(self) -> int:
        """Number of epochs between validations."""
        share = self.validation_every if self.validation_every >= 1 else self.validation_every * self.max_iter
        return max(1, round(share))

    def list_metrics(self, rows: str) -> list[Metric]:
        """The metrics of the ``"validation"`` data, or of the rows of the ``"training"``."""
        if not self.metrics:  # asked at every validation, and a small epoch takes microseconds
            return []
        return [metric for metric in map(resolve_metric, self.metrics) if metric.rows == rows]

"""Weight averaging: a running average of the weights beside them, exponential (EMA) or stochastic (SWA)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, cast, constant, op

from .piece import Piece, replace_settings
from .update import count_from, decay
from .validation import check_integer, check_number, resolve_piece

__all__ = ["ExponentialAverage", "StochasticWeightAverage", "WeightAverage", "check_average", "resolve_averaging"]


class WeightAverage(Piece):
    """a = (1 - r(k)) a + r(k) w: the average of a weight after update k, to which the weight adds the share r(k).

    A subclass defines ``share(self, k, start)``. Running statistics are not averaged: beside the averages stand the
    current statistics, as in ``torch.optim.swa_utils.AveragedModel``. An average has the dtype of its weight, and its
    denormal numbers become 0, as in optimizer states: see `BaseLearningRate`.

    Examples
    --------
    >>> class Latest(WeightAverage):
    ...     def share(self, k, start):
    ...         return constant(1.0, np.float64)
    >>> resolve_averaging(Latest()) == Latest()
    True
    """

    setting: ClassVar[str] = "averaging"

    @abstractmethod
    def share(self, k: Value, start: int) -> Value:
        """r(k), a float64 scalar from 0 to 1, which is 1 at the first update, k = start + 1."""

    def apply(self, a: Value, w: Value, k: Value, *, start: int = 0) -> Value:
        """The average after update k.

        Parameters
        ----------
        a, w : Value
            The average before the update, and the weight after it.
        k : Value
            The number of the update, from 1, an int64 scalar.
        start : int
            The number of the update after which averaging began.

        Returns
        -------
        Value
        """
        r = self.share(k, start)
        # Exact where r is 0 or 1, and from float64, where 1 - 0.999 is.
        return decay(cast(1 - r, a), a, k) + cast(r, a) * cast(w, a)

    def over(self, updates: int) -> WeightAverage:
        """The average in a training of so many updates: itself, unless a setting is a share of the training.

        Parameters
        ----------
        updates : int
            Number of updates of the whole training, at least 1.

        Returns
        -------
        WeightAverage
        """
        return self


@dataclass(frozen=True)
class ExponentialAverage(WeightAverage):
    """a = d a + (1 - d) w, where the first a is w: an exponential moving average (EMA).

    Parameters
    ----------
    decay : float
        d, at least 0 and less than 1: the average is about that of the last 1 / (1 - d) updates.

    References
    ----------
    B. T. Polyak and A. B. Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992, in the form of
    ``torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(d))``.

    Examples
    --------
    >>> ExponentialAverage()
    ExponentialAverage(decay=0.999)
    """

    decay: float = 0.999

    def __post_init__(self) -> None:
        check_number(self, "decay", low=0, below=1)

    def share(self, k: Value, start: int) -> Value:
        return op.Where(op.Equal(count_from(start, k), 1), constant(1.0, np.float64), 1 - self.decay)


@dataclass(frozen=True)
class StochasticWeightAverage(WeightAverage):
    """a = a + (w - a) / n after every m-th update beyond s, the n-th of them; before the first of them a = w (SWA).

    Parameters
    ----------
    start : float or int
        s, the number of updates that are not averaged: below 1 a share of the training, of the number of batches that
        `fit` is asked for, as for `CosineSchedule`; from 1 on their number.
    every : int
        m, the updates between averaged weights; the number of batches of an epoch averages the weights at the end of
        each epoch.

    References
    ----------
    P. Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, 2018, algorithm 1, in the
    form of ``torch.optim.swa_utils.AveragedModel``. The running statistics of a BatchNormalization remain the
    training's, where torch offers `update_bn`.

    Examples
    --------
    >>> StochasticWeightAverage().over(1000)
    StochasticWeightAverage(start=750, every=1)
    """

    start: float = 0.75
    every: int = 1

    def __post_init__(self) -> None:
        check_number(self, "start", low=0)
        if self.start >= 1:
            if self.start != int(self.start):
                raise SettingError(f"StochasticWeightAverage: start is {self.start!r}; a share of the training below "
                                   f"1, or a whole number of updates, was expected.")
            object.__setattr__(self, "start", int(self.start))
        check_integer(self, "every", low=1)

    def share(self, k: Value, start: int) -> Value:
        since = op.Max(k - max(int(self.start), start), 0)
        if self.every == 1:
            return 1 / op.Max(since, 1).astype(np.float64)
        share = 1 / op.Max(since / self.every, 1).astype(np.float64)
        return op.Where(op.Or(since < self.every, op.Equal(op.Mod(since, self.every), 0)), share, 0.0)

    def over(self, updates: int) -> WeightAverage:
        return replace_settings(self, start=int(self.start * updates)) if 0 < self.start < 1 else self


_NAMES: dict[str, type[WeightAverage]] = {"ema": ExponentialAverage, "swa": StochasticWeightAverage}


def resolve_averaging(averaging: WeightAverage | type[WeightAverage] | str | None) -> WeightAverage | None:
    """The averaging of the weights for "ema" or "swa", a class or an object.

    Parameters
    ----------
    averaging : WeightAverage, type, str or None
        The setting of the user.

    Returns
    -------
    WeightAverage or None

    Raises
    ------
    SettingError
        The name is unknown.

    Examples
    --------
    >>> resolve_averaging("ema")
    ExponentialAverage(decay=0.999)
    """
    return None if averaging is None else resolve_piece(WeightAverage, averaging, _NAMES)


def check_average(use_average: bool, averaging: WeightAverage | None) -> None:
    """Check that there is an average where it is to be used.

    Parameters
    ----------
    use_average : bool
        Whether predictions use averages.
    averaging : WeightAverage or None
        The averaging of the training.

    Raises
    ------
    SettingError
        There is none.
    """
    if use_average and averaging is None:
        raise SettingError("use_average=True takes the averages of the weights, and averaging is None; set it to "
                           "'ema' or 'swa' before the training.")

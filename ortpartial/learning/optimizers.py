"""Optimizers by name: pure updates of a weight and its state by a gradient."""

from __future__ import annotations

import numpy as np

from ortpartial.checks import check_real
from ortpartial.exceptions import SettingError
from ortpartial.texts import is_number

from . import adaptive_rates, layerwise_rates, momentum_rates
from .adaptive_rates import *  # noqa: F403 - a new optimizer is named once
from .adaptive_rates import LearningRateAdam, LearningRateAdamW
from .base import resolve_piece
from .base_rate import BaseLearningRate, WeightDecay
from .layerwise_rates import *  # noqa: F403
from .momentum_rates import *  # noqa: F403
from .momentum_rates import LearningRateSGD, LearningRateSGDNesterov

__all__ = ["BaseLearningRate", "WeightDecay", "resolve_rate"]
__all__ += adaptive_rates.__all__
__all__ += layerwise_rates.__all__
__all__ += momentum_rates.__all__

#: By short name, the usual first.
_NAMES: dict[str, type[BaseLearningRate]] = {
    "SGD": LearningRateSGD, "Nesterov": LearningRateSGDNesterov, "Adam": LearningRateAdam, "AdamW": LearningRateAdamW}
_NAMES |= {name.removeprefix("LearningRate"): vars(family)[name]
           for family in (adaptive_rates, layerwise_rates, momentum_rates) for name in family.__all__}


def resolve_rate(rate: BaseLearningRate | type[BaseLearningRate] | str | float) -> BaseLearningRate:
    """The optimizer for a name such as "Adam", a class or an object; SGD with this step size for a number.

    Parameters
    ----------
    rate : BaseLearningRate, type, str or float
        The setting of the user.

    Returns
    -------
    BaseLearningRate

    Raises
    ------
    SettingError
        The name is unknown, or the number out of range.

    Examples
    --------
    >>> resolve_rate(0.1)
    LearningRateSGD(eta0=0.1, schedule=ConstantSchedule(), weight_decay=0.0, no_decay=())
    """
    if isinstance(rate, (int, float, np.number)) and not isinstance(rate, bool):
        return LearningRateSGD(check_real("learning_rate", rate))
    if isinstance(rate, str) and is_number(rate):
        raise SettingError(f"learning_rate: {rate!r} is a string; did you mean the number {rate}?")
    return resolve_piece(BaseLearningRate, rate, _NAMES)

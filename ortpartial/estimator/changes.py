"""Changes of a training that runs: the settings that may change, and the update with which it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ortpartial.checks import check_flag
from ortpartial.exceptions import SettingError
from ortpartial.learning import resolve_averaging, resolve_clipping, resolve_penalty, resolve_rate

if TYPE_CHECKING:
    from ortpartial.learning import BaseLearningPenalty, BaseLearningRate, GradientClipping, WeightAverage
    from ortpartial.training import TrainingSpec

__all__ = ["UPDATE", "WEIGHTS", "check_lengths", "replace_update"]

#: Settings of the update, and from what is given to what it stands for.
UPDATE: Mapping[str, Callable[[Any], Any]] = {
    "learning_rate": resolve_rate, "learning_penalty": resolve_penalty, "gradient_clipping": resolve_clipping,
    "averaging": resolve_averaging, "use_average": partial(check_flag, "use_average")}

#: Settings that choose the weights to train, and the factors of their rates.
WEIGHTS = ("weights_to_train", "freeze", "rate_factors")


def replace_update(
    spec: TrainingSpec, batches: int, updates: int, learning_rate: BaseLearningRate,
    learning_penalty: BaseLearningPenalty, gradient_clipping: GradientClipping | None, averaging: WeightAverage | None,
) -> TrainingSpec:
    """The training with another update; an optimizer or average of another class starts with the next update.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    batches, updates : int
        Number of batches of all of it, 0 if it is not known, and of its updates so far.
    learning_rate, learning_penalty, gradient_clipping, averaging : object
        The update.

    Returns
    -------
    TrainingSpec
    """
    former, weight = spec.rate, spec.model.arrays[spec.weights[0]]
    # An error in a formula is better now than in the next step.
    for piece in (learning_rate.over(max(batches, 1)), learning_penalty):
        piece.build_onnx_function(dtype=weight.dtype, shape=weight.shape)
    is_kept = isinstance(learning_rate, type(former)) or isinstance(former, type(learning_rate))
    return replace(
        spec, rate=learning_rate, penalty=learning_penalty, gradient_clipping=gradient_clipping, averaging=averaging,
        rate_starts=spec.rate_starts if is_kept else dict.fromkeys(spec.weights, updates), batches=batches,
        average_start=spec.average_start if type(averaging) is type(spec.averaging) else updates)


def check_lengths(rate: BaseLearningRate, averaging: WeightAverage | None) -> None:
    """Refuse settings that last as long as a training of unknown length.

    Parameters
    ----------
    rate : BaseLearningRate
        The optimizer, with its schedule.
    averaging : WeightAverage or None
        The averaging of the training.

    Raises
    ------
    SettingError
        A setting does.
    """
    if rate.over(1) is not rate:
        raise SettingError(f"{rate.schedule!r} lasts as long as the training, and the data do not say how many "
                           f"batches they give; give the schedule their number n.")
    if averaging is not None and averaging.over(1) is not averaging:
        raise SettingError(f"{averaging!r} starts with a share of the training, and the data do not say how many "
                           f"batches they give; let it start with a number of updates.")

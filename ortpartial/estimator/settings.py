"""The settings of an optimizer by name and type, for fronts that pass them on: editors and type checkers know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from ortpartial.annotations import ArrayLike, CallbackLike, MetricLike, Settings
from ortpartial.autodiff import WeightSelection
from ortpartial.execution import DataParallel
from ortpartial.learning import BaseLearningPenalty, GradientClipping, RateLike, WeightAverage
from ortpartial.rewrites import LossScale
from ortpartial.runtime import DeviceName
from ortpartial.training import RateFactors

__all__ = ["EstimatorSettings", "OptimizerSettings"]


class OptimizerSettings(TypedDict, total=False):
    """The settings of `OrtGradientForwardBackwardOptimizer`, but for the weights and the loss."""

    learning_rate: RateLike
    learning_penalty: BaseLearningPenalty | str | None
    max_iter: int
    batch_size: int
    shuffle: bool
    init: str
    train_mode: bool | None
    precision: str | None
    loss_scale: float | LossScale | None
    random_state: int | np.random.Generator | None
    device: DeviceName
    engine: str
    warm_start: bool
    validation_every: float
    callbacks: Sequence[CallbackLike]
    metrics: Sequence[MetricLike]
    distributed: bool | DataParallel
    checkpointing: bool | str | Sequence[str] | None
    gradient_clipping: float | GradientClipping | None
    accumulate: int
    averaging: str | WeightAverage | None
    use_average: bool
    rate_factors: RateFactors | None
    freeze: str | Sequence[str]
    timeout: float | None
    verbose: int
    raise_on_divergence: bool
    check: bool


class EstimatorSettings(TypedDict, total=False):
    """The settings of estimators of scikit-learn, but for the model and the loss."""

    hidden_layer_sizes: int | ArrayLike | None
    activation: str
    dropout: float
    alpha: float
    penalty: BaseLearningPenalty | str | None
    learning_rate: RateLike
    learning_rate_init: float | None
    batch_size: int | str
    max_iter: int
    shuffle: bool
    random_state: int | np.random.RandomState | None
    tol: float
    n_iter_no_change: float
    early_stopping: bool
    validation_fraction: float
    warm_start: bool
    verbose: bool | int
    weights_to_train: WeightSelection | None
    dtype: str
    device: DeviceName
    engine: str
    callbacks: Sequence[CallbackLike]
    metrics: Sequence[MetricLike]
    settings: Settings | None

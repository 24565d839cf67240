"""Losses, penalties, optimizers, schedules and initializers: settings become formulas."""

from .aliases import NamedSettings, check_keywords, describe_unknown, suggest
from .averaging import ExponentialAverage, StochasticWeightAverage, WeightAverage, resolve_averaging
from .base import BaseLearningOnnx, check_number, mean_rows, resolve_piece, weighted_mean, weighted_sums
from .base_loss import RowCosts
from .clipping import GradientClipping, resolve_clipping
from .fingerprint import fingerprint, list_attributes, list_held
from .former_names import FormerAttributes, accept_former_names, refuse_former_names
from .function_loss import FunctionLearningLoss
from .initializers import draw_weights, glorot_bounds
from .last_activation import find_last_activation, is_normalization
from .layerwise_decay import LayerwiseDecay
from .losses import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    ElasticLearningLoss,
    FocalLearningLoss,
    HingeLearningLoss,
    HuberLearningLoss,
    NegLogLearningLoss,
    NextTokenLearningLoss,
    PoissonLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
    SquareLearningLoss,
    resolve_loss,
)
from .optimizers import (
    BaseLearningRate,
    LearningRateAdafactor,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
    WeightDecay,
    resolve_rate,
)
from .penalties import BaseLearningPenalty, ElasticLearningPenalty, NoLearningPenalty, resolve_penalty
from .piece import Piece, is_settled, list_settings, replace_settings
from .schedules import (
    ConstantSchedule,
    CosineRestartsSchedule,
    CosineSchedule,
    InvScalingSchedule,
    OneCycleSchedule,
    OptimalSchedule,
    PolynomialSchedule,
    ReduceOnPlateauSchedule,
    Schedule,
    StepSchedule,
    WarmUpSchedule,
    resolve_schedule,
)
from .update import count_from, decay, descend, drop_flushes, share_flushes
from .validation import check_integer

__all__ = ["AbsoluteLearningLoss", "BaseLearningLoss", "BaseLearningOnnx", "BaseLearningPenalty", "BaseLearningRate",
           "ConstantSchedule", "CosineRestartsSchedule", "CosineSchedule", "ElasticLearningLoss",
           "ElasticLearningPenalty", "ExponentialAverage", "FocalLearningLoss", "FormerAttributes",
           "FunctionLearningLoss", "GradientClipping", "HingeLearningLoss", "HuberLearningLoss", "InvScalingSchedule",
           "LayerwiseDecay", "LearningRateAdafactor", "LearningRateAdagrad", "LearningRateAdam", "LearningRateAdamW",
           "LearningRateLAMB", "LearningRateLion", "LearningRateNAdam", "LearningRateRAdam", "LearningRateRMSProp",
           "LearningRateSGD", "LearningRateSGDNesterov", "NamedSettings", "NegLogLearningLoss",
           "NextTokenLearningLoss", "NoLearningPenalty", "OneCycleSchedule", "OptimalSchedule", "Piece",
           "PoissonLearningLoss", "PolynomialSchedule", "ReduceOnPlateauSchedule", "RowCosts", "Schedule",
           "SoftmaxCrossEntropyLearningLoss", "SoftmaxFocalLearningLoss", "SquareLearningLoss", "StepSchedule",
           "StochasticWeightAverage", "WarmUpSchedule", "WeightAverage", "WeightDecay", "accept_former_names",
           "check_integer", "check_keywords", "check_number", "count_from", "decay", "descend", "describe_unknown",
           "draw_weights", "drop_flushes", "find_last_activation", "fingerprint", "glorot_bounds", "is_normalization",
           "is_settled", "list_attributes", "list_held", "list_settings", "mean_rows", "refuse_former_names",
           "replace_settings", "resolve_averaging", "resolve_clipping", "resolve_loss", "resolve_penalty",
           "resolve_piece", "resolve_rate", "resolve_schedule", "share_flushes", "suggest", "weighted_mean",
           "weighted_sums"]

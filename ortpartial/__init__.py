"""Train any ONNX graph, or only a part of a model, on ONNX Runtime."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import learning_loss, learning_penalty, learning_rate, precision, schedule, subgraph  # noqa: F401 - public paths
from .autodiff import composed, elementwise, grad, gradient_model, no_gradient, vjp
from .exceptions import OrtPartialError
from .graph import Value, build, constant, op, stop_gradient, values, variable
from .learning import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    ConstantSchedule,
    CosineSchedule,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    HingeLearningLoss,
    HuberLearningLoss,
    InvScalingSchedule,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    NoLearningPenalty,
    OneCycleSchedule,
    OptimalSchedule,
    PoissonLearningLoss,
    Schedule,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
    StepSchedule,
    WarmUpSchedule,
)
from .model import load
from .rewrites import LossScale

if TYPE_CHECKING:
    from .estimator import OrtGradientForwardBackwardOptimizer
    from .torch import OnnxLayer as OnnxLayer
    from .training import OrtGradientForwardBackward
    from .training_info import (
        TrainingSession,
        check_training_info,
        lower_training_operators,
        lowered_step,
        strip_training_info,
        to_training_info,
    )

# Older pickles name this module without its room.
sys.modules[f"{__name__}.values"] = values

__version__ = "0.1.0"

__all__ = ["AbsoluteLearningLoss", "BaseLearningLoss", "BaseLearningPenalty", "BaseLearningRate", "ConstantSchedule",
           "CosineSchedule", "ElasticLearningLoss", "ElasticLearningPenalty", "HingeLearningLoss", "HuberLearningLoss",
           "InvScalingSchedule", "LearningRateAdagrad", "LearningRateAdam", "LearningRateAdamW",
           "LearningRateRMSProp", "LearningRateSGD", "LearningRateSGDNesterov", "LossScale", "NegLogLearningLoss",
           "NoLearningPenalty", "OneCycleSchedule", "OptimalSchedule", "OrtGradientForwardBackward",
           "OrtGradientForwardBackwardOptimizer", "OrtPartialError", "PoissonLearningLoss", "Schedule",
           "SoftmaxCrossEntropyLearningLoss", "SquareLearningLoss", "StepSchedule", "TrainingSession", "Value",
           "WarmUpSchedule", "build", "check_training_info", "composed", "constant", "elementwise", "grad",
           "gradient_model", "load", "lower_training_operators", "lowered_step", "no_gradient", "op", "stop_gradient",
           "strip_training_info", "to_training_info", "variable", "vjp"]

#: Names and modules that import onnxruntime, or torch (onnxruntime-training 1.19.2 does, too), which takes seconds:
#: they are imported on first use.
_LAZY = {
    "OnnxLayer": "torch",
    "OrtGradientForwardBackward": "training",
    "OrtGradientForwardBackwardOptimizer": "estimator",
    "TrainingSession": "training_info",
    "check_training_info": "training_info",
    "lower_training_operators": "training_info",
    "lowered_step": "training_info",
    "strip_training_info": "training_info",
    "to_training_info": "training_info",
}
_LAZY_MODULES = ("estimator", "optimizer", "runtime", "testing", "torch", "training", "training_info")


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return import_module(f".{name}", __name__)
    if name in _LAZY:
        value = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})

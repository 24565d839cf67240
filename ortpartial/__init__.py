"""Train any ONNX graph, or only a part of a model, on ONNX Runtime."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import (  # noqa: F401 - public paths
    artifacts,
    callbacks,
    learning_loss,
    learning_penalty,
    learning_rate,
    precision,
    schedule,
    subgraph,
)
from .adapters import add_dora, add_ia3, add_lora, load_adapter, merge, save_adapter, trainable_parameters
from .autodiff import composed, elementwise, grad, no_gradient, vjp
from .estimator import (
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    OutputLoss,
    PaddedBatches,
    add_loss_output,
    optimizer,
    pad_rows,
)
from .estimator.callbacks import (
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    GradientMonitor,
    LearningRateFinder,
    MLflow,
    ProgressBar,
    ReduceOnPlateau,
    TensorBoard,
    Timer,
    find_learning_rate,
)
from .exceptions import OrtPartialError
from .execution import DataParallel
from .graph import Value, build, constant, op, stop_gradient, values, variable
from .installation import get_optional
from .kits import TrainingKit, export_c, read_c_state, run_kit, write_kit
from .learning import (
    AbsoluteLearningLoss,
    Accumulation,
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    ConstantSchedule,
    CosineRestartsSchedule,
    CosineSchedule,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    ExponentialAverage,
    FocalLearningLoss,
    FunctionLearningLoss,
    GradientClipping,
    HingeLearningLoss,
    HuberLearningLoss,
    InvScalingSchedule,
    LayerwiseDecay,
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
    Metric,
    NegLogLearningLoss,
    NextTokenLearningLoss,
    NoLearningPenalty,
    OneCycleSchedule,
    OptimalSchedule,
    PoissonLearningLoss,
    PolynomialSchedule,
    ReduceOnPlateauSchedule,
    Schedule,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
    SquareLearningLoss,
    StepSchedule,
    StochasticWeightAverage,
    WarmUpSchedule,
    WeightAverage,
    WeightDecay,
    chain,
)
from .model import load
from .plots import plot_graph, plot_histograms, plot_learning_rate_finder, plot_losses, plot_metrics
from .rewrites import LossScale, gradient_model
from .training import OrtGradientForwardBackward
from .training_info import (
    TrainingSession,
    check_training_info,
    lower_training_operators,
    lowered_step,
    strip_training_info,
    to_training_info,
)

if TYPE_CHECKING:
    from .estimator import OnnxClassifier as OnnxClassifier
    from .estimator import OnnxRegressor as OnnxRegressor
    from .torch import OnnxLayer as OnnxLayer

# Older pickles name these two modules without their rooms.
sys.modules.update({f"{__name__}.optimizer": optimizer, f"{__name__}.values": values})

__version__ = "0.1.0"

__all__ = ["AbsoluteLearningLoss", "Accumulation", "BaseLearningLoss", "BaseLearningPenalty", "BaseLearningRate",
           "CSVLogger", "Callback", "Checkpoint", "ConstantSchedule", "CosineRestartsSchedule", "CosineSchedule",
           "DataParallel", "EarlyStopping", "ElasticLearningLoss", "ElasticLearningPenalty", "ExponentialAverage",
           "FocalLearningLoss", "FunctionLearningLoss", "GradientClipping", "GradientMonitor", "HingeLearningLoss",
           "HuberLearningLoss", "InvScalingSchedule", "LayerwiseDecay", "LearningRateAdafactor", "LearningRateAdagrad",
           "LearningRateAdam", "LearningRateAdamW", "LearningRateFinder", "LearningRateLAMB", "LearningRateLion",
           "LearningRateNAdam", "LearningRateRAdam", "LearningRateRMSProp", "LearningRateSGD",
           "LearningRateSGDNesterov", "LossScale", "MLflow", "Metric", "NegLogLearningLoss", "NextTokenLearningLoss",
           "NoLearningPenalty", "OneCycleSchedule", "OptimalSchedule", "OrtGradientForwardBackward",
           "OrtGradientForwardBackwardOptimizer", "OrtGradientOptimizer", "OrtPartialError", "OutputLoss",
           "PaddedBatches", "PoissonLearningLoss", "PolynomialSchedule", "ProgressBar", "ReduceOnPlateau",
           "ReduceOnPlateauSchedule", "Schedule", "SoftmaxCrossEntropyLearningLoss", "SoftmaxFocalLearningLoss",
           "SquareLearningLoss", "StepSchedule", "StochasticWeightAverage", "TensorBoard", "Timer", "TrainingKit",
           "TrainingSession", "Value", "WarmUpSchedule", "WeightAverage", "WeightDecay", "add_dora", "add_ia3",
           "add_lora", "add_loss_output", "build", "chain", "check_training_info", "composed", "constant",
           "elementwise", "export_c", "find_learning_rate", "grad", "gradient_model", "load", "load_adapter",
           "lower_training_operators", "lowered_step", "merge", "no_gradient", "op", "pad_rows", "plot_graph",
           "plot_histograms", "plot_learning_rate_finder", "plot_losses", "plot_metrics", "read_c_state", "run_kit",
           "save_adapter", "stop_gradient", "strip_training_info", "to_training_info", "trainable_parameters",
           "variable", "vjp", "write_kit"]

#: Names of optional parts, and where they are.
_ROOMS = {"OnnxClassifier": ".estimator.sklearn", "OnnxLayer": ".torch", "OnnxRegressor": ".estimator.sklearn"}


def __getattr__(name: str) -> Any:
    """Import rooms on first use: torch and scikit-learn are optional, and importing them takes seconds."""
    if name in ("nn", "torch"):
        return get_optional(lambda: import_module(f".{name}", __name__))
    if name in _ROOMS:
        return get_optional(lambda: getattr(import_module(_ROOMS[name], __name__), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, "nn", "torch"})

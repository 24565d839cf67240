"""Train any ONNX graph, or only a part of a model, on ONNX Runtime."""

import gc as _gc
import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING

# Nothing that an import makes is garbage: to look for it would take a fifth of the time.
_is_collecting = _gc.isenabled()
_gc.disable()
try:
    from . import (  # noqa: F401 - public paths
        callbacks,
        learning_loss,
        learning_penalty,
        learning_rate,
        precision,
        schedule,
        subgraph,
    )
    from .estimator import optimizer as _optimizer
    from .graph import values as _values
    from .installation import get_optional as _get_optional
finally:
    if _is_collecting:
        _gc.enable()

if _TYPE_CHECKING:
    from . import adapters as adapters
    from . import artifacts as artifacts
    from . import kits as kits
    from . import nn as nn
    from . import plots as plots
    from . import torch as torch
    from . import training_info as training_info
    from .adapters import add_dora, add_ia3, add_lora, load_adapter, merge, save_adapter
    from .adapters import trainable_parameters as trainable_parameters
    from .autodiff import composed, elementwise, grad, no_gradient, vjp
    from .autodiff import jvp as jvp
    from .derivatives import hessian_model, jacobian_model, jvp_model
    from .derivatives import hvp_model as hvp_model
    from .derivatives import vmap_model as vmap_model
    from .estimator import OnnxClassifier as OnnxClassifier
    from .estimator import OnnxRegressor as OnnxRegressor
    from .estimator import (
        OrtGradientForwardBackwardOptimizer,
        OrtGradientOptimizer,
        OutputLoss,
        PaddedBatches,
        add_loss_output,
        pad_rows,
    )
    from .estimator.callbacks import Callback as Callback
    from .estimator.callbacks import Checkpoint, EarlyStopping
    from .estimator.callbacks import CSVLogger as CSVLogger
    from .estimator.callbacks import GradientMonitor as GradientMonitor
    from .estimator.callbacks import LearningRateFinder as LearningRateFinder
    from .estimator.callbacks import MLflow as MLflow
    from .estimator.callbacks import ProgressBar as ProgressBar
    from .estimator.callbacks import ReduceOnPlateau as ReduceOnPlateau
    from .estimator.callbacks import TensorBoard as TensorBoard
    from .estimator.callbacks import Timer as Timer
    from .estimator.callbacks import find_learning_rate as find_learning_rate
    from .exceptions import OrtPartialError
    from .execution import DataParallel
    from .graph import Value, build, constant, op, stop_gradient, variable
    from .kits import TrainingKit, export_c, run_kit, write_kit
    from .kits import read_c_state as read_c_state
    from .learning import AbsoluteLearningLoss as AbsoluteLearningLoss
    from .learning import Accumulation as Accumulation
    from .learning import BaseLearningLoss as BaseLearningLoss
    from .learning import BaseLearningPenalty as BaseLearningPenalty
    from .learning import BaseLearningRate as BaseLearningRate
    from .learning import ConstantSchedule as ConstantSchedule
    from .learning import CosineRestartsSchedule as CosineRestartsSchedule
    from .learning import CosineSchedule as CosineSchedule
    from .learning import ElasticLearningLoss as ElasticLearningLoss
    from .learning import ElasticLearningPenalty as ElasticLearningPenalty
    from .learning import ExponentialAverage as ExponentialAverage
    from .learning import FocalLearningLoss as FocalLearningLoss
    from .learning import FunctionLearningLoss as FunctionLearningLoss
    from .learning import GradientClipping, Metric, chain
    from .learning import HingeLearningLoss as HingeLearningLoss
    from .learning import HuberLearningLoss as HuberLearningLoss
    from .learning import InvScalingSchedule as InvScalingSchedule
    from .learning import LayerwiseDecay as LayerwiseDecay
    from .learning import LearningRateAdafactor as LearningRateAdafactor
    from .learning import LearningRateAdagrad as LearningRateAdagrad
    from .learning import LearningRateAdam as LearningRateAdam
    from .learning import LearningRateAdamW as LearningRateAdamW
    from .learning import LearningRateLAMB as LearningRateLAMB
    from .learning import LearningRateLion as LearningRateLion
    from .learning import LearningRateNAdam as LearningRateNAdam
    from .learning import LearningRateRAdam as LearningRateRAdam
    from .learning import LearningRateRMSProp as LearningRateRMSProp
    from .learning import LearningRateSGD as LearningRateSGD
    from .learning import LearningRateSGDNesterov as LearningRateSGDNesterov
    from .learning import NegLogLearningLoss as NegLogLearningLoss
    from .learning import NextTokenLearningLoss as NextTokenLearningLoss
    from .learning import NoLearningPenalty as NoLearningPenalty
    from .learning import OneCycleSchedule as OneCycleSchedule
    from .learning import OptimalSchedule as OptimalSchedule
    from .learning import PoissonLearningLoss as PoissonLearningLoss
    from .learning import PolynomialSchedule as PolynomialSchedule
    from .learning import ReduceOnPlateauSchedule as ReduceOnPlateauSchedule
    from .learning import Schedule as Schedule
    from .learning import SoftmaxCrossEntropyLearningLoss as SoftmaxCrossEntropyLearningLoss
    from .learning import SoftmaxFocalLearningLoss as SoftmaxFocalLearningLoss
    from .learning import SquareLearningLoss as SquareLearningLoss
    from .learning import StepSchedule as StepSchedule
    from .learning import StochasticWeightAverage as StochasticWeightAverage
    from .learning import WarmUpSchedule as WarmUpSchedule
    from .learning import WeightAverage as WeightAverage
    from .learning import WeightDecay as WeightDecay
    from .model import load
    from .plots import plot_graph, plot_losses
    from .plots import plot_histograms as plot_histograms
    from .plots import plot_learning_rate_finder as plot_learning_rate_finder
    from .plots import plot_metrics as plot_metrics
    from .rewrites import LossScale, gradient_model
    from .torch import OnnxLayer as OnnxLayer
    from .training import OrtGradientForwardBackward
    from .training_info import TrainingSession, to_training_info
    from .training_info import check_training_info as check_training_info
    from .training_info import lower_training_operators as lower_training_operators
    from .training_info import lowered_step as lowered_step
    from .training_info import strip_training_info as strip_training_info

# Older pickles name these two modules without their rooms.
_sys.modules.update({f"{__name__}.optimizer": _optimizer, f"{__name__}.values": _values})

__version__ = "0.1.0"

#: The names that `dir` lists: front doors, notation, loaders and writers, and the base of all errors.
__all__ = ["Checkpoint", "DataParallel", "EarlyStopping", "GradientClipping", "LossScale", "Metric",
           "OrtGradientForwardBackward", "OrtGradientForwardBackwardOptimizer", "OrtGradientOptimizer",
           "OrtPartialError", "OutputLoss", "PaddedBatches", "TrainingKit", "TrainingSession", "Value", "add_dora",
           "add_ia3", "add_lora", "add_loss_output", "build", "chain", "composed", "constant", "elementwise",
           "export_c", "grad", "gradient_model", "hessian_model", "jacobian_model", "jvp_model",
           "load", "load_adapter", "merge", "nn", "no_gradient", "op", "pad_rows", "plot_graph", "plot_losses",
           "run_kit", "save_adapter", "stop_gradient", "to_training_info", "variable", "vjp", "write_kit"]
__all__ += ["OnnxClassifier", "OnnxRegressor"] * all(map(_find_spec, ("sklearn", "scipy")))

#: All names by the rooms that they are in. Names that are not in `__all__`, such as losses, optimizers and schedules,
#: are imported from here as well, and listed by their rooms.
_ROOMS = {name: room for room, names in {
    ".adapters": "add_dora add_ia3 add_lora load_adapter merge save_adapter trainable_parameters",
    ".autodiff": "composed elementwise grad jvp no_gradient vjp",
    ".derivatives": "hessian_model hvp_model jacobian_model jvp_model vmap_model",
    ".estimator": """
        OrtGradientForwardBackwardOptimizer OrtGradientOptimizer OutputLoss PaddedBatches add_loss_output
        pad_rows
    """,
    ".estimator.callbacks": """
        CSVLogger Callback Checkpoint EarlyStopping GradientMonitor LearningRateFinder MLflow ProgressBar
        ReduceOnPlateau TensorBoard Timer find_learning_rate
    """,
    ".exceptions": "OrtPartialError",
    ".execution": "DataParallel",
    ".graph": "Value build constant op stop_gradient variable",
    ".kits": "TrainingKit export_c read_c_state run_kit write_kit",
    ".learning": """
        AbsoluteLearningLoss Accumulation BaseLearningLoss BaseLearningPenalty BaseLearningRate
        ConstantSchedule CosineRestartsSchedule CosineSchedule ElasticLearningLoss ElasticLearningPenalty
        ExponentialAverage FocalLearningLoss FunctionLearningLoss GradientClipping HingeLearningLoss
        HuberLearningLoss InvScalingSchedule LayerwiseDecay LearningRateAdafactor LearningRateAdagrad
        LearningRateAdam LearningRateAdamW LearningRateLAMB LearningRateLion LearningRateNAdam
        LearningRateRAdam LearningRateRMSProp LearningRateSGD LearningRateSGDNesterov Metric
        NegLogLearningLoss NextTokenLearningLoss NoLearningPenalty OneCycleSchedule OptimalSchedule
        PoissonLearningLoss PolynomialSchedule ReduceOnPlateauSchedule Schedule
        SoftmaxCrossEntropyLearningLoss SoftmaxFocalLearningLoss SquareLearningLoss StepSchedule
        StochasticWeightAverage WarmUpSchedule WeightAverage WeightDecay chain
    """,
    ".model": "load",
    ".plots": "plot_graph plot_histograms plot_learning_rate_finder plot_losses plot_metrics",
    ".rewrites": "LossScale gradient_model",
    ".training": "OrtGradientForwardBackward",
    ".training_info": """
        TrainingSession check_training_info lower_training_operators lowered_step strip_training_info
        to_training_info
    """,
    ".estimator.sklearn": "OnnxClassifier OnnxRegressor",
    ".torch": "OnnxLayer",
}.items() for name in names.split()}


if not _TYPE_CHECKING:  # Type checkers know all names, and a typo is none of them.
    def __getattr__(name: str) -> object:
        """Import a name from its room on first use: torch and scikit-learn take seconds, others milliseconds."""
        if name in ("adapters", "artifacts", "kits", "nn", "plots", "torch", "training_info"):
            return _get_optional(lambda: _import_module(f".{name}", __name__))
        if name in _ROOMS:
            value = _get_optional(lambda: getattr(_import_module(_ROOMS[name], __name__), name))
            return globals().setdefault(name, value)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "OnnxClassifier", "OnnxRegressor", "OnnxLayer", "torch",
                   *(n for n in globals() if n.startswith("__"))})

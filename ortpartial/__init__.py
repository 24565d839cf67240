"""Train any ONNX graph, or only a part of a model, on ONNX Runtime."""

from importlib import import_module
from typing import Any

from . import rules  # noqa: F401  (rules register themselves, as do the operators of training_operators)
from .builder import build
from .exceptions import OrtPartialError
from .forward_backward import OrtGradientForwardBackward
from .gradient import composed, grad
from .gradient_model import gradient_model
from .graph import Value, constant, op, variable
from .model import load
from .optimizer import OrtGradientForwardBackwardOptimizer
from .registry import elementwise, no_gradient, vjp
from .training_info import check_training_info, lowered_step, strip_training_info, to_training_info
from .training_operators import lower_training_operators
from .training_session import TrainingSession

__version__ = "0.1.0"

__all__ = [
    "OrtGradientForwardBackward",
    "OrtGradientForwardBackwardOptimizer",
    "OrtPartialError",
    "TrainingSession",
    "Value",
    "build",
    "check_training_info",
    "composed",
    "constant",
    "elementwise",
    "grad",
    "gradient_model",
    "load",
    "lower_training_operators",
    "lowered_step",
    "no_gradient",
    "op",
    "strip_training_info",
    "to_training_info",
    "variable",
    "vjp",
]


def __getattr__(name: str) -> Any:
    """`ortpartial.torch` on first use: torch takes seconds to import, and most need none."""
    if name == "torch":
        return import_module(".torch", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Estimators that users fit: data, loop, predictions, state and settings around an engine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ortpartial.installation import get_optional

from .callbacks import Checkpoint, EarlyStopping
from .full_optimizer import OrtGradientOptimizer
from .loss_graph import add_loss_output
from .missing_values import find_nullable
from .optimizer import OrtGradientForwardBackwardOptimizer
from .output_loss import OutputLoss
from .outputs import ends_in_probabilities, explain_output, resolve_losses
from .padded_rows import PaddedBatches, pad_rows
from .validation import check_inputs

if TYPE_CHECKING:
    from .sklearn import OnnxClassifier as OnnxClassifier
    from .sklearn import OnnxRegressor as OnnxRegressor

__all__ = ["Checkpoint", "EarlyStopping", "OrtGradientForwardBackwardOptimizer", "OrtGradientOptimizer", "OutputLoss",
           "PaddedBatches", "add_loss_output", "check_inputs", "ends_in_probabilities", "explain_output",
           "find_nullable", "pad_rows", "resolve_losses"]


def __getattr__(name: str) -> Any:
    """Import the estimators of scikit-learn on first use: it is optional, and takes a second."""
    if name in ("OnnxClassifier", "OnnxRegressor"):
        return get_optional(lambda: getattr(import_module(".sklearn", __name__), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

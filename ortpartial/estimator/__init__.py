"""What users fit: data, loop, predictions, state and settings around an engine."""

from .optimizer import OrtGradientForwardBackwardOptimizer
from .outputs import explain_output

__all__ = ["OrtGradientForwardBackwardOptimizer", "explain_output"]

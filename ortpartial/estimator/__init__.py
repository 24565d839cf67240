"""What users fit: data, loop, predictions, state and settings around an engine."""

from .optimizer import OrtGradientForwardBackwardOptimizer

__all__ = [
    "OrtGradientForwardBackwardOptimizer",
]

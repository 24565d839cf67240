"""Operators of ai.onnx.ml, whose weights are attributes: read as standard operators, and written back."""

from .expansion import (
           ML_OPERATORS,
           compute_ml,
           expand,
           expand_ml,
           list_ml_outputs,
           list_preprocessing,
           read_ml_weights,
           write_ml_weights,
)

__all__ = ["ML_OPERATORS", "compute_ml", "expand", "expand_ml", "list_ml_outputs", "list_preprocessing",
           "read_ml_weights", "write_ml_weights"]

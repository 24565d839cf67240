"""Graph rewrites: the same values in other operators."""

from .checkpointing import checkpoint_gradient, recompute_cheap, resolve_checkpointing
from .lowering import downgrade_opset, lower
from .mixed_precision import LossScale, Precision, all_finite, resolve_precision, to_dtype, to_mixed_precision
from .peephole import apply_peepholes
from .simplify import simplify
from .train_mode import (
    DropoutMask,
    RunningStatistic,
    TrainingModel,
    find_moving_statistics,
    find_statistics,
    to_inference_mode,
    to_training_mode,
)

__all__ = [
    "DropoutMask",
    "LossScale",
    "Precision",
    "RunningStatistic",
    "TrainingModel",
    "all_finite",
    "apply_peepholes",
    "checkpoint_gradient",
    "downgrade_opset",
    "find_moving_statistics",
    "find_statistics",
    "lower",
    "recompute_cheap",
    "resolve_checkpointing",
    "resolve_precision",
    "simplify",
    "to_dtype",
    "to_inference_mode",
    "to_mixed_precision",
    "to_training_mode",
]

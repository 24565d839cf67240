"""Graph rewrites: the same values in other operators."""

from . import lowering
from .checkpointing import checkpoint_gradient, recompute_cheap, resolve_checkpointing
from .convolutions import BLOCKS, has_convolutions, write_convolutions
from .downgrade import downgrade_opset
from .gradient_model import gradient_model, select_tensors
from .lowering import *
from .mixed_precision import (
    LossScale,
    Precision,
    all_finite,
    lower_products,
    resolve_precision,
    round_products,
    to_dtype,
)
from .pipeline import prepare_training, rewrite_model, rewrite_step
from .protocol import REWRITES, RewriteReport, is_selected, select_rewrites
from .row_chunks import RowHead, find_row_head
from .train_mode import (
    DropoutMask,
    RunningStatistic,
    TrainingModel,
    choose_train_mode,
    find_mode_problems,
    find_moving_statistics,
    find_statistics,
    to_inference_mode,
)

__all__ = ["BLOCKS", "REWRITES", "DropoutMask", "LossScale", "Precision", "RewriteReport", "RowHead",
           "RunningStatistic", "TrainingModel", "all_finite", "checkpoint_gradient", "choose_train_mode",
           "downgrade_opset", "find_mode_problems", "find_moving_statistics", "find_row_head", "find_statistics",
           "gradient_model", "has_convolutions", "is_selected", "lower_products", "prepare_training", "recompute_cheap",
           "resolve_checkpointing", "resolve_precision", "rewrite_model", "rewrite_step", "round_products",
           "select_rewrites", "select_tensors", "to_dtype", "to_inference_mode", "write_convolutions"]
__all__ += lowering.__all__

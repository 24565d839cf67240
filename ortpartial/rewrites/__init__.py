"""Rewrites: a graph becomes an equal graph in other operators."""

from .checkpointing import cheaply, checkpointed, resolve_checkpointing
from .lowering import aged, lower
from .mixed_precision import LossScale, Precision, all_finite, in_precision, resolve_precision
from .peephole import faster
from .simplify import simplified
from .train_mode import Mask, Statistic, Training, in_dtype, in_inference, in_training, own_statistics, statistics

__all__ = [
    "LossScale",
    "Mask",
    "Precision",
    "Statistic",
    "Training",
    "aged",
    "all_finite",
    "cheaply",
    "checkpointed",
    "faster",
    "in_dtype",
    "in_inference",
    "in_precision",
    "in_training",
    "lower",
    "own_statistics",
    "resolve_checkpointing",
    "resolve_precision",
    "simplified",
    "statistics",
]

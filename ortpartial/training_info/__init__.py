"""The ONNX standard for training: a training stored in its model, checked, exported and executed."""

from .checker import check_training_info
from .export import TrainingSnapshot, to_training_info
from .graphs import lowered_step, strip_training_info
from .operators import lower_training_operators
from .session import TrainingSession

__all__ = [
    "TrainingSession",
    "TrainingSnapshot",
    "check_training_info",
    "lower_training_operators",
    "lowered_step",
    "strip_training_info",
    "to_training_info",
]

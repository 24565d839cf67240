"""Training information, the ONNX standard for training: export, check and run what a model stores of its training."""

from .checker import check_training_info
from .export import TrainingSnapshot, to_training_info
from .graphs import lowered_step, strip_training_info
from .operators import lower_training_operators
from .recognition import StoredTraining, recognize_training
from .session import TrainingSession

__all__ = ["StoredTraining", "TrainingSession", "TrainingSnapshot", "check_training_info", "lower_training_operators",
           "lowered_step", "recognize_training", "strip_training_info", "to_training_info"]

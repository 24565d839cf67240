"""Training information, the ONNX standard for training: export, check and run a training stored in a model."""

from .checker import check_training_info
from .epochs import train_epochs
from .export import TrainingSnapshot, declare_versions, to_training_info, upgrade_model
from .graphs import lowered_step, store_inputs, strip_training_info
from .labels import declare_labels, find_labels, read_labels
from .npz import open_arrays
from .operators import lower_training_operators
from .recognition import recognize_training
from .record import StoredTraining
from .rows import count_rows, read_rows, split_rows
from .session import TrainingSession, draw_initialization
from .steps import compose_step
from .tables import TABLES, read_table, write_table

__all__ = ["TABLES", "StoredTraining", "TrainingSession", "TrainingSnapshot", "check_training_info", "compose_step",
           "count_rows", "declare_labels", "declare_versions", "draw_initialization", "find_labels",
           "lower_training_operators", "lowered_step", "open_arrays", "read_labels", "read_rows", "read_table",
           "recognize_training", "split_rows", "store_inputs", "strip_training_info", "to_training_info",
           "train_epochs", "upgrade_model", "write_table"]

"""Training artifacts of onnxruntime: files of `onnxruntime.training.artifacts`, trained on any runtime."""

from .checkpoint import Checkpoint, OptimizerState, read_checkpoint, write_checkpoint
from .graphs import lower_training_model
from .module import LinearLRScheduler, Module, Optimizer, load
from .state import CheckpointState, Parameter, Parameters

__all__ = ["Checkpoint", "CheckpointState", "LinearLRScheduler", "Module", "Optimizer", "OptimizerState", "Parameter",
           "Parameters", "load", "lower_training_model", "read_checkpoint", "write_checkpoint"]

"""Training artifacts of onnxruntime: what `onnxruntime.training.artifacts` has written trains on, on any runtime."""

from .checkpoint import Checkpoint, OptimizerState, read_checkpoint, write_checkpoint
from .graphs import lower_training_model
from .module import LinearLRScheduler, Module, Optimizer, load
from .state import CheckpointState, Parameter, Parameters

__all__ = ["Checkpoint", "CheckpointState", "LinearLRScheduler", "Module", "Optimizer", "OptimizerState", "Parameter",
           "Parameters", "load", "lower_training_model", "read_checkpoint", "write_checkpoint"]

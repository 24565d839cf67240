"""Training kits: a training step, its state and a runner in a folder, trained wherever onnxruntime runs."""

from .manifest import Manifest, Tensor, read_manifest
from .runners import TARGETS
from .training_kit import TrainingKit, run_kit
from .writing import write_kit

__all__ = ["TARGETS", "Manifest", "Tensor", "TrainingKit", "read_manifest", "run_kit", "write_kit"]

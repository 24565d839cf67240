"""Training kits: a training step, its state and a runner in a folder, trained wherever onnxruntime runs."""

from .c_export import export_c, read_c_state
from .manifest import Manifest, Tensor, read_manifest
from .runners import TARGETS
from .training_kit import TrainingKit, run_kit
from .writing import write_kit

__all__ = ["TARGETS", "Manifest", "Tensor", "TrainingKit", "export_c", "read_c_state", "read_manifest", "run_kit",
           "write_kit"]

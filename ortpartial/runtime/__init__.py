"""Graphs run in onnxruntime, which no other room imports: a model and arrays become arrays."""

from . import type_finder  # noqa: F401  (it registers itself)
from .adapter_file import check_adapter_files, has_adapter_files, read_adapter_file, write_adapter_file
from .agent_support import TRUSTED, find_untrusted
from .buffer import Buffer, as_numpy
from .device import CPU, C, Device, DeviceName, cores, has_training, runtime_version
from .execution_providers import NodePlacement
from .fair_lock import FairLock
from .interrupt import Interrupt
from .kernels import compute_node
from .ort_types import OrtValue
from .process_group import ProcessGroup, connect_processes
from .session import Binding, Session
from .session_options import OPTIMIZERS, session_options
from .threads import choose_threads
from .training_agent import TrainingAgent, TypedOrtValue
from .upgrade_check import compare_with_file, largest_difference

__all__ = ["CPU", "OPTIMIZERS", "TRUSTED", "Binding", "Buffer", "C", "Device", "DeviceName", "FairLock", "Interrupt",
           "NodePlacement", "OrtValue", "ProcessGroup", "Session", "TrainingAgent", "TypedOrtValue", "as_numpy",
           "check_adapter_files", "choose_threads", "compare_with_file", "compute_node", "connect_processes", "cores",
           "find_untrusted", "has_adapter_files", "has_training", "largest_difference", "read_adapter_file",
           "runtime_version", "session_options", "write_adapter_file"]

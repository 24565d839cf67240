"""The only room that knows onnxruntime: a model and arrays become arrays."""

from .agent_support import TRUSTED, untrusted
from .buffer import Buffer, as_numpy
from .device import CPU, C, Device, cores, has_training, runtime_version
from .interrupt import Watch
from .process_group import Group
from .session import Binding, Session
from .session_options import session_options
from .threads import threads
from .training_agent import Agent, Fed

__all__ = [
    "CPU",
    "TRUSTED",
    "Agent",
    "Binding",
    "Buffer",
    "C",
    "Device",
    "Fed",
    "Group",
    "Session",
    "Watch",
    "as_numpy",
    "cores",
    "has_training",
    "runtime_version",
    "session_options",
    "threads",
    "untrusted",
]

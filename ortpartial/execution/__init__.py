"""Execution: the step of a training as an expression, and the engines that run it, at every door."""

from .epoch import epoch_graph
from .epoch_engine import EpochEngine
from .mean import WeightedMean
from .names import StepNames
from .native_engine import NativeEngine, write_step
from .program import Program, RunLocal, bind, directions
from .runner import ProgramKey, StepRunner, is_symbolic
from .selection import MANY_STEPS, register_engine, select_for_device, select_for_fit, select_for_length
from .shape_policy import ShapePolicy
from .shared_sessions import shared_sessions
from .step import Arrays, Shapes, Step, StepSource
from .step_engine import StepEngine
from .vectors import Vector

__all__ = ["MANY_STEPS", "Arrays", "EpochEngine", "NativeEngine", "Program", "ProgramKey", "RunLocal", "ShapePolicy",
           "Shapes", "Step", "StepEngine", "StepNames", "StepRunner", "StepSource", "Vector", "WeightedMean", "bind",
           "directions", "epoch_graph", "is_symbolic", "register_engine", "select_for_device", "select_for_fit",
           "select_for_length", "shared_sessions", "write_step"]

"""Execution: the step of a training as an expression, the engines that run it, and the loop, at every door."""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

from . import checkpoint, exchange, selection
from .batches import count_batches, is_batches
from .checkpoint import *
from .checkpoint_form import check_form, rebuild_generator
from .door import Batch, Door
from .epoch import epoch_graph
from .epoch_engine import EpochEngine
from .exchange import *
from .fit_data import choose_part
from .fit_position import FitPosition
from .fit_settings import FitSettings
from .foreign_data import refuse_batches, refuse_foreign
from .graph_source import GraphPart, GraphSource
from .held_rows import HeldRows
from .hooks import has_hooks
from .idle import IdleRunner
from .inplace_engine import InplaceEngine
from .interruption import interruptible
from .loop import HISTORY, Loop
from .mean import WeightedMean
from .names import StepNames
from .native_engine import NativeEngine, write_step
from .overrides import Overrides, find_overrides
from .prefetch import is_prefetching, prefetch
from .program import Program, RunLocal, bind, directions
from .progress import Bar, Progress, is_interactive
from .runner import ProgramKey, StepRunner, is_symbolic
from .selection import *
from .shape_policy import ShapePolicy
from .shared_sessions import shared_sessions
from .sparse_rows import SparseRows, wrap_sparse
from .step import Arrays, Exchanging, Shapes, Step, StepSource, fits
from .step_door import Means, StepDoor, describe_infinity, read_numbers
from .step_engine import StepEngine
from .stepper import EngineNames, Stepper
from .task_context import TaskContext
from .tasks import FitTasks, get_states, set_states
from .vectors import Vector
from .view import Trainer, TrainingView, draw_rows, view_training

for _module in _iter_modules(__path__):  # noqa: F405 - an engine registers its name.
    if _module.name.endswith("_engine"):
        _import_module(f"{__name__}.{_module.name}")

__all__ = ["HISTORY", "Arrays", "Bar", "Batch", "Door", "EngineNames", "EpochEngine", "Exchanging", "FitPosition",
           "FitSettings", "FitTasks", "GraphPart", "GraphSource", "HeldRows", "IdleRunner", "InplaceEngine", "Loop",
           "Means", "NativeEngine", "Overrides", "Program", "ProgramKey", "Progress", "RunLocal", "ShapePolicy",
           "Shapes", "SparseRows", "Step", "StepDoor", "StepEngine", "StepNames", "StepRunner", "StepSource", "Stepper",
           "TaskContext", "Trainer", "TrainingView", "Vector", "WeightedMean", "bind", "check_form", "choose_part",
           "count_batches", "describe_infinity", "directions", "draw_rows", "epoch_graph", "find_overrides", "fits",
           "get_states", "has_hooks", "interruptible", "is_batches", "is_interactive", "is_prefetching", "is_symbolic",
           "prefetch", "read_numbers", "rebuild_generator", "refuse_batches", "refuse_foreign", "set_states",
           "shared_sessions", "view_training", "wrap_sparse", "write_step"]
__all__ += [*checkpoint.__all__, *exchange.__all__, *selection.__all__]

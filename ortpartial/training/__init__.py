"""Training: how a step is composed, and the engines that run it."""

from .cuda_graph_engine import select_for_device
from .data_parallel_engine import DataParallelEngine
from .engine import Engine
from .engine_selection import select_for_backward, select_for_fit
from .forward_backward import OrtGradientForwardBackward
from .gradient_cut import GradientCut, GraphFunction
from .inplace_engine import InplaceEngine, prefers_inplace
from .names import Names
from .spec import TrainingSpec
from .split_graphs import forward_graph, row_loss_graph
from .step import step_values

__all__ = [
    "DataParallelEngine",
    "Engine",
    "GradientCut",
    "GraphFunction",
    "InplaceEngine",
    "Names",
    "OrtGradientForwardBackward",
    "TrainingSpec",
    "forward_graph",
    "prefers_inplace",
    "row_loss_graph",
    "select_for_backward",
    "select_for_device",
    "select_for_fit",
    "step_values",
]

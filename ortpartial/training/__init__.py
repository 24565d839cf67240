"""Training: how a step is composed, and the engines that run it."""

from .cuda_graph_engine import choose_for_device
from .data_parallel_engine import ParallelEngine
from .engine import Engine, Setup
from .engine_selection import choose_for_backward, choose_for_fit
from .forward_backward import OrtGradientForwardBackward
from .inplace_engine import LeanEngine, leaner
from .split_graphs import forward_graph, row_loss_graph
from .step import Names, step_values

__all__ = [
    "Engine",
    "LeanEngine",
    "Names",
    "OrtGradientForwardBackward",
    "ParallelEngine",
    "Setup",
    "choose_for_backward",
    "choose_for_device",
    "choose_for_fit",
    "forward_graph",
    "leaner",
    "row_loss_graph",
    "step_values",
]

"""Training: how a step is composed, and the engines that run it."""

from ortpartial.execution import (
    MANY_STEPS,
    ShapePolicy,
    WeightedMean,
    select_for_fit,
    select_for_length,
    shared_sessions,
)
from ortpartial.execution import StepRunner as Engine

from .counter_rng import draw_mask
from .engine_selection import select_engine, select_for_backward
from .forward_backward import OrtGradientForwardBackward
from .gradient_cut import GradientCut, GraphFunction
from .loss_output import LossOutput
from .names import Names
from .rate_factors import RateFactors, WeightDescription, describe_weights, resolve_rate_factors
from .rewrite_check import RewriteCheck, check_rewrites, differentiate_written
from .row_weights import count_elements, find_weighting, make_weights
from .source import SpecSource, spec_of
from .spec import ACCUMULATED, AVERAGE, TrainingSpec, forward_bytes, known_shape, list_states, program_bytes
from .split_graphs import forward_graph, loss_graph, row_loss_graph
from .state_choice import choose_state
from .step import gradient_graph, make_targets, mean_loss, scale_gradient, step_values
from .update import Update

__all__ = ["ACCUMULATED", "AVERAGE", "MANY_STEPS", "Engine", "GradientCut", "GraphFunction", "LossOutput", "Names",
           "OrtGradientForwardBackward", "RateFactors", "RewriteCheck", "ShapePolicy", "SpecSource", "TrainingSpec",
           "Update", "WeightDescription", "WeightedMean", "check_rewrites", "choose_state", "count_elements",
           "describe_weights", "differentiate_written", "draw_mask", "find_weighting", "forward_bytes", "forward_graph",
           "gradient_graph", "known_shape", "list_states", "loss_graph", "make_targets", "make_weights", "mean_loss",
           "program_bytes", "resolve_rate_factors", "row_loss_graph", "scale_gradient", "select_engine",
           "select_for_backward", "select_for_fit", "select_for_length", "shared_sessions", "spec_of", "step_values"]

"""Losses, penalties, optimizers, schedules and initializers: settings become formulas."""

from . import averaging, base, losses, optimizers, penalties, piece, schedules
from .adaptive_rates import *
from .aliases import CHOICES, NamedSettings, answer_keywords, check_keywords, describe_unknown, suggest
from .averaging import *
from .base import *
from .base_loss import RowCosts
from .class_targets import ClassWatch, are_classes, explain_classes, is_one_hot
from .clipping import GradientClipping, resolve_clipping
from .fingerprint import fingerprint, list_attributes, list_held
from .former_names import FormerAttributes, accept_former_names, accept_words, refuse_former_names, rename_settings
from .function_loss import FunctionLearningLoss
from .habits import (
    ESTIMATOR_HABITS,
    KIT_HABITS,
    MODULE_HABITS,
    OPTIMIZER_HABITS,
    PARAMETER_HABITS,
    SESSION_HABITS,
    UPDATE_HABITS,
    AnsweredAttributes,
    describe_layer,
)
from .initializers import draw_weights, glorot_bounds
from .last_activation import find_last_activation, is_normalization
from .layerwise_decay import LayerwiseDecay
from .layerwise_rates import *
from .losses import *
from .metrics import Metric, check_metrics, resolve_metric
from .momentum_rates import *
from .optimizers import *
from .penalties import *
from .piece import *
from .predictions import Meter, Prediction, guess_loss
from .schedules import *
from .update import apply_step, count_from, decay, drop_flushes, share_flushes
from .update_chain import Accumulation, Chain, RateLike, chain, expand_chain
from .validation import check_integer

__all__ = ["CHOICES", "ESTIMATOR_HABITS", "KIT_HABITS", "MODULE_HABITS", "OPTIMIZER_HABITS", "PARAMETER_HABITS",
           "SESSION_HABITS", "UPDATE_HABITS", "Accumulation", "AnsweredAttributes", "Chain", "ClassWatch",
           "FormerAttributes", "FunctionLearningLoss", "GradientClipping", "LayerwiseDecay", "Meter", "Metric",
           "NamedSettings", "Prediction", "RateLike", "RowCosts", "accept_former_names", "accept_words",
           "answer_keywords", "apply_step", "are_classes", "chain", "check_integer", "check_keywords", "check_metrics",
           "count_from", "decay", "describe_layer", "describe_unknown", "draw_weights", "drop_flushes", "expand_chain",
           "explain_classes", "find_last_activation", "fingerprint", "glorot_bounds", "guess_loss", "is_normalization",
           "is_one_hot", "list_attributes", "list_held", "refuse_former_names", "rename_settings", "resolve_clipping",
           "resolve_metric", "share_flushes", "suggest"]
__all__ += [*averaging.__all__, *base.__all__, *losses.__all__, *optimizers.__all__, *penalties.__all__,
            *piece.__all__, *schedules.__all__]

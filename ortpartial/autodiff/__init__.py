"""Reverse-mode automatic differentiation: the gradient of an expression is another expression."""

from . import rules  # noqa: F401  (rules register themselves)
from .grad import Gradient, backpropagate, composed, grad, nodes_between
from .gradient_model import gradient_model
from .registry import elementwise, gradient_support, has_rule, no_gradient, vjp
from .rules.channels import channels
from .rules.elementwise import normal_by_erf, normal_by_tanh
from .rules.indexing import one_of
from .rules.normalize import lrn
from .rules.recurrent import forwards
from .rules.reduction import elements
from .rules.shape import size, vector
from .rules.sliding import Window, columns, few, known
from .rules.window import cropped, padded, window_transposed
from .trainable import find_reached_weights, find_trainable, resolve_weights

__all__ = [
    "Gradient",
    "Window",
    "backpropagate",
    "channels",
    "columns",
    "composed",
    "cropped",
    "elements",
    "elementwise",
    "few",
    "find_reached_weights",
    "find_trainable",
    "forwards",
    "grad",
    "gradient_model",
    "gradient_support",
    "has_rule",
    "known",
    "lrn",
    "no_gradient",
    "nodes_between",
    "normal_by_erf",
    "normal_by_tanh",
    "one_of",
    "padded",
    "resolve_weights",
    "size",
    "vector",
    "vjp",
    "window_transposed",
]

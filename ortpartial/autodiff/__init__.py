"""Reverse-mode automatic differentiation: the gradient of an expression is another expression."""

from . import rules, trainable  # noqa: F401  (rules register themselves)
from .depth import find_depths
from .forward import jvp
from .grad import Gradient, backpropagate, composed, expand_composition, grad, nodes_between
from .ranges import set_unbounded
from .registry import elementwise, gradient_support, has_rule, no_gradient, vjp
from .rounding import check_rounding
from .rules.channels import broadcast_channels
from .rules.einsum import parse_equation
from .rules.elementwise import normal_cdf, normal_cdf_tanh
from .rules.indexing import find_single_slice
from .rules.normalize import expand_lrn
from .rules.recurrent import expand_recurrent
from .rules.reduction import count_elements
from .rules.sampling import expand_deform_conv
from .rules.shape import concat_sizes, slice_shape
from .rules.sliding import Window, has_few_windows, has_small_kernel, im2col, spatial_sizes
from .rules.window import crop, pad_input, read_transposed_window
from .trainable import *
from .weight_names import find_frozen, find_named, list_adapter

__all__ = [
    # Differentiation.
    "Gradient", "backpropagate", "check_rounding", "grad", "jvp", "nodes_between", "set_unbounded",
    # Rules.
    "composed", "elementwise", "expand_composition", "gradient_support", "has_rule", "no_gradient", "vjp",
    # Weights.
    "find_depths", "find_frozen", "find_named", "list_adapter", *trainable.__all__,
    # Formulas of rules that rewrites are written with, too.
    "Window", "broadcast_channels", "concat_sizes", "count_elements", "crop", "expand_deform_conv", "expand_lrn",
    "expand_recurrent", "find_single_slice", "has_few_windows", "has_small_kernel", "im2col", "normal_cdf",
    "normal_cdf_tanh", "pad_input", "parse_equation", "read_transposed_window", "slice_shape", "spatial_sizes",
]

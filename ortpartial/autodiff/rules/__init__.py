"""Differentiation rules of the operators, one family per module; importing the package registers them."""

from . import (
    channels,
    control,
    einsum,
    elementwise,
    gpu_operators,
    grouped_attention,
    indexing,
    linear,
    linear_attention,
    losses,
    microsoft,
    mixture,
    ml,
    normalize,
    packed_weights,
    quantization,
    recurrent,
    reduction,
    refusals,
    regions,
    resize,
    sampling,
    shape,
    spectral,
    window,
)

__all__ = ["channels", "control", "einsum", "elementwise", "gpu_operators", "grouped_attention", "indexing", "linear",
           "linear_attention", "losses", "microsoft", "mixture", "ml", "normalize", "packed_weights", "quantization",
           "recurrent", "reduction", "refusals", "regions", "resize", "sampling", "shape", "spectral", "window"]

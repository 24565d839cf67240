"""Differentiation rules of the operators, one family per module; importing the package registers them."""

from . import (
    channels,
    control,
    einsum,
    elementwise,
    indexing,
    linear,
    losses,
    microsoft,
    ml,
    normalize,
    quantization,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    shape,
    spectral,
    window,
)

__all__ = ["channels", "control", "einsum", "elementwise", "indexing", "linear", "losses", "microsoft", "ml",
           "normalize", "quantization", "recurrent", "reduction", "regions", "resize", "sampling", "shape", "spectral",
           "window"]

"""How do gradients flow through operators? One family a file; importing one registers its rules."""

from . import (
    channels,
    control,
    einsum,
    elementwise,
    indexing,
    linear,
    losses,
    microsoft,
    normalize,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    shape,
    window,
)

__all__ = [
    "channels",
    "control",
    "einsum",
    "elementwise",
    "indexing",
    "linear",
    "losses",
    "microsoft",
    "normalize",
    "recurrent",
    "reduction",
    "regions",
    "resize",
    "sampling",
    "shape",
    "window",
]

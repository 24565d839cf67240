"""How do gradients flow through operators? One family a file; importing one registers its rules."""

from . import (
    channels,
    einsum,
    elementwise,
    indexing,
    linear,
    losses,
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
    "einsum",
    "elementwise",
    "indexing",
    "linear",
    "losses",
    "normalize",
    "recurrent",
    "reduction",
    "regions",
    "resize",
    "sampling",
    "shape",
    "window",
]

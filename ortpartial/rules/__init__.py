"""How do gradients flow through operators? One family a file; importing one registers its rules."""

from . import channels, elementwise, indexing, linear, losses, normalize, reduction, resize, shape, window

__all__ = [
    "channels",
    "elementwise",
    "indexing",
    "linear",
    "losses",
    "normalize",
    "reduction",
    "resize",
    "shape",
    "window",
]

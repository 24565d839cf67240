"""How do gradients flow through operators? One family a file; importing one registers its rules."""

from . import channels, control, elementwise, indexing, linear, losses, normalize, reduction, resize, shape, window

__all__ = [
    "channels",
    "control",
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

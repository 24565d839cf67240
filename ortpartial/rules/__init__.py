"""How do gradients flow through operators? One family a file; importing one registers its rules."""

from . import elementwise, indexing, linear, normalize, reduction, shape, window

__all__ = ["elementwise", "indexing", "linear", "normalize", "reduction", "shape", "window"]

"""Layers, with the names, settings, parameters and first weights of torch."""

from .linear import Linear

__all__ = ["Linear"]

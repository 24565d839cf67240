"""Derivatives as models."""

from .batching import list_loops, vmap

__all__ = ["list_loops", "vmap"]

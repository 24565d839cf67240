"""Callbacks: objects that are told of the tasks of a fit, by the protocol of scikit-learn."""

from .checkpoint import Checkpoint

__all__ = ["Checkpoint"]

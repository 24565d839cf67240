"""Libraries before this one, under their own names."""

from . import onnxcustom as onnxcustom

__all__ = ["onnxcustom"]

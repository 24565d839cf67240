"""Operators of ai.onnx.ml, whose weights are attributes: read as standard operators, and written back."""

from .expansion import *
from .expansion import __all__ as __all__

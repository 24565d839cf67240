"""ONNX graphs as torch modules, and torch modules as ONNX graphs."""

from .module_export import export
from .onnx_layer import OnnxLayer

__all__ = [
    "OnnxLayer",
    "export",
]

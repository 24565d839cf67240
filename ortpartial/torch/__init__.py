"""ONNX graphs as torch modules."""

from .onnx_layer import OnnxLayer

__all__ = [
    "OnnxLayer",
]

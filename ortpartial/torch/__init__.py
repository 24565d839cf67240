"""An ONNX graph as a module of torch."""

from .onnx_layer import OnnxLayer

__all__ = [
    "OnnxLayer",
]

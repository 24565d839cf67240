"""Classes of the C++ bindings of onnxruntime, which have no types."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["OrtDevice", "OrtSession", "OrtValue", "OrtValues", "RunOptions", "SessionOptions"]

OrtDevice: TypeAlias = Any
OrtSession: TypeAlias = Any
OrtValue: TypeAlias = Any
OrtValues: TypeAlias = Any
RunOptions: TypeAlias = Any
SessionOptions: TypeAlias = Any

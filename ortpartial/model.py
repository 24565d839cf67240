"""What is in an ONNX file? `load` turns a ModelProto into values, its weights into values that can be inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, helper, inliner, numpy_helper, version_converter

from .exceptions import GraphError, ModelError
from .gradient import constant_of
from .graph import OPSET, Value, _newest, attribute_value, constant, make_node

__all__ = ["Model", "load", "read"]

"""Forms of settings: types for a model and a loss, which may be given in several forms."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from onnx import ModelProto

from ortpartial.graph import Value
from ortpartial.learning import BaseLearningLoss
from ortpartial.model import Model

__all__ = ["Loss", "ModelLike"]

#: A loss: its name, an object, or a function of prediction and target.
Loss: TypeAlias = str | BaseLearningLoss | Callable[[Value, Value], Value]

#: A model: as values, as a message, as the bytes of a file, or as the path of one.
ModelLike: TypeAlias = Model | ModelProto | bytes | str | os.PathLike[str]

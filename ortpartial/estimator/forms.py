"""Forms of settings: types for a model and a loss, which may be given in several forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ortpartial.graph import Value
from ortpartial.learning import BaseLearningLoss
from ortpartial.model import ModelLike

__all__ = ["Loss", "ModelLike"]

#: A loss: its name, an object, or a function of prediction and target.
Loss: TypeAlias = str | BaseLearningLoss | Callable[[Value, Value], Value]

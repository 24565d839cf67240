"""Models written in Python: modules, layers and initializers, traced into graphs that train."""

from ortpartial.learning import CHOICES as _CHOICES
from ortpartial.learning import describe_layer as _describe_layer

from . import layers
from .initializers import (
    Constant,
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    Initializer,
    LecunNormal,
    LecunUniform,
    Normal,
    Ones,
    Orthogonal,
    TruncatedNormal,
    Uniform,
    Zeros,
)
from .layers import *
from .losses import Loss
from .module import Module, placeholder
from .onnx_module import OnnxModule
from .optimizer import Optimizer
from .parameter import Buffer, Parameter
from .summary import Summary
from .trace import current_trace


def __getattr__(name: str) -> object:
    advice = _describe_layer(name, _CHOICES["learning_loss"])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{'; ' * bool(advice)}{advice}")


__all__ = ["Buffer", "Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Initializer", "LecunNormal",
           "LecunUniform", "Loss", "Module", "Normal", "Ones", "OnnxModule", "Optimizer", "Orthogonal", "Parameter",
           "Summary", "TruncatedNormal", "Uniform", "Zeros", "current_trace", "placeholder"]
__all__ += layers.__all__

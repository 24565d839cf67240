"""Models written in Python: modules, layers and initializers, traced into graphs that train."""

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
    list_fans,
    resolve_initializer,
)
from .layers import (
    GRU,
    LSTM,
    RNN,
    GRUCell,
    Linear,
    LSTMCell,
    MultiheadAttention,
    RNNCell,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from .losses import Loss
from .module import Module, placeholder
from .optimizer import Optimizer
from .parameter import Buffer, Parameter
from .summary import Summary
from .trace import current_trace

__all__ = ["GRU", "LSTM", "RNN", "Buffer", "Constant", "GRUCell", "GlorotNormal", "GlorotUniform", "HeNormal",
           "HeUniform", "Initializer", "LSTMCell", "LecunNormal", "LecunUniform", "Linear", "Loss", "Module",
           "MultiheadAttention", "Normal", "Ones", "Optimizer", "Orthogonal", "Parameter", "RNNCell", "Summary",
           "TransformerEncoder", "TransformerEncoderLayer", "TruncatedNormal", "Uniform", "Zeros", "current_trace",
           "list_fans", "placeholder", "resolve_initializer"]

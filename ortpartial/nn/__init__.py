"""Models written in Python: modules, layers and initializers, traced into graphs that train."""

from ortpartial.learning import CHOICES as _CHOICES
from ortpartial.learning import describe_layer as _describe_layer

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
from .layers import (
    CELU,
    ELU,
    GELU,
    GLU,
    GRU,
    LSTM,
    RNN,
    SELU,
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    Flatten,
    GroupNorm,
    GRUCell,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    Identity,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LeakyReLU,
    Linear,
    LogSigmoid,
    LogSoftmax,
    LSTMCell,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Mish,
    ModuleDict,
    ModuleList,
    MultiheadAttention,
    PReLU,
    ReLU,
    ReLU6,
    RMSNorm,
    RNNCell,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    Unflatten,
)
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


__all__ = ["CELU", "ELU", "GELU", "GLU", "GRU", "LSTM", "RNN", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
           "AvgPool1d", "AvgPool2d", "AvgPool3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Buffer", "Constant",
           "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Dropout",
           "Dropout1d", "Dropout2d", "Dropout3d", "Embedding", "Flatten", "GRUCell", "GlorotNormal", "GlorotUniform",
           "GroupNorm", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "HeNormal", "HeUniform", "Identity",
           "Initializer", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LSTMCell", "LayerNorm", "LeakyReLU",
           "LecunNormal", "LecunUniform", "Linear", "LogSigmoid", "LogSoftmax", "Loss", "MaxPool1d", "MaxPool2d",
           "MaxPool3d", "Mish", "Module", "ModuleDict", "ModuleList", "MultiheadAttention", "Normal", "Ones",
           "OnnxModule", "Optimizer", "Orthogonal", "PReLU", "Parameter", "RMSNorm", "RNNCell", "ReLU", "ReLU6",
           "Sequential", "SiLU", "Sigmoid", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink", "Softsign",
           "Summary", "Tanh", "Tanhshrink", "Threshold", "TransformerDecoder", "TransformerDecoderLayer",
           "TransformerEncoder", "TransformerEncoderLayer", "TruncatedNormal", "Unflatten", "Uniform", "Zeros",
           "current_trace", "placeholder"]

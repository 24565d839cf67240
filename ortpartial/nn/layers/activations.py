"""Activations: functions of each element, and of the elements along an axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.checks import check_choice
from ortpartial.docstrings import document
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Value, op

from ..parameter import Parameter
from ..trace import current_trace
from .layer import Layer
from .sizes import check_axes, check_size, get_size

__all__ = ["CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
           "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softmax2d",
           "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold"]


@dataclass(eq=False, repr=False)
class _InPlace(Layer):
    """A function of each element that takes torch's `inplace`.

    Parameters
    ----------
    inplace : bool
        Without effect: a graph has no memory that is overwritten.
    """

    inplace: bool = False


@document(_InPlace)
class ReLU(_InPlace):
    """max(x, 0).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.ReLU().compile(nn.placeholder(["N"]))(np.float32([-1, 2])).round(3).tolist()
    [0.0, 2.0]
    """

    def forward(self, x: Value) -> Value:
        return op.Relu(x)


@document(_InPlace)
class ReLU6(_InPlace):
    """min(max(x, 0), 6).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.ReLU6().compile(nn.placeholder(["N"]))(np.float32([-1, 8])).round(3).tolist()
    [0.0, 6.0]
    """

    def forward(self, x: Value) -> Value:
        trace = current_trace()
        if trace is None or not trace.training:
            return op.Clip(x, 0.0, 6.0)
        # At 0, Relu has the gradient 0, as in torch, and Clip the gradient 1.
        return op.Min(op.Relu(x), 6.0)


@document(_InPlace)
@dataclass(eq=False, repr=False)
class LeakyReLU(Layer):
    """x for x > 0, and x·negative_slope else.

    Parameters
    ----------
    negative_slope : float
        The slope below 0.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.LeakyReLU(0.5).compile(nn.placeholder(["N"]))(np.float32([-2, 2])).round(3).tolist()
    [-1.0, 2.0]
    """

    negative_slope: float = 0.01
    inplace: bool = False

    def forward(self, x: Value) -> Value:
        return op.LeakyRelu(x, alpha=float(self.negative_slope))


class PReLU(Layer):
    """x for x > 0, and x·weight else.

    Parameters
    ----------
    num_parameters : int
        1, or the number of channels, on axis 1 of x.
    init : float
        The first weight.
    dtype : numpy dtype or its name
        The element type of the weight.

    Attributes
    ----------
    weight : Parameter of shape (num_parameters,)
        The slope below 0.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.PReLU().compile(nn.placeholder(["N"]))(np.float32([-2, 2])).tolist()
    [-0.5, 2.0]
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: DTypeLike = "float32"):
        self.num_parameters = num_parameters
        self.weight = Parameter([num_parameters], init, dtype=dtype)

    def forward(self, x: Value) -> Value:
        if self.num_parameters == 1:
            return op.PRelu(x, self.weight)
        check_size(x, 1, self.num_parameters, "channels")
        slope = self.weight.value if x.rank == 2 else op.Unsqueeze(self.weight, list(range(1, x.rank - 1)))
        return op.PRelu(x, slope)


@document(_InPlace)
@dataclass(eq=False, repr=False)
class ELU(Layer):
    """x for x > 0, and alpha·(exp(x) - 1) else.

    Parameters
    ----------
    alpha : float
        -alpha is the limit below 0.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.ELU().compile(nn.placeholder(["N"]))(np.float32([-1, 1])).round(3).tolist()
    [-0.632, 1.0]
    """

    alpha: float = 1.0
    inplace: bool = False

    def forward(self, x: Value) -> Value:
        return op.Elu(x, alpha=float(self.alpha))


@document(_InPlace)
class SELU(_InPlace):
    """1.0507·x for x > 0, and 1.7581·(exp(x) - 1) else.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.SELU().compile(nn.placeholder(["N"]))(np.float32([-1, 1])).round(3).tolist()
    [-1.111, 1.051]
    """

    def forward(self, x: Value) -> Value:
        return op.Selu(x)


@document(_InPlace)
@dataclass(eq=False, repr=False)
class CELU(Layer):
    """x for x > 0, and alpha·(exp(x / alpha) - 1) else.

    Parameters
    ----------
    alpha : float
        -alpha is the limit below 0.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.CELU(2).compile(nn.placeholder(["N"]))(np.float32([-1, 1])).round(3).tolist()
    [-0.787, 1.0]
    """

    alpha: float = 1.0
    inplace: bool = False

    def forward(self, x: Value) -> Value:
        if x.dtype == np.float32:
            return op.Celu(x, alpha=float(self.alpha))
        return op.Elu(x / self.alpha) * self.alpha  # Celu is defined for float32 alone.


@dataclass(eq=False, repr=False)
class GELU(Layer):
    """x·Φ(x), with the distribution function Φ of N(0, 1).

    Parameters
    ----------
    approximate : {"none", "tanh"}
        ``"tanh"`` for x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.GELU().compile(nn.placeholder(["N"]))(np.float32([-1, 1])).round(3).tolist()
    [-0.159, 0.841]
    """

    approximate: str = "none"

    def __post_init__(self) -> None:
        check_choice("GELU: approximate", self.approximate, ("none", "tanh"))

    def forward(self, x: Value) -> Value:
        return op.Gelu(x, approximate=self.approximate)


@document(_InPlace)
class SiLU(_InPlace):
    """x·σ(x), with the logistic function σ.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.SiLU().compile(nn.placeholder(["N"]))(np.float32([-1, 1])).round(3).tolist()
    [-0.269, 0.731]
    """

    def forward(self, x: Value) -> Value:
        return x * op.Sigmoid(x)


@document(_InPlace)
class Mish(_InPlace):
    """x·tanh(log(1 + exp(x))).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Mish().compile(nn.placeholder(["N"]))(np.float32([-1, 1])).round(3).tolist()
    [-0.303, 0.865]
    """

    def forward(self, x: Value) -> Value:
        return op.Mish(x)


@dataclass(eq=False, repr=False)
class Sigmoid(Layer):
    """1 / (1 + exp(-x)).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Sigmoid().compile(nn.placeholder(["N"]))(np.float32([0, 2])).round(3).tolist()
    [0.5, 0.881]
    """

    def forward(self, x: Value) -> Value:
        return op.Sigmoid(x)


@dataclass(eq=False, repr=False)
class LogSigmoid(Layer):
    """-log(1 + exp(-x)).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.LogSigmoid().compile(nn.placeholder(["N"]))(np.float32([0, 2])).round(3).tolist()
    [-0.693, -0.127]
    """

    def forward(self, x: Value) -> Value:
        return -op.Softplus(-x)


@document(_InPlace)
class Hardsigmoid(_InPlace):
    """min(max(x / 6 + 1/2, 0), 1).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Hardsigmoid().compile(nn.placeholder(["N"]))(np.float32([-3, 0, 1.5])).round(3).tolist()
    [0.0, 0.5, 0.75]
    """

    def forward(self, x: Value) -> Value:
        return op.HardSigmoid(x, alpha=1 / 6, beta=0.5)


@document(_InPlace)
class Hardswish(_InPlace):
    """x·min(max(x / 6 + 1/2, 0), 1).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Hardswish().compile(nn.placeholder(["N"]))(np.float32([-3, 0, 3])).round(3).tolist()
    [-0.0, 0.0, 3.0]
    """

    def forward(self, x: Value) -> Value:
        return op.HardSwish(x)


@dataclass(eq=False, repr=False)
class Tanh(Layer):
    """tanh(x).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Tanh().compile(nn.placeholder(["N"]))(np.float32([0, 1])).round(3).tolist()
    [0.0, 0.762]
    """

    def forward(self, x: Value) -> Value:
        return op.Tanh(x)


@dataclass(eq=False, repr=False)
class Tanhshrink(Layer):
    """x - tanh(x).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Tanhshrink().compile(nn.placeholder(["N"]))(np.float32([0, 1])).round(3).tolist()
    [0.0, 0.238]
    """

    def forward(self, x: Value) -> Value:
        return x - op.Tanh(x)


@document(_InPlace)
@dataclass(eq=False, repr=False)
class Hardtanh(Layer):
    """min(max(x, min_val), max_val).

    Parameters
    ----------
    min_val : float
        The least value.
    max_val : float
        The largest value.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Hardtanh().compile(nn.placeholder(["N"]))(np.float32([-3, 0.5])).round(3).tolist()
    [-1.0, 0.5]
    """

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False

    def forward(self, x: Value) -> Value:
        return op.Clip(x, float(self.min_val), float(self.max_val))


@dataclass(eq=False, repr=False)
class Softplus(Layer):
    """log(1 + exp(beta·x)) / beta.

    Parameters
    ----------
    beta : float
        How sharp the bend at 0 is.
    threshold : float
        Where beta·x is larger, x itself is taken.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Softplus().compile(nn.placeholder(["N"]))(np.float32([0, 1])).round(3).tolist()
    [0.693, 1.313]
    """

    beta: float = 1.0
    threshold: float = 20.0

    def forward(self, x: Value) -> Value:
        y = op.Softplus(x) if self.beta == 1 else op.Softplus(x * self.beta) / self.beta
        return y if self.threshold >= 20 else op.Where(x * self.beta > self.threshold, x, y)


@dataclass(eq=False, repr=False)
class Softsign(Layer):
    """x / (1 + abs(x)).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Softsign().compile(nn.placeholder(["N"]))(np.float32([-1, 3])).round(3).tolist()
    [-0.5, 0.75]
    """

    def forward(self, x: Value) -> Value:
        return op.Softsign(x)


@dataclass(eq=False, repr=False)
class Softshrink(Layer):
    """x - lambd for x > lambd, x + lambd for x < -lambd, and 0 between.

    Parameters
    ----------
    lambd : float
        The bound.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Softshrink().compile(nn.placeholder(["N"]))(np.float32([-2, 0.25])).round(3).tolist()
    [-1.5, 0.0]
    """

    lambd: float = 0.5

    def forward(self, x: Value) -> Value:
        return op.Shrink(x, lambd=float(self.lambd), bias=float(self.lambd))


@dataclass(eq=False, repr=False)
class Hardshrink(Layer):
    """x for abs(x) > lambd, and 0 else.

    Parameters
    ----------
    lambd : float
        The bound.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Hardshrink().compile(nn.placeholder(["N"]))(np.float32([-2, 0.25])).round(3).tolist()
    [-2.0, 0.0]
    """

    lambd: float = 0.5

    def forward(self, x: Value) -> Value:
        return op.Shrink(x, lambd=float(self.lambd), bias=0.0)


@document(_InPlace)
@dataclass(eq=False, repr=False)
class Threshold(Layer):
    """x for x > threshold, and value else.

    Parameters
    ----------
    threshold : float
        The bound.
    value : float
        The number in place of elements below it.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Threshold(1, -1).compile(nn.placeholder(["N"]))(np.float32([0.5, 2])).round(3).tolist()
    [-1.0, 2.0]
    """

    threshold: float
    value: float
    inplace: bool = False

    def forward(self, x: Value) -> Value:
        return op.Where(x <= self.threshold, self.value, x)  # NaN stays NaN


@dataclass(eq=False, repr=False)
class _AlongAxis(Layer):
    """A function of the elements along an axis."""

    dim: int | None = None

    def __post_init__(self) -> None:
        if self.dim is None:
            raise SettingError(f"{type(self).__name__}: dim, the axis whose elements sum to 1, has no default; -1 is "
                               f"the last one.")


class Softmax(_AlongAxis):
    """exp(x) / Σ exp(x) along an axis.

    Parameters
    ----------
    dim : int
        The axis; torch's default, None, is not accepted.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Softmax(-1).compile(nn.placeholder(["N", 2]))(np.zeros((1, 2), np.float32)).tolist()
    [[0.5, 0.5]]
    """

    def forward(self, x: Value) -> Value:
        return op.Softmax(x, axis=self.dim)


class LogSoftmax(_AlongAxis):
    """x - log Σ exp(x) along an axis; see `Softmax`.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.LogSoftmax(-1).compile(nn.placeholder(["N", 2]))(np.float32([[0, 0]])).round(3).tolist()
    [[-0.693, -0.693]]
    """

    def forward(self, x: Value) -> Value:
        return op.LogSoftmax(x, axis=self.dim)


class Softmin(_AlongAxis):
    """exp(-x) / Σ exp(-x) along an axis; see `Softmax`.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.Softmin(-1).compile(nn.placeholder(["N", 2]))(np.float32([[0, 1]])).round(3).tolist()
    [[0.731, 0.269]]
    """

    def forward(self, x: Value) -> Value:
        return op.Softmax(-x, axis=self.dim)


@dataclass(eq=False, repr=False)
class Softmax2d(Layer):
    """The softmax along the channels of images (N, C, H, W).

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> layer = nn.Softmax2d().compile(nn.placeholder(["N", 2, 1, 1]))
    >>> layer(np.zeros((1, 2, 1, 1), np.float32)).ravel().tolist()
    [0.5, 0.5]
    """

    def forward(self, x: Value) -> Value:
        check_axes(x, "NCHW")
        return op.Softmax(x, axis=1)


@dataclass(eq=False, repr=False)
class GLU(Layer):
    """a·σ(b), where a and b are the halves of x and σ is the logistic function.

    Parameters
    ----------
    dim : int
        The axis that is halved.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> nn.GLU().compile(nn.placeholder(["N", 2]))(np.float32([[2, 0]])).round(3).tolist()
    [[1.0]]
    """

    dim: int = -1

    def forward(self, x: Value) -> Value:
        n = get_size(x, self.dim)
        if isinstance(n, int) and n % 2:
            raise GraphError(f"axis {self.dim} of x, {x.type_name}, has {n} elements, which cannot be halved.")
        a, b = op.Split(x, axis=self.dim, num_outputs=2)
        return a * op.Sigmoid(b)

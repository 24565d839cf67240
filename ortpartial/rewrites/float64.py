"""Formulas in operators that have a float64 kernel, for operators that have none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
from numpy.polynomial import chebyshev
from onnx import TensorProto

from ortpartial.autodiff import (
    broadcast_channels,
    concat_sizes,
    expand_deform_conv,
    expand_lrn,
    expand_recurrent,
    pad_input,
    slice_shape,
)
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, cast, constant, op

from .im2col import lower_average_pool, lower_col2im, lower_conv, lower_conv_transpose

__all__ = ["LOWERINGS", "WITHOUT_FLOAT64"]


def spatial_axes(x: Value) -> list[int]:
    """All axes but batch and channel."""
    return list(range(2, x.rank))


def lower_gelu(x: Value, *, approximate: str) -> Value:
    """x Φ(x)."""
    if approximate == "tanh":
        return 0.5 * x * (1 + op.Tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1 + op.Erf(math.sqrt(0.5) * x))


def lower_instance_normalization(x: Value, scale: Value, b: Value, *, epsilon: float) -> Value:
    """(x - mean) / √(variance + ε) · scale + b, by channel."""
    centered = x - op.ReduceMean(x, spatial_axes(x))
    k = broadcast_channels(scale, x) / op.Sqrt(op.ReduceMean(centered * centered, spatial_axes(x)) + epsilon)
    return centered * k + broadcast_channels(b, x)


Formula = Callable[..., "Value | Sequence[Value]"]

#: The Taylor series of erf(x) / x in x², for |x| < 1 to the last bit of float64.
_NEAR = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(18)]


def _scaled_erfc(t: float) -> float:
    """e^(x²) (1 - erf x) at the x from 1 to 6 for which t = (48 / (x + 2) - 11) / 5."""
    x = 48 / (5 * t + 11) - 2
    return math.exp(x * x) * math.erfc(x)


#: The polynomial in t that interpolates it at the Chebyshev points.
_FAR = chebyshev.cheb2poly(chebyshev.chebinterpolate(np.vectorize(_scaled_erfc), 14)).tolist()


def _evaluate_polynomial(coefficients: Sequence[float], x: Value) -> Value:
    """Horner's scheme."""
    *others, first = coefficients
    return reduce(lambda y, c: y * x + c, reversed(others), first)  # type: ignore[arg-type, return-value]


def lower_erf(x: Value) -> Value:
    """erf x with a relative error below 1e-15; it is 1 from 6 on."""
    a = op.Abs(x)
    clipped = op.Clip(a, 1.0, 6.0)
    near = x * _evaluate_polynomial(_NEAR, op.Min(a, 1.0) * op.Min(a, 1.0))
    far = op.Sign(x) * (1 - op.Exp(-(clipped * clipped)) * _evaluate_polynomial(_FAR, (48 / (clipped + 2) - 11) / 5))
    return op.Where(a < 1, near, far)


def lower_cos(x: Value) -> Value:
    """1 - 2 sin²(x / 2)."""
    s = op.Sin(0.5 * x)
    return 1 - 2 * (s * s)


def lower_sinh(x: Value) -> Value:
    """2t / (1 - t²) with t = tanh(x / 2), and (eˣ - e⁻ˣ) / 2 for large x, where t rounds to 1."""
    near = op.Clip(x, -1.0, 1.0)
    t = op.Tanh(0.5 * near)
    return op.Where(op.Abs(x) < 1, 2 * t / (1 - t * t), half_exp(x) - half_exp(-x))


def half_exp(x: Value) -> Value:
    """eˣ / 2, which overflows later than eˣ."""
    e = op.Exp(0.5 * x)
    return (0.5 * e) * e


def lower_hardmax(x: Value, *, axis: int) -> Value:
    """1 at the first of the largest elements, 0 elsewhere."""
    axis %= x.rank
    places = op.Range(0, op.Squeeze(slice_shape(x, axis, axis + 1), [0]), 1)
    places = op.Reshape(places, [-1 if i == axis else 1 for i in range(x.rank)])
    return cast(op.Equal(places, op.ArgMax(x, axis=axis)), x)


def lower_one_hot(indices: Value, depth: Value, values: Value, *, axis: int) -> Value:
    """OneHot of whole numbers, whose result chooses between two values."""
    whole = [op.Cast(v, to=TensorProto.INT64) for v in (indices, depth)]
    return op.Gather(values, op.OneHot(*whole, [0, 1], axis=axis))


def lower_lp_pool(x: Value, *, node: Node, p: int, ceil_mode: int) -> Value:
    """(Σ |x|ᵖ)^(1/p) over the elements under each window."""
    if ceil_mode:
        raise NoGradientError("A window may begin behind the image.")
    inside, window = pad_input(op.Abs(x) ** p, node)
    ones = constant(np.ones([1, 1, *window.kernel], x.dtype))
    images = op.Reshape(inside, concat_sizes(constant([-1, 1]), op.Shape(inside, start=2)))
    y = op.Conv(images, ones, strides=window.strides, dilations=window.dilations, pads=window.pads)
    return op.Reshape(y, concat_sizes(slice_shape(x, 0, 2), op.Shape(y, start=2))) ** (1 / p)


def lower_max_unpool(x: Value, places: Value, shape: Value | None = None, *, kernel_shape: Sequence[int],
                     strides: Sequence[int] | None, pads: Sequence[int] | None) -> Value:
    """Zeros with the elements of x at their places in the output."""
    r = x.rank - 2
    if shape is None:
        strides, pads = strides or [1] * r, pads or [0] * 2 * r
        rest = [k - s - a - b for k, s, a, b in zip(kernel_shape, strides, pads[:r], pads[r:], strict=True)]
        shape = concat_sizes(slice_shape(x, 0, 2), slice_shape(x, 2, x.rank) * constant(strides, np.int64) + rest)
    zeros = op.ConstantOfShape(op.ReduceProd(shape), value=np.zeros(1, x.dtype))
    return op.Reshape(op.ScatterElements(zeros, op.Reshape(places, [-1]), op.Reshape(x, [-1])), shape, allowzero=1)


def reduce_by(formula: Callable[..., Value]) -> Formula:
    """A reduction as a formula of the elements and of their sum."""

    def lower_reduction(x: Value, axes: Value | None = None, *, keepdims: int, noop_with_empty_axes: int) -> Value:
        if noop_with_empty_axes and (axes is None or axes.array is None or not axes.array.size):
            raise NoGradientError("There may be nothing to sum.")
        return formula(x, lambda v: op.ReduceSum(v, axes, keepdims=keepdims))

    return lower_reduction


def multiply(x: Value, total: Callable[[Value], Value]) -> Value:
    """e^(Σ log |x|), with the sign of an even or odd number of negative factors."""
    is_odd = op.Mod(total(op.Cast(x < 0, to=TensorProto.INT64)), 2)
    return (1 - 2 * cast(is_odd, x)) * op.Exp(total(op.Log(op.Abs(x))))


#: Operators without a float64 kernel in onnxruntime 1.19.2 or 1.32.0: the same function in operators that have such a
#: kernel.
LOWERINGS: dict[str, Formula] = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), expand_recurrent),
    "AveragePool": lower_average_pool,
    "Col2Im": lower_col2im,
    "Conv": lower_conv,
    "ConvTranspose": lower_conv_transpose,
    "Cos": lower_cos,
    "Cosh": lambda x: half_exp(x) + half_exp(-x),
    "DeformConv": expand_deform_conv,
    "Elu": lambda x, *, alpha: op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1),
    "Erf": lower_erf,
    "Gelu": lower_gelu,
    "GlobalAveragePool": lambda x: op.ReduceMean(x, spatial_axes(x)),
    "GlobalLpPool": lambda x, *, p: op.ReduceSum(op.Abs(x) ** p, spatial_axes(x)) ** (1 / p),
    "GlobalMaxPool": lambda x: op.ReduceMax(x, spatial_axes(x)),
    "HardSigmoid": lambda x, *, alpha, beta: op.Min(op.Max(alpha * x + beta, 0), 1),
    "HardSwish": lambda x: x * op.Min(op.Max(x / 6 + 0.5, 0), 1),
    "Hardmax": lower_hardmax,
    "InstanceNormalization": lower_instance_normalization,
    "LRN": expand_lrn,
    "LeakyRelu": lambda x, *, alpha: op.Max(x, 0) + alpha * op.Min(x, 0),
    "LpPool": lower_lp_pool,
    "MaxUnpool": lower_max_unpool,
    "Mean": lambda *x: op.Sum(*x) / len(x),
    "Mish": lambda x: x * op.Tanh(op.Softplus(x)),
    "NonZero": lambda x: op.NonZero(op.Cast(x, to=TensorProto.BOOL)),
    "OneHot": lower_one_hot,
    "PRelu": lambda x, slope: op.Max(x, 0) + slope * op.Min(x, 0),
    "ReduceL1": reduce_by(lambda x, total: total(op.Abs(x))),
    "ReduceL2": reduce_by(lambda x, total: op.Sqrt(total(x * x))),
    "ReduceLogSum": reduce_by(lambda x, total: op.Log(total(x))),
    "ReduceProd": reduce_by(multiply),
    "Selu": lambda x, *, alpha, gamma: gamma * (op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1)),
    "Sinh": lower_sinh,
    "Softplus": lambda x: op.Max(x, 0) + op.Log(1 + op.Exp(-op.Abs(x))),
    "Softsign": lambda x: x / (1 + op.Abs(x)),
    "Tan": lambda x: op.Sin(x) / lower_cos(x),
    "ThresholdedRelu": lambda x, *, alpha: op.Where(x > alpha, x, 0),
}

#: Operators that have neither a float64 kernel in any of these versions nor such a formula.
WITHOUT_FLOAT64 = frozenset({
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Bernoulli", "Det", "MaxRoiPool", "Multinomial", "Resize",
    "com.microsoft.GroupQueryAttention", "com.microsoft.MRotaryEmbedding", "com.microsoft.MatMulNBits",
    "com.microsoft.RotaryEmbedding",
})

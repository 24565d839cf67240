"""Gradients of elementwise operators."""

import math
from collections.abc import Callable
from functools import reduce
from operator import add

import numpy as np

from ortpartial.graph import VIEWS, Value, cast, op

from ..masks import divide, gate, scale
from ..ranges import at_least
from ..registry import elementwise, no_gradient, vjp

# Arithmetic.


@vjp("Add")
def _(a, b, *, dy):
    return dy, dy


@vjp("Sub")
def _(a, b, *, dy):
    return dy, -dy


@vjp("Mul")
def _(a, b, *, dy):
    return (2 * dy * a, None) if a is b else (multiply(dy, b), multiply(dy, a))


def multiply(dy: Value, factor: Value) -> Value:
    """dy · factor, in which a factor that is a mask selects, as in other gradients."""
    return scale(dy, factor) if is_mask(factor) else dy * factor


def is_mask(v: Value) -> bool:
    """Whether a value is a mask of 0 and 1: booleans as numbers, or 1 less them, in any shape."""
    while v.node is not None and v.node.op_type in VIEWS | {"Expand", "Sub"}:
        first, last = v.node.reads[0], v.node.reads[-1]
        if v.node.op_type == "Sub" and (first.array is None or not (first.array == 1).all()):
            return False
        v = last if v.node.op_type == "Sub" else first
    return v.node is not None and v.node.op_type == "Cast" and v.node.reads[0].dtype == bool


@vjp("Div")
def _(a, b, *, y, dy):
    da = dy / b
    return da, -(da * y)


@vjp("Neg")
def _(x, *, dy):
    return -dy


@vjp("Identity")
def _(x, *, dy):
    return dy


@vjp("Sum")
def _(*x, dy):
    return [dy] * len(x)


@vjp("Mean")
def _(*x, dy):
    return [dy / len(x)] * len(x)


@vjp("Mod")
def _(a, b, *, y, dy):
    return dy, dy * ((y - a) / b)


@vjp("Pow")
def _(a, b, *, y, dy):
    return dy * cast(b, y) * lower_power(a, b), cast(dy * y * log_of_base(a, b), b)


def lower_power(a: Value, b: Value) -> Value:
    """aᵇ⁻¹, and a⁰ where a = b = 0, so that the factor b makes the derivative 0 there and not 0 · ∞."""
    if b.array is None:
        return a ** (b - cast(op.Not(op.And(op.Equal(a, 0), op.Equal(b, 0))), b))
    less = b.array - (b.array != 0).astype(b.dtype)
    # Pow is slow, and the square is the power that models are full of.
    return a if np.all(less == 1) and less.ndim == 0 else a**less


def log_of_base(a: Value, b: Value) -> Value:
    """log a, and 0 where a = 0 and b ≥ 0, as the exponent does not move 0ᵇ."""
    return op.Log(a + cast(op.And(op.Equal(a, 0), b >= 0), a))


# Exponentials and their like.

elementwise("Exp", lambda x, y: y)
elementwise("Erf", lambda x, y: 2 / math.sqrt(math.pi) * op.Exp(-(x * x)))
elementwise("Tanh", lambda x, y: 1 - y * y)
elementwise("Sigmoid", lambda x, y: y * (1 - y))
elementwise("Softplus", lambda x, y: op.Sigmoid(x))
elementwise("Reciprocal", lambda x, y: -(y * y))


@vjp("Log")
def _(x, *, dy):
    return dy / x


@vjp("Sqrt")
def _(x, *, y, dy):
    return dy / (y + y)


@vjp("Softsign")
def _(x, *, dy):
    s = 1 + op.Abs(x)
    return dy / (s * s)


@vjp("Gelu")
def _(x, *, dy, approximate):
    return dy * (gelu_slope_tanh(x) if approximate == "tanh" else gelu_slope(x))


def normal_cdf(x: Value) -> Value:
    """Φ(x), the cumulative distribution function of the standard normal distribution."""
    return 0.5 + 0.5 * op.Erf(math.sqrt(0.5) * x)


def normal_cdf_tanh(x: Value) -> Value:
    """Φ(x) approximated by ½ (1 + tanh u), u = k (x + c x³)."""
    return 0.5 + 0.5 * op.Tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * (x * x)))


def gelu_slope(x: Value) -> Value:
    """Φ(x) + x φ(x), the derivative of x Φ(x); with u = x / √2 the density gives x φ(x) = u exp(-u² - log √π)."""
    u = math.sqrt(0.5) * x
    return normal_cdf(x) + u * op.Exp(-0.5 * math.log(math.pi) - u * u)


def gelu_slope_tanh(x: Value) -> Value:
    """The derivative of x p, where p = ½ (1 + tanh u) approximates Φ(x): p + x u' · 2 p (1 - p)."""
    k, c, p = math.sqrt(2 / math.pi), 0.044715, normal_cdf_tanh(x)
    return p + x * (p * (1 - p)) * (2 * k + 6 * k * c * (x * x))


# Trigonometry.

elementwise("Sin", lambda x, y: op.Cos(x))
elementwise("Cos", lambda x, y: -op.Sin(x))
elementwise("Tan", lambda x, y: 1 + y * y)
elementwise("Asin", lambda x, y: 1 / op.Sqrt(1 - x * x))
elementwise("Acos", lambda x, y: -1 / op.Sqrt(1 - x * x))
elementwise("Atan", lambda x, y: 1 / (1 + x * x))
elementwise("Sinh", lambda x, y: op.Cosh(x))
elementwise("Cosh", lambda x, y: op.Sinh(x))
elementwise("Asinh", lambda x, y: 1 / op.Sqrt(1 + x * x))
elementwise("Acosh", lambda x, y: 1 / op.Sqrt(x * x - 1))
elementwise("Atanh", lambda x, y: 1 / (1 - x * x))

# Piecewise.


@vjp("Relu")
def _(x, *, y, dy):
    return gate(dy, y > 0)


@vjp("Abs")
def _(x, *, dy):
    return scale(dy, op.Sign(x))


@vjp("LeakyRelu")
def _(x, *, dy, alpha):
    return scale(dy, alpha + (1 - alpha) * cast(x > 0, dy))


@vjp("Elu")
def _(x, *, y, dy, alpha):
    positive = cast(x > 0, dy)
    return dy * (positive + (1 - positive) * (y + alpha))


@vjp("Selu")
def _(x, *, y, dy, alpha, gamma):
    # The function body in the specification has exp(x) for x > 0 as well, where it overflows.
    positive = cast(x > 0, dy)
    return dy * (gamma * positive + (1 - positive) * (y + alpha * gamma))


@vjp("PRelu")
def _(x, slope, *, dy):
    positive = cast(x > 0, dy)
    return scale(dy, positive + (1 - positive) * slope), scale(dy, op.Min(x, 0))


@vjp("Celu")
def _(x, *, y, dy, alpha):
    return dy * (1 + op.Min(y, 0) / alpha)


@vjp("Shrink")
def _(x, *, dy, lambd):
    return gate(dy, op.Abs(x) > lambd)


@vjp("HardSigmoid")
def _(x, *, y, dy, alpha):
    return gate(alpha * dy, op.And(y > 0, y < 1))


@vjp("HardSwish")
def _(x, *, dy):
    h = op.HardSigmoid(x, alpha=1 / 6, beta=0.5)
    return scale(dy, h) + 1 / 6 * (gate(dy, op.And(h > 0, h < 1)) * x)


# Arguments are compared with each other and not with the output: on the CPU, onnxruntime (1.19.2 and 1.31.1 alike)
# computes much of float16 in float32, and would compare numbers before and after rounding.


@vjp("Clip")
def _(x, min=None, max=None, *, dy):
    # Clip is Min(Max(x, min), max), also where min is the larger bound.
    inside = [*([] if min is None else [x >= min]), *([] if max is None else [x <= max])]
    below = [*([] if min is None else [x < min]), *([] if max is None or min is None else [min <= max])]
    above = [] if max is None else [(x if min is None else op.Max(x, min)) > max]
    return [gate(dy, reduce(op.And, conditions)) if conditions else default
            for conditions, default in ((inside, dy), (below, None), (above, None))]


@vjp("Where")
def _(condition, a, b, *, dy):
    return None, *divide(dy, condition)


@vjp("Max")
def _(*x, dy):
    return share_among_ties(x, dy, op.Max, op.GreaterOrEqual)


@vjp("Min")
def _(*x, dy):
    return share_among_ties(x, dy, op.Min, op.LessOrEqual)


def share_among_ties(
    x: tuple[Value, ...], dy: Value, extreme: Callable[..., Value], is_as_extreme: Callable[..., Value]
) -> list[Value]:
    """dy shared equally among the arguments that are as large, or as small, as all others."""
    if len(x) == 1:
        return [dy]
    others = [[*x[:i], *x[i + 1 :]] for i in range(len(x))]
    masks = [is_as_extreme(v, extreme(*rest) if len(rest) > 1 else rest[0]) for v, rest in zip(x, others, strict=True)]
    share = dy / at_least(reduce(add, [cast(mask, dy) for mask in masks]), 1)
    return [gate(share, mask) for mask in masks]


# Types.


@vjp("Cast")
def _(x, *, dy):
    return cast(dy, x)


@vjp("CastLike")
def _(x, like, *, dy):
    return cast(dy, x) if x.is_float else None


no_gradient("Sign", "Floor", "Ceil", "Round", "IsNaN", "IsInf")
no_gradient("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not")
no_gradient("StopGradient", domain="ortpartial")
no_gradient("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")

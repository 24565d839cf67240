"""Gradients of elementwise operators."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import NOTHING, apart, assert_as_torch, real, rows, within

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

INF = float("inf")

# Operator, low, high, torch's function, attributes.
UNARY = rows(
    ("Neg", op.Neg, -2, 2, torch.neg),
    ("Identity", op.Identity, -2, 2, torch.clone),
    ("Exp", op.Exp, -2, 2, torch.exp),
    ("Log", op.Log, 0.2, 3, torch.log),
    ("Sqrt", op.Sqrt, 0.2, 3, torch.sqrt),
    ("Reciprocal", op.Reciprocal, 0.4, 3, torch.reciprocal),
    ("Reciprocal of negative", op.Reciprocal, -3, -0.4, torch.reciprocal),
    ("Erf", op.Erf, -2, 2, torch.erf),
    ("Tanh", op.Tanh, -2, 2, torch.tanh),
    ("Sigmoid", op.Sigmoid, -3, 3, torch.sigmoid),
    ("Softplus", op.Softplus, -3, 3, F.softplus),
    ("Sin", op.Sin, -4, 4, torch.sin),
    ("Cos", op.Cos, -4, 4, torch.cos),
    ("Tan", op.Tan, -1, 1, torch.tan),
    ("Asin", op.Asin, -0.8, 0.8, torch.asin),
    ("Acos", op.Acos, -0.8, 0.8, torch.acos),
    ("Atan", op.Atan, -3, 3, torch.atan),
    ("Sinh", op.Sinh, -2, 2, torch.sinh),
    ("Cosh", op.Cosh, -2, 2, torch.cosh),
    ("Asinh", op.Asinh, -3, 3, torch.asinh),
    ("Acosh", op.Acosh, 1.3, 3, torch.acosh),
    ("Atanh", op.Atanh, -0.8, 0.8, torch.atanh),
    ("Relu positive", op.Relu, 0.1, 2, torch.relu),
    ("Relu negative", op.Relu, -2, -0.1, torch.relu),
    ("Abs positive", op.Abs, 0.1, 2, torch.abs),
    ("Abs negative", op.Abs, -2, -0.1, torch.abs),
    ("LeakyRelu positive", op.LeakyRelu, 0.1, 2, F.leaky_relu),
    ("LeakyRelu negative", op.LeakyRelu, -2, -0.1, F.leaky_relu),
    ("LeakyRelu alpha", lambda x: op.LeakyRelu(x, alpha=0.3), -2, -0.1, lambda x: F.leaky_relu(x, 0.3)),
    ("Elu positive", op.Elu, 0.1, 2, F.elu),
    ("Elu negative", op.Elu, -2, -0.1, F.elu),
    ("Elu alpha", lambda x: op.Elu(x, alpha=0.7), -2, -0.1, lambda x: F.elu(x, 0.7)),
    ("HardSigmoid inside", lambda x: op.HardSigmoid(x, alpha=1 / 6), -2, 2, F.hardsigmoid),
    ("HardSigmoid outside", lambda x: op.HardSigmoid(x, alpha=1 / 6), 3.1, 5, F.hardsigmoid),
    ("HardSwish inside", op.HardSwish, -1, 2, F.hardswish),
    ("HardSwish below", op.HardSwish, -5, -3.1, F.hardswish),
    ("HardSwish above", op.HardSwish, 3.1, 5, F.hardswish),
    ("Softsign", op.Softsign, -2, 2, F.softsign),
    ("Gelu tanh", lambda x: op.Gelu(x, approximate="tanh"), -2, 2, lambda x: F.gelu(x, approximate="tanh")),
    ("Cast to itself", lambda x: op.CastLike(x, x), -2, 2, torch.clone),
)


@pytest.mark.parametrize(("f", "low", "high", "torch_f"), UNARY)
def test_of_one_argument(f, low, high, torch_f):
    x = within(low, high, 2, 3)
    check_gradient(f, [x])
    assert_as_torch(f, torch_f, [x])


# onnxruntime has them in float32 alone, and onnx's reference evaluator computes Gelu in float32 whatever the input.
SINGLE = rows(
    ("Celu", lambda x: op.Celu(x, alpha=1.5), lambda x: F.celu(x, 1.5)),
    ("Gelu", op.Gelu, F.gelu),
    ("Shrink", lambda x: op.Shrink(x, lambd=0.7), lambda x: F.hardshrink(x, 0.7)),
)


@pytest.mark.parametrize(("f", "torch_f"), SINGLE)
def test_of_one_argument_in_float32(f, torch_f):
    x = 2 * real(2, 3)
    assert_as_torch(f, torch_f, [x.astype(np.float32)], rtol=1e-5)
    check_gradient(f, [x], dtype=np.float32, step=1e-2, rtol=5e-3, order=1)


SHAPES = rows(
    ("same", (2, 3), (2, 3)),
    ("leading axis", (2, 3), (3,)),
    ("both ways", (2, 1), (1, 3)),
    ("one among many", (4, 1, 3), (2, 3)),
    ("scalar", (2, 3), ()),
    ("empty", (0, 3), (1, 3), NOTHING),
)

BINARY = rows(
    ("Add", op.Add, torch.add),
    ("Sub", op.Sub, torch.sub),
    ("Mul", op.Mul, torch.mul),
    ("Div", op.Div, torch.div),
    ("Pow", lambda a, b: op.Pow(op.Abs(a), b), lambda a, b: torch.abs(a) ** b),
    ("Sum", op.Sum, torch.add),
    ("Mean", op.Mean, lambda a, b: (a + b) / 2),
    ("Where", lambda a, b: op.Where(op.Greater(b, 0.1), a, b), lambda a, b: torch.where(b > 0.1, a, b)),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize(("f", "torch_f"), BINARY)
def test_of_two_arguments(f, torch_f, a, b):
    args = [real(*a), real(*b, seed=1)]
    check_gradient(f, args, directions=1)
    assert_as_torch(f, torch_f, args)
    check_gradient(lambda a, b: f(b, a), args, order=1, directions=1)


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize(
    ("f", "torch_f"), rows(("Max", op.Max, torch.maximum), ("Min", op.Min, torch.minimum))
)
def test_extremes_of_two(f, torch_f, a, b):
    args = [apart(*a), apart(*b, seed=1) + 0.05]
    check_gradient(f, args, directions=1)
    assert_as_torch(f, torch_f, args)


MANY = rows(
    ("Sum of one", op.Sum, [real(2, 3)]),
    ("Sum of three", op.Sum, [real(2, 3), real(3), real(2, 1)]),
    ("Mean of one", op.Mean, [real(2, 3)]),
    ("Mean of three", op.Mean, [real(2, 3), real(3), real(2, 1)]),
    ("Max of one", op.Max, [real(2, 3)]),
    ("Max of three", op.Max, [apart(2, 3), apart(3) + 0.03, apart(2, 1) + 0.06]),
    ("Min of three", op.Min, [apart(2, 3), apart(3) + 0.03, apart(2, 1) + 0.06]),
    ("the same argument twice", lambda a: op.Mul(a, a), [real(2, 3)]),
    ("Mod", lambda a, b: op.Mod(a, b, fmod=1), [np.array([5.3, -5.3, 7.1]), np.array([3.0, 2.0, -2.0])]),
    ("Pow negative base", lambda a: a**3, [real(2, 3)]),
    ("Pow integer exponent", lambda a: op.Pow(a, constant([3, 2, 1])), [real(2, 3)]),
    ("Pow square", lambda a: a**2, [real(2, 3)]),
    ("Pow half", lambda a: a**0.5, [within(0.5, 2, 3)]),
    ("Pow of a number", lambda b: op.Pow(op.CastLike(2.0, b), b), [real(2, 3)]),
    ("Clip", lambda x: op.Clip(x, -0.5, 0.7), [real(3, 4)]),
    ("Clip below", lambda x: op.Clip(x, -0.5), [real(3, 4)]),
    ("Clip above", lambda x: op.Clip(x, None, 0.6), [real(3, 4)]),
    ("Clip bounds", lambda x, low, high: op.Clip(x, low, high), [real(3, 4), np.array(-0.51), np.array(0.6)]),
    ("Cast", lambda x: op.CastLike(op.Cast(x, to=11) * 2, x), [real(3)]),
)


@pytest.mark.parametrize(("f", "args"), MANY)
def test_of_many_arguments(f, args):
    check_gradient(f, args)


# At kinks and at the edge of the domain there is no derivative to compare with, but there is what torch says.
EDGES = rows(
    ("Relu", op.Relu, torch.relu, [[0.0, -0.0]]),
    ("Abs", op.Abs, torch.abs, [[0.0, -0.0]]),
    ("LeakyRelu", op.LeakyRelu, F.leaky_relu, [[0.0]]),
    ("Elu", op.Elu, F.elu, [[0.0]]),
    ("Sqrt", op.Sqrt, torch.sqrt, [[0.0]]),
    ("Log", op.Log, torch.log, [[0.0]]),
    ("Clip", lambda x: op.Clip(x, -1.0, 1.0), lambda x: torch.clamp(x, -1, 1), [[-1.0, 1.0, 2.0, INF, -INF]]),
    ("Clip at the bounds it is given", op.Clip, torch.clamp, [[-1.0, 0.5, 1.0, 2.0, -2.0], -1.0, 1.0]),
    ("Max ties", op.Max, torch.maximum, [[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]),
    ("Min ties", op.Min, torch.minimum, [[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]),
    ("Pow base zero", op.Pow, torch.pow, [[0.0] * 5, [0.0, 0.5, 1.0, 2.0, 3.0]]),
    ("Pow base zero, exponent negative", op.Pow, torch.pow, [[0.0], [-1.0]]),
    ("Pow base negative", op.Pow, torch.pow, [[-2.0, -2.0, -1.5], [2.0, 3.0, -1.0]]),
    ("Pow exponent zero", op.Pow, torch.pow, [[0.0, 2.0, -2.0], [0.0, 0.0, 0.0]]),
    ("Pow exponent a constant 0", lambda x: x**0, lambda x: x**0, [[0.0, 2.0]]),
    ("Pow exponent a constant 1", lambda x: x**1, lambda x: x**1, [[0.0, 2.0]]),
    ("Pow exponent a constant 2", lambda x: x**2, lambda x: x**2, [[0.0, -2.0]]),
    ("Softplus", op.Softplus, F.softplus, [[-800.0, 800.0]]),
    ("Sigmoid", op.Sigmoid, torch.sigmoid, [[-800.0, 800.0]]),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), EDGES)
def test_at_the_edges(f, torch_f, args):
    assert_as_torch(f, torch_f, [np.array(a) for a in args])


@pytest.mark.parametrize("op_type", ["Sign", "Floor", "Ceil", "Round"])
def test_steps_have_no_gradient(op_type):
    x = variable("x", "float32", [3])
    (dx,) = grad(getattr(op, op_type)(x), [x])
    assert [node.op_type for node in build([x], [dx]).graph.node] == ["Expand"]


def test_ties_of_three_are_shared_evenly():
    x = variable("x", "float32", [])
    y = op.Max(x, 1.0, 1.0)
    (found,) = evaluate(build([x], grad(y, [x])), {"x": np.array(1, np.float32)}).values()
    assert found == pytest.approx(1 / 3)


def test_cast_goes_back_to_the_dtype_it_came_from():
    x = variable("x", "float16", [3])
    (dx,) = grad(op.ReduceSum(op.Cast(x, to=1), keepdims=0), [x])
    assert dx.dtype == np.float16


@pytest.mark.parametrize(
    ("f", "expected"),
    rows(
        ("Add passes the cotangent on", op.Add, []),
        ("Sub", op.Sub, ["Neg"]),
        ("Mul", op.Mul, ["Mul", "Mul"]),
        ("Mul of a value by itself", lambda a, b: a * a + b, ["Mul", "Mul"]),
        ("Div", op.Div, ["Div", "Div", "Mul", "Neg"]),
    ),
)
def test_no_useless_nodes(f, expected):
    a, b, dy = (variable(n, "float32", [3]) for n in ("a", "b", "dy"))
    da, db = grad(f(a, b), [a, b], [dy])
    nodes = [n.op_type for n in build([a, b, dy], {"da": da, "db": db}).graph.node if n.op_type != "Identity"]
    assert nodes == expected


@pytest.mark.parametrize("order", [1, 2, 3])
def test_power_of_any_order(order):
    # At exponents of which a derivative by the base leaves 0, and one by the exponent what stands behind it: of
    # aᵇ by the base, b(b - 1)(b - 2) ... aᵇ⁻ⁿ.
    a, b, h = np.array([2.0, 0.5, 3.0, 1.5]), np.array([0.0, 1.0, 2.0, 1.0]), 1e-5
    x, y = variable("x", "float64", [4]), variable("y", "float64", [4])
    z = op.Pow(x, y)
    for _ in range(order):
        (z,) = grad(z, [x])
    found = evaluate(build([x, y], grad(z, [y])), {"x": a, "y": b})
    above, below = (np.prod([c - k for k in range(order)], axis=0) * a ** (c - order) for c in (b + h, b - h))
    np.testing.assert_allclose(*found.values(), (above - below) / (2 * h), rtol=1e-6, atol=1e-6)

"""Interval analysis: which expressions are finite whatever their inputs."""

import numpy as np
import pytest
from table import rows

from ortpartial.autodiff.grad import grad
from ortpartial.autodiff.ranges import at_least, find_range, is_finite, set_unbounded
from ortpartial.graph.ops import constant, op, variable

X = variable("x", "float32", ["N", 4])
W = variable("w", "float32", [4, 4])
HIDDEN = constant(np.triu(np.full((4, 4), -np.inf, np.float32), 1))
ALL_HIDDEN = constant(np.full((4, 4), -np.inf, np.float32))


def mean(v):
    return op.ReduceMean(v, [1])


def normalize(v):
    c = v - mean(v)
    return c / op.Sqrt(mean(c * c) + 1e-5)


FINITE = rows(
    ("a product", X @ W + 1),
    ("a norm by hand", normalize(X)),
    ("a norm by a square root of a sum of powers", X / op.Sqrt(mean(X**2) + 1e-6)),
    ("a norm by the reciprocal", X * op.Reciprocal(op.Sqrt(mean(op.Abs(X)) + 1e-6))),
    ("a norm by a power", X * (mean(X * X) + 1e-6) ** -0.5),
    ("a norm with a bound", X / op.Max(op.ReduceL2(X, [1]), 1e-12)),
    ("a softmax by hand", op.Exp(X - op.ReduceMax(X, [1])) / op.ReduceSum(op.Exp(X - op.ReduceMax(X, [1])), [1])),
    ("a log softmax by hand", X - op.ReduceLogSumExp(X, [1])),
    ("probabilities by hand", op.Exp(X - op.ReduceLogSumExp(X, [1]))),
    ("a density", op.Exp(-(X * X))),
    ("a clipped logarithm", op.Log(op.Clip(op.Sigmoid(X), 1e-7, 1 - 1e-7))),
    ("and that of the rest", op.Log(1 - op.Clip(op.Sigmoid(X), 1e-7, 1 - 1e-7))),
    ("a shifted logarithm", op.Log(op.Softmax(X) + 1e-9)),
    ("a logarithm of 1 + exp", op.Log(1 + op.Exp(op.Clip(X, -20.0, 20.0)))),
    ("a division by a constant", X / constant(np.array([1, 2, 3, -4], np.float32))),
    ("0 replaced by a sum", X / (W + op.Cast(op.Equal(W, 0), to=1))),
    ("0 replaced by a choice", X / op.Where(op.Equal(W, 0), 1.0, W)),
    ("0 replaced by infinity", X / op.Where(op.Equal(W, 0), np.float32(np.inf), W)),
    ("a causal mask", op.Softmax(X @ W + HIDDEN)),
    ("a causal choice", op.Softmax(op.Where(constant(np.tri(4, dtype=bool)), W, np.float32(-np.inf)))),
    ("a scale from a size", X / op.Sqrt(op.Cast(op.Shape(X, start=0, end=1), to=1))),
    ("asin inside", op.Asin(0.5 * op.Tanh(X))),
    ("cosh of a bounded number", op.Cosh(op.Tanh(X))),
    ("a constant stated", 1 / at_least(W * 1, 1)),
)

UNBOUNDED = rows(
    ("a logarithm", op.Log(op.Sigmoid(X))),
    ("a square root", op.Sqrt(X)),
    ("a quotient", X / W),
    ("by what may be 0", X / op.Relu(W)),
    ("a reciprocal", op.Reciprocal(X)),
    ("a negative power", op.Abs(X) ** -1.0),
    ("a root of what may be negative", X**0.5),
    ("an unknown power", X**W),
    ("an exponential", op.Exp(X)),
    ("cosh", op.Cosh(X)),
    ("asin", op.Asin(X)),
    ("acosh", op.Acosh(X)),
    ("atanh at 1", op.Atanh(op.Tanh(X))),
    ("mod", op.Mod(X, W, fmod=1)),
    ("hidden rows", op.Softmax(X @ W + ALL_HIDDEN)),
    ("rows hidden by an input", op.Softmax(op.Where(X > 0, X, np.float32(-np.inf)))),
    ("rows across a causal mask", op.Softmax(op.Transpose(W + HIDDEN, perm=[1, 0]))),
    ("a constant of infinities", X + constant(np.array(np.inf, np.float32))),
    ("a constant with NaN", X + constant(np.array(np.nan, np.float32))),
    ("a sum with it", (X + 1) * 2 + op.Log(X)),
    ("a number that float16 rounds to 0", variable("h", "float16", [2]) / (op.Relu(variable("h", "float16", [2]))
                                                                         + constant(np.float16(1e-6)))),
)


@pytest.mark.parametrize("v", FINITE)
def test_finite(v):
    assert is_finite(v)


@pytest.mark.parametrize("v", UNBOUNDED)
def test_unbounded(v):
    assert not is_finite(v)


def test_a_range_holds_what_is_computed():
    v = op.Clip(X, -2.0, 3.0)
    assert find_range(2 * v - 1)[:2] == (-5, 5)
    assert find_range(v * v)[:2] == (0, 9)
    assert find_range(op.Max(op.Neg(v), 1.0))[:2] == (1, 2)
    assert find_range(1 / (op.Abs(v) + 1))[:2] == (0.25, 1)
    assert find_range(op.Sqrt(op.Relu(v) + 1))[:2] == (1, 2)


def test_a_variable_may_be_unbounded():
    dy = set_unbounded(variable("dy", "float32", ["N", 4]))
    assert not is_finite(dy * 2)
    (dx,) = grad(op.Relu(X), [X], [dy])
    assert dx.node.op_type == "Where"


def test_a_chain_is_walked_once(monkeypatch):
    # One look at a node, whoever asks: a walk of all from each mask would take minutes.
    from ortpartial.autodiff import ranges

    looks, of_node = [], ranges._of_node
    monkeypatch.setattr(ranges, "_of_node", lambda node: looks.append(node) or of_node(node))
    h = X
    for _ in range(300):
        h = op.Relu(h @ W)
    grad(op.ReduceSum(h), [X])
    assert len(looks) == len(set(looks)) < 2500

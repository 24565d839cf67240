"""Arithmetic on values: the operators of Python, and the methods and functions of numpy."""

import math

import numpy as np
import pytest
from table import rows

from ortpartial.graph import build, op, variable
from ortpartial.testing import evaluate

A = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
B = np.array([[3, -7, 5, 1], [-2, 4, -9, 6], [8, 0, -1, 2]])


def compute(f, *arrays):
    """f of inputs that hold these arrays."""
    inputs = [variable(f"x{i}", a.dtype, ["N", *a.shape[1:]]) for i, a in enumerate(arrays)]
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    (computed,) = evaluate(build(inputs, [f(*inputs)]), feeds).values()
    return computed


def same(f, *arrays):
    """Whether f of values is what f of arrays is."""
    computed, expected = compute(f, *arrays), f(*arrays)
    assert computed.shape == np.shape(expected)
    np.testing.assert_allclose(computed, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("f", "array"),
    rows(
        ("mod", lambda x: x % 1.5, A),
        ("mod of whole numbers", lambda x: x % 4, B),
        ("floor division", lambda x: x // 0.3, A),
        ("floor division of whole numbers", lambda x: x // 3, B),
        ("floor division by a negative number", lambda x: x // -3, B),
        ("reflected", lambda x: 2**x + 7 % (x * x + 1) + 7 // (x * x + 1), A),
        ("signs", lambda x: +x + abs(-x), A),
        ("truth values", lambda x: (x > 0) & (x < 1) | ~(x > -1) ^ (x < 2), A),
        ("bits", lambda x: (x & 3) ^ ~(x | 4), B),
        ("an array on the left", lambda x: np.float32(2) * x + np.ones(4, np.float32) / (1 + x * x), A),
        ("a mask on the left", lambda x: np.array([True, False, True, True]) & (x > 0), A),
        ("an array and %", lambda x: np.full(4, 7.0, np.float32) % (x * x + 1), A),
    ),
)
def test_operators(f, array):
    same(f, array)


@pytest.mark.parametrize(
    "f",
    rows(
        ("sum", lambda x: x.sum()),
        ("sum of rows", lambda x: x.sum(1)),
        ("sum over nothing", lambda x: x.sum(axis=())),
        ("mean", lambda x: x.mean(axis=0, keepdims=True)),
        ("max and min", lambda x: x.max(axis=-1) - x.min(axis=(0, 1))),
        ("prod", lambda x: x.prod(axis=1)),
        ("std and var", lambda x: x.std(axis=1) + x.var()),
        ("argmax", lambda x: x.argmax() + x.argmax(axis=1) - x.argmin(axis=0).sum() - x.argmin()),
        ("reshape", lambda x: x.reshape(2, -1) @ x.reshape((6, 2))),
        ("flatten", lambda x: x.flatten()),
        ("transpose", lambda x: x.T @ x.transpose(0, 1) @ x.transpose().T.transpose((-1, 0))),
        ("squeeze", lambda x: x[None].squeeze(0) + x[..., None].squeeze(-1)),
        ("clip and round", lambda x: x.clip(-0.5, 0.5) + x.round() + x.clip(max=0)),
        ("astype", lambda x: x.astype("float64") * x.astype(bool).astype("int64").astype(float)),
        ("ndim", lambda x: x * x.ndim),
    ),
)
def test_methods(f):
    same(f, A)


def test_reshape_takes_symbolic_sizes_and_values():
    x = variable("x", "float32", ["N", "M", 4])
    y = x.reshape("M", "N", 4)
    assert evaluate(build([x], [y]), {"x": np.zeros((2, 3, 4), np.float32)})[y.hint or "output_0"].shape == (3, 2, 4)
    assert x.reshape(op.Shape(x)[1], -1).rank == 2
    assert x.reshape(op.Shape(x)).rank == 3
    with pytest.raises(ValueError, match=r"reshape: <Value x .*> has no size 'K'; its symbolic sizes are \['N', 'M'\]"):
        x.reshape("K", 4)


@pytest.mark.parametrize(
    "f",
    rows(
        ("abs", lambda x: np.abs(x) + np.absolute(x) + np.fabs(x)),
        ("maximum", lambda x: np.maximum(x, 0.25) + np.minimum(0.5, x)),
        ("exp and log", lambda x: np.log(np.exp(x) + 1) + np.tanh(x) ** 2 + np.sqrt(np.square(x) + 1)),
        ("of two", lambda x: np.add(x, 1) * np.floor_divide(x, 2) - np.remainder(1, x * x + 1)),
        ("comparison", lambda x: np.logical_and(np.greater(x, 0), np.isnan(x) | np.less_equal(x, 1))),
        ("sum", lambda x: np.sum(x, axis=1) + np.mean(x) + np.max(x, 1) + np.amin(x) + np.prod(x, keepdims=True)[0]),
        ("shapes", lambda x: np.reshape(x, (4, 3)) @ np.transpose(np.expand_dims(x, 0).squeeze()).T),
        ("where", lambda x: np.where(x > 0, x, 0.5)),
        ("concatenate", lambda x: np.concatenate([x, x], axis=1)),
        ("stack", lambda x: np.stack([x, 2 * x], axis=1)),
        ("dot", lambda x: np.dot(x, x.T) + np.matmul(x, x.T) + np.ndim(x)),
        ("clip", lambda x: np.clip(x, 0, 1) + np.round(x)),
    ),
)
def test_functions_of_numpy(f):
    same(f, A)


def x_():
    return variable("x", "float32", ["N", 3])


@pytest.mark.parametrize(
    ("f", "message"),
    rows(
        ("an unknown function", lambda x: np.hypot(x, x), r"np.hypot is not defined for <Value x .*dir\(op\) lists"),
        ("a method of one", lambda x: np.add.reduce(x), r"np.add.reduce is not defined for <Value x"),
        ("out", lambda x: np.add(x, 1, out=np.zeros(3)), r"np.add with out= is not defined for <Value x"),
        ("another function", lambda x: np.sort(x), r"numpy.sort is not defined for <Value x .*dir\(op\) lists"),
        ("of a submodule", lambda x: np.linalg.norm(x), r"numpy.linalg.norm is not defined for <Value x"),
        ("as an array", np.asarray, r"<Value x .*> has no numbers before it is computed; .*op.Exp for math.exp"),
        ("math", math.exp, r"<Value x .*> has no numbers before it is computed"),
        ("float", float, r"<Value x .*> has no numbers before it is computed"),
        ("a chain", lambda x: 0 < x < 1, r"has no truth value .*`\(a < x\) & \(x < b\)` for a < x < b"),
        ("iteration", list, r"<Value x .*> cannot be iterated over; .* write \[x\]"),
        ("text", lambda x: x + "a", r"Add: input 'B' is 'a', of type str, where a Value, an array or a number was"),
        ("text on the left", lambda x: "a" * x, r"Mul: input 'A' is 'a', of type str"),
        ("a list of values", lambda x: op.Add([x, x], x), r"Add: input 'A' is \[<Value x .*\], of type list, where"),
        ("an object", lambda x: x + {"a": 1}, r"Add: input 'B' is \{'a': 1\}, of type dict"),
    ),
)
def test_errors(f, message):
    with pytest.raises(TypeError, match=message):
        f(x_())


def test_an_array_of_another_dtype():
    with pytest.raises(ValueError, match=r"Mul: input 'B' is float64 where float32 was expected, .*; cast one of them"):
        _ = x_() * np.ones(3)

"""Values: types, arithmetic, equality."""

import numpy as np
import onnx
import pytest
from table import rows

from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, constant, op, variable
from ortpartial.graph.build import build
from ortpartial.testing import evaluate


def x_(shape=("N", 3), name="x", dtype="float32"):
    return variable(name, dtype, shape)


def test_a_value_knows_its_type():
    x = x_()
    assert (x.dtype, x.shape, x.rank, x.is_static, x.is_float) == (np.float32, ("N", 3), 2, False, True)
    y = op.Shape(x)
    assert (y.dtype, y.shape, y.is_static, y.is_float) == (np.int64, (2,), True, False)


@pytest.mark.parametrize(
    ("f", "expected"),
    rows(
        ("x + y", lambda x, y: x + y, [6, 10]),
        ("x - y", lambda x, y: x - y, [2, 6]),
        ("x * y", lambda x, y: x * y, [8, 16]),
        ("x / y", lambda x, y: x / y, [2, 4]),
        ("x ** y", lambda x, y: x**y, [16, 64]),
        ("x @ y", lambda x, y: x @ y, 24),
        ("-x", lambda x, y: -x, [-4, -8]),
        ("abs(-x)", lambda x, y: abs(-x), [4, 8]),
        ("1 + x", lambda x, y: 1 + x, [5, 9]),
        ("1 - x", lambda x, y: 1 - x, [-3, -7]),
        ("2 * x", lambda x, y: 2 * x, [8, 16]),
        ("8 / x", lambda x, y: 8 / x, [2, 1]),
        ("list @ x", lambda x, y: [1.0, 1.0] @ x, 12),
        ("x > 4", lambda x, y: x > 4, [False, True]),
        ("x >= 4", lambda x, y: x >= 4, [True, True]),
        ("x < 8", lambda x, y: x < 8, [True, False]),
        ("x <= 4", lambda x, y: x <= 4, [True, False]),
        ("numpy array on the left", lambda x, y: np.array([1, 2], np.float32) * x, [4, 16]),
    ),
)
def test_arithmetic(f, expected):
    x, y = x_([2]), x_([2], "y")
    feeds = {"x": np.array([4, 8], np.float32), "y": np.array([2, 2], np.float32)}
    (found,) = evaluate(build([x, y], [f(x, y)]), feeds).values()
    assert found.tolist() == expected


def test_equality_is_identity():
    x = x_()
    y = op.Exp(x)
    assert y == y.node.outputs[0]
    assert y != op.Exp(x)
    assert x != x_()
    assert len({y, y.node.outputs[0]}) == 1


def test_equality_beside_an_array_is_of_the_elements():
    """On both sides: numpy hands `array == value` to the value as np.equal."""
    x, a = x_(), np.ones(3, np.float32)
    for y in (x == a, a == x, x == a[0], a[0] == x):
        assert (y.node.op_type, set(y.node.inputs) & {x}) == ("Equal", {x})
    assert (x == 1, 1 == x, x in [None, 1, x], x in [None, 1]) == (False, False, True, False)  # noqa: SIM300 - both sides


def test_a_value_has_no_truth_value():
    with pytest.raises(TypeError, match=r"<Value Greater bool\[Nx3\]> has no truth value before .*; use op.Where"):
        bool(x_() > 0)


def test_what_is_known_of_a_shape_is_stated():
    x = x_((None, 3))
    assert x.stated(("N", 3)).shape == ("N", 3)
    assert x.stated(("N", 3)).stated(("M", 3)).shape == ("N", 3)
    assert x_(None).stated((2,)).shape == (2,)
    assert x.stated(None) is x
    y = op.Exp(x)
    assert y.stated(("N", 3)) == y


@pytest.mark.parametrize(
    ("value", "expected"),
    rows(
        ("input", x_(), "<Value x float32[Nx3]>"),
        ("constant", constant([1, 2]), "<Value constant int64[2]>"),
        ("node", op.Exp(x_((None, 3))), "<Value Exp float32[?x3]>"),
        ("without a rank", op.Exp(x_(None)), "<Value Exp float32[?]>"),
        ("without a type", Value(onnx.TypeProto()), "<Value input ?[?]>"),
    ),
)
def test_repr(value, expected):
    assert repr(value) == expected


def test_an_attribute_of_another_type_is_named():
    x = variable("x", "float32", ["N"])
    with pytest.raises(GraphError, match=r"The attribute 'axis' of Softmax is of type INT, and 'last' was given\."):
        op.Softmax(x, axis="last")

"""Gradients of quantization: of the scale of DequantizeLinear, and straight through rounding."""

import numpy as np
import pytest

from ortpartial.autodiff import grad
from ortpartial.graph import build, constant, op, variable
from ortpartial.model import load
from ortpartial.runtime import Session

X = variable("x", "float32", [3])


@pytest.mark.parametrize("zero", [None, 3])
def test_the_scale_has_a_gradient(zero):
    """Of s (x - z) by s."""
    s, numbers = variable("s", "float32", []), np.int8([-5, 0, 7])
    y = op.DequantizeLinear(constant(numbers), s, None if zero is None else constant(np.int8(zero)))
    (g,) = grad(op.ReduceSum(y * X, keepdims=0), [s])
    x = np.float32([1, 2, 4])
    outputs = Session(build([s, X], {"g": g})).run({"s": np.float32(0.5), "x": x})
    assert outputs["g"] == (x * (numbers - (zero or 0))).sum()


def test_a_gradient_passes_straight_through_where_asked():
    """Within the range of int8 it is that of the identity, beyond it 0."""
    scale, zero = constant(np.float32(0.25)), constant(np.int8(0))
    y = op.DequantizeLinear(op.QuantizeLinear(X, scale, zero), scale, zero)
    model = load(build([X], {"y": y}), straight_through=True)
    (g,) = grad(op.ReduceSum(model.outputs["y"] * 3, keepdims=0), [model.inputs["x"]])
    outputs = Session(build([model.inputs["x"]], {"g": g})).run({"x": np.float32([0.3, -1, 1000])})
    assert outputs["g"].tolist() == [3, 3, 0]

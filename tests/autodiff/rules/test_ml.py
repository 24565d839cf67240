"""Gradients of the operators of ai.onnx.ml, as of the same in plain operators."""

import numpy as np
import pytest
from table import apart

from ortpartial.autodiff.grad import grad
from ortpartial.graph import Operators
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.testing import evaluate

ml = Operators("ai.onnx.ml")
X = np.abs(apart(3, 4)).astype(np.float32)


def outputs(f):
    x = variable("x", "float32", ["N", 4])
    y = f(x)
    return evaluate(build([x], [y, *grad(op.ReduceSum(y * y * x), [x])]), {"x": X}).values()


@pytest.mark.parametrize(
    ("operator", "plain"),
    [
        (lambda x: ml.Normalizer(x, norm="L1"), lambda x: x / op.ReduceL1(x, [1])),
        (lambda x: ml.Normalizer(x, norm="L2"), lambda x: x / op.ReduceL2(x, [1])),
        (lambda x: ml.Normalizer(x, norm="MAX"), lambda x: x / op.ReduceMax(x, [1])),
        (lambda x: ml.Scaler(x, offset=[1.0, 2.0, 3.0, 4.0], scale=[0.5, 2.0, 1.0, 3.0]),
         lambda x: (x - [1.0, 2.0, 3.0, 4.0]) * [0.5, 2.0, 1.0, 3.0]),
        (lambda x: ml.Scaler(x, offset=[1.0], scale=[0.5]), lambda x: (x - 1) * 0.5),
    ],
)
def test_as_in_plain_operators(operator, plain):
    for actual, expected in zip(outputs(operator), outputs(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)

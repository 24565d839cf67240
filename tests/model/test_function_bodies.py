"""Function bodies compute the same as the reference evaluator for the operator."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.model.function_bodies import expand_body

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("shape", [[2, 3], ["N", "M"]])
@pytest.mark.parametrize("write", [
    op.HardSwish, op.Mish, op.Softsign, lambda x: op.Elu(x, alpha=0.5), lambda x: op.LeakyRelu(x, alpha=0.2),
    lambda x: op.Clip(x, -1.0, 1.0), lambda x: op.Gelu(x, approximate="tanh"),
    lambda x: op.ReduceLogSumExp(x, [1])])
def test_expand(write, shape):
    x = variable("x", "float32", shape)
    whole = write(x)
    y = expand_body(whole.node)[0]
    assert y.node.op_type != whole.node.op_type
    found, expected = (ReferenceEvaluator(build([x], {"y": v})).run(None, {"x": X})[0] for v in (y, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_operator_without_a_body():
    x = variable("x", "float32", [2, 3])
    assert expand_body(op.Exp(x).node) is None

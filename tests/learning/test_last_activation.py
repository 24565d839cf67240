"""The activation that probabilities end in, through changes of form alone."""

import numpy as np
import pytest
from onnx import TensorProto

from ortpartial import build, op, variable
from ortpartial.learning.last_activation import find_last_activation
from ortpartial.testing import evaluate


def normalize(p):
    total = op.ReduceL1(p, [1])
    return p / op.Where(op.Equal(total, 0), 1, total)


@pytest.mark.parametrize(
    ("f", "kind", "axis", "is_normalized"),
    [
        (lambda z: op.Softmax(z, axis=1), "Softmax", 1, False),
        (lambda z: op.Softmax(z, axis=0), "Softmax", 0, False),
        (lambda z: normalize(op.Cast(op.Softmax(z), to=TensorProto.FLOAT)), "Softmax", 1, True),
        (lambda z: normalize(op.Sigmoid(z)), "Sigmoid", None, True),
        (lambda z: op.Reshape(op.Softmax(z), [1, -1, 4]), "Softmax", 2, False),
        (lambda z: op.Flatten(op.Identity(op.Sigmoid(z)), axis=0), "Sigmoid", None, False),
        (lambda z: op.Cast(op.Sigmoid(z), to=TensorProto.DOUBLE), "Sigmoid", None, False),
    ],
)
def test_found(rng, f, kind, axis, is_normalized):
    z = variable("z", "float32", [3, 4])
    y = f(z)
    last = find_last_activation(y)
    assert (last.op_type, last.axis, last.is_normalized) == (kind, axis, is_normalized)
    # The logits have the form of the value.
    again = op.Sigmoid(last.logits) if axis is None else op.Softmax(last.logits, axis=axis)
    again = normalize(again) if is_normalized else again
    both = evaluate(build([z], {"y": y, "again": again}), {"z": rng.normal(size=(3, 4)).astype(np.float32)})
    np.testing.assert_allclose(both["again"], both["y"], rtol=1e-6)
    assert both["again"].dtype == both["y"].dtype


@pytest.mark.parametrize("f", [
    lambda z: z,
    lambda z: op.Sigmoid(z) * 2,
    lambda z: 1 - op.Sigmoid(z),
    lambda z: op.Reshape(op.Softmax(z), [6, 2]),  # the classes of a row are in several
    lambda z: op.Reshape(op.Softmax(z, axis=0), [1, 3, 4]),
    lambda z: op.Sigmoid(z) / op.ReduceL1(op.Sigmoid(z), [0]),
    lambda z: op.Sigmoid(z) / op.ReduceL1(z, [1]),
    lambda z: op.Cast(op.Cast(op.Sigmoid(z), to=TensorProto.INT64), to=TensorProto.FLOAT),
])
def test_not_found(f):
    assert find_last_activation(f(variable("z", "float32", [3, 4]))) is None

"""Rounding: where it ends a gradient there is an error, and elsewhere it does not matter."""

import numpy as np
import pytest

from ortpartial.autodiff import grad
from ortpartial.autodiff.rounding import find_roundings, is_quantized_number, rounds
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import constant, op, variable

X, W = variable("x", "float32", [4]), variable("w", "float32", [4])
SCALE, ZERO = constant(np.float32(0.5)), constant(np.int8(0))


def quantize(v):
    return op.DequantizeLinear(op.QuantizeLinear(v, SCALE, ZERO), SCALE, ZERO)


def test_which_nodes_round():
    q = op.QuantizeLinear(X, SCALE, ZERO)
    assert rounds(q.node)
    assert is_quantized_number(q)
    assert not rounds(op.Relu(X).node)
    assert not is_quantized_number(X)


def test_a_gradient_through_it_is_an_error():
    with pytest.raises(NoGradientError, match=r"QuantizeLinear.* rounds, and no gradient passes through it\. Give"):
        grad(op.ReduceSum(quantize(X * W), keepdims=0), [W])


def test_a_gradient_beside_it_is_none():
    (g,) = grad(op.ReduceSum(quantize(X) * W, keepdims=0), [W])
    assert g.shape == (4,)


def test_the_nodes_with_their_readers():
    (pair,) = find_roundings([quantize(X) * W])
    assert [n.op_type for n in pair] == ["QuantizeLinear", "DequantizeLinear"]
    assert find_roundings([X * W]) == []
    assert find_roundings([quantize(X) * W], [quantize(X)]) != []

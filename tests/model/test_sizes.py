"""The first value with an axis of the same size: through layers, and no further than it is certain."""

import gc
import weakref

import numpy as np
import pytest

from ortpartial.graph import Operators, constant, op, variable
from ortpartial.model.sizes import find_size_source

X, B = variable("x", "float32", ["N", "S", 4]), variable("b", "float32", ["N", "S", 4])
IDS = variable("ids", "int64", ["N", "S"])
W = constant(np.ones((4, 4), np.float32))
SCALE = constant(np.ones(4, np.float32))

#: By name: a value, and what has the size of its axis 1; None for itself.
SAME = {
    "a product": (X @ W, X),
    "a norm": (op.LayerNormalization(op.Relu(X), SCALE), X),
    "an addition of a constant": (X + SCALE, X),
    "a residual": (op.Tanh(X @ W) + X, X),
    "a table": (op.Gather(W, IDS) @ W, IDS),
    "another input": (X + B, None),
    "a batch of matrices": (op.MatMul(X, op.Transpose(B, perm=[0, 2, 1])), None),
    "a slice": (op.Slice(X, [0], [1], [1]), None),
    "a reduction": (op.ReduceSum(X, [1]), None),
}


@pytest.mark.parametrize("name", SAME)
def test_the_source_of_a_size(name):
    x, source = SAME[name]
    assert find_size_source(x, 1) == (x if source is None else source, 1)


def test_an_axis_in_another_place():
    assert find_size_source(constant(np.ones((2, 1, 1, 1), np.float32)) + X, 2) == (X, 1)
    y = Operators("com.microsoft").GroupQueryAttention
    q = y(X @ constant(np.ones((4, 12), np.float32)), None, None, None, None, variable("l", "int32", ["N"]),
          variable("t", "int32", []), num_heads=1, kv_num_heads=1)
    assert find_size_source(q, 1) == (X, 1)
    assert find_size_source(q, 2) == (q, 2)


def test_many_layers_are_looked_through_in_turn():
    y = X
    for _ in range(60):
        y = op.Tanh(y @ W) + y
        assert find_size_source(y, 1) == (X, 1)
    y = X
    for _ in range(3000):
        y = op.Neg(y)
    assert find_size_source(y, 1)[1] == 1  # of one on the way


def test_nothing_is_kept_alive():
    y = op.Exp(X @ W)
    find_size_source(y, 1)
    left = weakref.ref(y)
    del y
    gc.collect()
    assert left() is None

"""Operators in simpler operators: all have translators behind it, compute the same, and constants are folded."""

import numpy as np
import pytest

from ortpartial.graph import build, constant, op, topological, variable
from ortpartial.native.expansions import expand
from ortpartial.native.translation import TRANSLATORS
from ortpartial.runtime import Session

X = variable("x", "float32", [2, 3, 4])
ONE = constant(np.float32([1, 2, 3]))
A = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)

CASES = {
    "Softmax": op.Softmax(X, axis=1), "LogSoftmax": op.LogSoftmax(X), "Elu": op.Elu(X, alpha=0.5),
    "Gelu": op.Gelu(X), "Gelu, tanh": op.Gelu(X, approximate="tanh"), "Hardmax": op.Hardmax(X, axis=1),
    "LpNormalization": op.LpNormalization(X, axis=1, p=1), "ReduceLogSumExp": op.ReduceLogSumExp(X, [1]),
    "LayerNormalization": op.LayerNormalization(X, constant(np.ones(4, np.float32))),
    "InstanceNormalization": op.InstanceNormalization(X, ONE, ONE),
    "BatchNormalization": op.BatchNormalization(X, ONE, ONE, ONE, ONE, n_outputs=1)[0],
    "Pad, reflect": op.Pad(X, constant(np.array([0, 1, 2, 0, 1, 2])), mode="reflect"),
    "Pad, cut": op.Pad(X, constant(np.array([0, -1, 0, 0, 0, -2]))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_in_operators_that_are_translated(name):
    y = CASES[name]
    y = y if not isinstance(y, (list, tuple)) else y[0]
    simple = expand({"y": y})["y"]
    kinds = {(n.domain, n.op_type) for n in topological([simple])}
    assert kinds <= TRANSLATORS.keys()
    outputs = Session(build([X], {"simple": simple, "y": y})).run({"x": A})
    np.testing.assert_allclose(outputs["simple"], outputs["y"], rtol=1e-5, atol=1e-6)


def test_what_follows_from_shapes_is_a_constant():
    y = expand({"y": op.Expand(constant(np.float32(2)), op.Shape(X, start=1)), "n": op.Size(X)})
    assert y["n"].array == 24
    assert "Shape" not in [n.op_type for n in topological(list(y.values()))]

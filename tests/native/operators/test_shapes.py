"""Views and shapes in C beside numpy, each behind another."""

import shutil

import numpy as np
import pytest
from native_cases import compute_in_c

from ortpartial.graph import constant, op, variable

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

A = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
X = variable("x", "float32", A.shape)


def ints(*numbers):
    return constant(np.array(numbers))


def test_they_are_those_of_numpy():
    turned = op.Transpose(X, perm=[2, 0, 1])
    first, second = op.Split(X, ints(1, 2), axis=1, n_outputs=2)
    cases = {
        "Transpose": (turned, A.transpose(2, 0, 1)), "Reshape": (op.Reshape(X, ints(4, -1)), A.reshape(4, 6)),
        "Reshape of a view": (op.Reshape(turned, ints(8, 3)), A.transpose(2, 0, 1).reshape(8, 3)),
        "Slice": (X[:, ::-1, 1:3], A[:, ::-1, 1:3]),
        "Concat": (op.Concat(X, X * 2, axis=1), np.concatenate([A, 2 * A], 1)),
        "Split": (first - second[:, 1:], A[:, :1] - A[:, 2:]),
        "Expand": (op.Expand(X[:, :1], ints(2, 5, 4)), np.broadcast_to(A[:, :1], (2, 5, 4))),
        "Tile": (op.Tile(X, ints(1, 2, 1)), np.tile(A, (1, 2, 1))),
        "Pad": (op.Pad(X, ints(0, 1, 0, 1, 0, 2)), np.pad(A, ((0, 1), (1, 0), (0, 2)))),
        "Squeeze": (op.Squeeze(op.Unsqueeze(X, [1]), [1]), A),
        "Flatten": (op.Flatten(turned, axis=2), A.transpose(2, 0, 1).reshape(8, 3)),
    }
    found = compute_in_c({n: y for n, (y, _) in cases.items()}, {X: A})
    for name, (_, expected) in cases.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)

"""Reductions in C beside numpy: rows, columns, all axes, long and empty sums."""

import shutil

import numpy as np
import pytest
from native_cases import compute_in_c

from ortpartial.graph import op, variable

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

A = np.random.default_rng(0).normal(size=(3, 100, 4)).astype(np.float32)
X, E = variable("x", "float32", A.shape), variable("e", "float32", [0, 4])


def test_they_are_those_of_numpy():
    cases = {
        "rows": (op.ReduceSum(X, [2]), A.sum(2, keepdims=True)),
        "columns": (op.ReduceSum(X, [0], keepdims=0), A.sum(0)),
        "long": (op.ReduceMean(X, [1], keepdims=0), A.mean(1)), "all": (op.ReduceSum(X, keepdims=0), A.sum()),
        "two": (op.ReduceMax(X, [0, 2], keepdims=0), A.max((0, 2))),
        "least": (op.ReduceMin(X, [-1]), A.min(-1, keepdims=True)),
        "product": (op.ReduceProd(X[:, :3], [1], keepdims=0), A[:, :3].prod(1)),
        "norm": (op.ReduceL2(X, [2], keepdims=0), np.linalg.norm(A, axis=2)),
        "none": (op.ReduceSum(E, [0], keepdims=0), np.zeros(4)),
        "largest place": (op.ArgMax(X, axis=1, keepdims=0), A.argmax(1)),
        "of a view": (op.ReduceSum(op.Transpose(X, perm=[2, 1, 0])[::2], [1], keepdims=0), A.T[::2].sum(1)),
    }
    found = compute_in_c({n: y for n, (y, _) in cases.items()}, {X: A, E: np.zeros((0, 4), np.float32)})
    for name, (_, expected) in cases.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=2e-5, err_msg=name)

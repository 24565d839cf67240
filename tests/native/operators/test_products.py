"""MatMul and Gemm in C beside numpy: views, batches, vectors and addends."""

import shutil

import numpy as np
import pytest
from native_cases import compute_in_c

from ortpartial.graph import op, variable

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

RNG = np.random.default_rng(0)
ARRAYS = {n: RNG.normal(size=s).astype(np.float32) for n, s in (
    ("a", (5, 7)), ("b", (7, 3)), ("c", (3,)), ("batch", (2, 5, 7)), ("v", (7,)), ("empty", (0, 7)))}
A, B, C, D, V, E = (variable(n, "float32", a.shape) for n, a in ARRAYS.items())


def test_they_are_those_of_numpy():
    a, b, c, d, v, e = ARRAYS.values()
    cases = {
        "plain": (A @ B, a @ b), "batch": (D @ B, d @ b), "vector": (A @ V, a @ v), "vectors": (V @ V, v @ v),
        "transposed": (op.MatMul(op.Transpose(B, perm=[1, 0]), op.Transpose(A, perm=[1, 0])), b.T @ a.T),
        "Gemm": (op.Gemm(A, B, C, alpha=0.5, beta=2.0), 0.5 * a @ b + 2 * c),
        "Gemm, transposed": (op.Gemm(B, A, transA=1, transB=1), b.T @ a.T),
        "slice": (A[1:4, ::2] @ B[::2], a[1:4, ::2] @ b[::2]), "no rows": (E @ B, e @ b),
        "sum of no terms": (op.Transpose(E, perm=[1, 0]) @ E, e.T @ e),
    }
    found = compute_in_c({n: y for n, (y, _) in cases.items()}, dict(zip((A, B, C, D, V, E), ARRAYS.values(),
                                                                      strict=True)))
    for name, (_, expected) in cases.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)

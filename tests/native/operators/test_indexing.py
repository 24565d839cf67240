"""Gather and scatter in C beside numpy: places from the end, equal places, and none outside."""

import shutil

import numpy as np
import pytest
from native_cases import compute_in_c

from ortpartial.graph import constant, op, variable

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

RNG = np.random.default_rng(0)
A, U = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(2, 3)).astype(np.float32)
I, J = np.array([[0, -1, 2]]), np.array([[3, 0, 0], [3, -4, 1]])
X, V = variable("x", "float32", A.shape), variable("u", "float32", U.shape)
P, Q = variable("i", "int64", I.shape), variable("j", "int64", J.shape)


def test_they_are_those_of_numpy():
    added, replaced = A.copy(), A.copy()
    np.add.at(added, (J % 4, np.arange(3)), U)
    np.put_along_axis(replaced, J[:1] % 4, U[:1], 0)
    lengths = np.array([2, 4, 1])
    cases = {
        "Gather": (op.Gather(X, P), A[I]), "Gather, axis": (op.Gather(X, P, axis=1), A[:, I]),
        "Gather, constant": (op.Gather(X, constant(np.array(-2))), A[-2]),
        "GatherElements": (op.GatherElements(X, Q), np.take_along_axis(A, J % 4, 0)),
        "ScatterElements, add": (op.ScatterElements(X, Q, V, reduction="add"), added),
        "ScatterElements": (op.ScatterElements(X, Q[:1], V[:1]), replaced),
        "ReverseSequence": (op.ReverseSequence(X, constant(lengths)), np.stack(
            [np.concatenate([c[:n][::-1], c[n:]]) for c, n in zip(A.T, lengths, strict=True)], 1)),
    }
    found = compute_in_c({n: v for n, (v, _) in cases.items()}, {X: A, V: U, P: I, Q: J})
    for name, (_, expected) in cases.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name)


def test_a_place_outside_reads_no_foreign_memory():
    """An index from data that is out of range takes an element of the table."""
    found = compute_in_c({"y": op.Gather(X, P)}, {X: A, P: np.array([[99, -99, 0]])})
    assert set(found["y"].ravel()) <= set(A.ravel())

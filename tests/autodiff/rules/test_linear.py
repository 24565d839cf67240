"""Gradients of matrix products and determinants."""

import numpy as np
import pytest
import torch
from table import NOTHING, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.testing import check_gradient, evaluate

MATMUL = rows(
    ("two matrices", (2, 3), (3, 4)),
    ("vector and vector", (3,), (3,)),
    ("vector and matrix", (3,), (3, 4)),
    ("matrix and vector", (2, 3), (3,)),
    ("vector and batch", (3,), (2, 3, 4)),
    ("batch and vector", (2, 4, 3), (3,)),
    ("batch and matrix", (2, 4, 3), (3, 5)),
    ("two axes of batch and matrix", (2, 1, 4, 3), (3, 5)),
    ("matrix and batch", (4, 3), (2, 3, 5)),
    ("batch and batch", (2, 4, 3), (2, 3, 5)),
    ("left batch repeated", (1, 4, 3), (2, 3, 5)),
    ("right batch repeated", (2, 4, 3), (1, 3, 5)),
    ("both repeated", (2, 1, 4, 3), (3, 3, 5)),
    ("different ranks", (3, 4, 3), (2, 3, 3, 5)),
    ("outer product", (4, 1), (1, 5)),
    ("no rows", (0, 3), (3, 4), NOTHING),
    ("no rows in a batch", (0, 2, 3), (3, 4), NOTHING),
    ("sums of nothing", (2, 0), (0, 4), NOTHING),
)


@pytest.mark.parametrize(("a", "b"), MATMUL)
def test_matmul(a, b):
    args = [real(*a), real(*b, seed=1)]
    check_gradient(op.MatMul, args, directions=1)
    assert_as_torch(op.MatMul, torch.matmul, args)


def gemm(alpha, beta, transA, transB):
    def f(a, b, *c):
        return op.Gemm(a, b, *c, alpha=alpha, beta=beta, transA=transA, transB=transB)

    def torch_f(a, b, *c):
        y = alpha * ((a.T if transA else a) @ (b.T if transB else b))
        return y + beta * c[0] if c else y

    return f, torch_f


@pytest.mark.parametrize("c", [None, (), (1,), (4,), (1, 4), (2, 1), (2, 4)], ids=str)
@pytest.mark.parametrize(("transA", "transB"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, -2.0)])
def test_gemm(alpha, beta, transA, transB, c):
    f, torch_f = gemm(alpha, beta, transA, transB)
    args = [real(*((3, 2) if transA else (2, 3))), real(*((4, 3) if transB else (3, 4)), seed=1)]
    args += [] if c is None else [real(*c, seed=2)]
    check_gradient(f, args, directions=1, order=2 if c in (None, (4,)) else 1)
    assert_as_torch(f, torch_f, args)


def nodes(y, wrt, dy):
    model = build([*wrt, dy], {f"d{v.hint}": d for v, d in zip(wrt, grad(y, wrt, [dy]), strict=True)})
    return [node.op_type for node in model.graph.node if node.op_type != "Identity"]


def test_matrices_need_no_transpose():
    a, b, dy = variable("a", "float32", ["N", 3]), variable("b", "float32", [3, 4]), variable("dy", "float32", ["N", 4])
    assert nodes(a @ b, [a, b], dy) == ["Gemm", "Gemm"]
    assert nodes(op.Gemm(a, b), [a, b], dy) == ["Gemm", "Gemm"]


def test_a_matrix_under_a_batch_is_one_flat_product():
    a, dy = variable("a", "float32", ["N", 7, 3]), variable("dy", "float32", ["N", 7, 4])
    b = variable("b", "float32", [3, 4])
    model = build([a, dy], grad(a @ b, [b], [dy]))
    assert [node.op_type for node in model.graph.node] == ["Flatten", "Flatten", "Gemm"]


def test_what_is_not_asked_for_is_not_emitted():
    a, b, dy = variable("a", "float32", ["N", 3]), variable("b", "float32", [3, 4]), variable("dy", "float32", ["N", 4])
    model = build([a, dy], grad(a @ b, [b], [dy]))
    assert [node.op_type for node in model.graph.node] == ["Gemm"]


def test_in_float32_a_step_of_one_is_exact():
    # A bilinear operator of small integers: no rounding, so the gradient must be right to the last bit.
    a, b = (np.arange(6, dtype=np.float32).reshape(2, 3) - 2), np.arange(12, dtype=np.float32).reshape(3, 4)
    dy = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
    x = [variable(n, "float32", v.shape) for n, v in (("a", a), ("b", b), ("dy", dy))]
    da, db = grad(x[0] @ x[1], x[:2], x[2:])
    found = evaluate(build(x, {"da": da, "db": db}), {"a": a, "b": b, "dy": dy})
    for name, v in (("da", a), ("db", b)):
        for i in np.ndindex(v.shape):
            step = np.zeros_like(v)
            step[i] = 1
            change = (a + step) @ b - a @ b if name == "da" else a @ (b + step) - a @ b
            assert found[name][i] == (dy * change).sum()


MATRICES = rows(
    ("one element", real(1, 1)),
    ("two", real(2, 2)),
    ("three", real(3, 3)),
    ("five", real(5, 5)),
    ("batch", real(2, 3, 3)),
    ("batches", real(2, 1, 2, 2)),
    ("no inverse", np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 2.0]) + np.outer([0.0, 1.0, 1.0], [2.0, 0.0, 1.0])),
    ("rank one", np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0, 3.0])),
    ("zeros", np.zeros((3, 3))),
)


@pytest.mark.parametrize("x", MATRICES)
def test_determinant(x):
    # onnxruntime has it in float32 alone.
    check_gradient(op.Det, [x], directions=1)


@pytest.mark.parametrize("x", MATRICES[:6])
def test_determinant_as_torch(x):
    assert_as_torch(op.Det, torch.linalg.det, [x])

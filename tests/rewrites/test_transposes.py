"""Transpose elimination: the same values with fewer Transposes."""

import numpy as np
import pytest
from numbered_cases import check_case

from ortpartial.autodiff.grad import grad
from ortpartial.graph import constant, op, topological, variable
from ortpartial.graph.build import build
from ortpartial.rewrites.protocol import select_rewrites
from ortpartial.rewrites.transposes import cancel_transposes
from ortpartial.runtime.session import Session


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def moves(outputs):
    return sum(node.op_type == "Transpose" for node in topological(outputs))


def turned(y, *perm):
    return op.Transpose(y, perm=list(perm))


W, B, ROW, SQUARE = (constant(real(*s, seed=i)) for i, s in enumerate([(6, 5), (5,), (6,), (6, 6)]))
PERM = (1, 0, 2)


def attention(x):
    """As torch exports it: tokens first, heads as an axis together with the batch."""
    n, t, c = x.shape
    three = op.Reshape(turned(x, *PERM) @ constant(real(6, 18)) + constant(real(18)), [t, n, 3, c])
    q, k, v = (turned(op.Reshape(part, [t, n * 2, c // 2]), *PERM) for part in op.Split(three, axis=2, num_outputs=3))
    y = turned(op.Softmax(q @ turned(k, 0, 2, 1)) @ v, *PERM)
    y = op.Reshape(op.Gemm(op.Reshape(y, [t * n, c]), SQUARE, transB=1), [t, n, c])
    return x + turned(y, *PERM)


# By name: the expression of x (2, 3, 6), and how many moves it has before and after.
CASES = {
    "a product": (lambda x: turned(turned(x, *PERM) @ W + B, *PERM), 2, 0),
    "attention": (attention, 7, 5),
    "rows apart": (lambda x: turned(op.Reshape(op.Gemm(op.Reshape(turned(x, *PERM), [6, 6]), W, B), [3, 2, 5]), *PERM),
                   2, 0),
    "norm and activation": (lambda x: turned(op.Relu(op.LayerNormalization(turned(x, *PERM), ROW)), *PERM), 2, 0),
    "axes of one": (lambda x: turned(op.Unsqueeze(turned(x, *PERM), [1]), 2, 1, 0, 3), 2, 0),
    "parts": (lambda x: op.Add(*(turned(y, *PERM) for y in op.Split(turned(x, *PERM), axis=2, num_outputs=2))), 3, 0),
    "a sum of two": (lambda x: turned(turned(x, *PERM) + turned(2.0 * x, *PERM), *PERM), 3, 0),
    "two in one": (lambda x: turned(op.Neg(turned(x, 2, 0, 1)), 0, 2, 1), 2, 1),
    "the last axis cut": (lambda x: turned(op.Reshape(turned(x, *PERM) * ROW, [3, 2, 2, 3]), 1, 0, 2, 3),
                          2, 0),
    "a bias first": (lambda x: turned(ROW - turned(x, *PERM), *PERM), 2, 0),
    "a bias along an axis that lies elsewhere": (lambda x: turned(turned(x, 0, 2, 1) + constant(real(3)), 0, 2, 1),
                                                 2, 2),
    "a bias of rows": (lambda x: turned(turned(x, *PERM) + constant(real(2, 1)), *PERM), 2, 2),
    "other axes reduced": (lambda x: op.ReduceSum(turned(x, *PERM), [0]), 1, 1),
    "a softmax over rows": (lambda x: turned(op.Softmax(turned(x, *PERM), axis=0), *PERM), 2, 2),
    "axes cut across": (lambda x: op.Reshape(turned(x, *PERM), [2, 3, 6]), 1, 1),
    "a product of matrices that move": (lambda x: turned(x, 1, 2, 0) @ turned(x, *PERM), 2, 2),
    "a product with transA": (lambda x: op.Gemm(op.Reshape(turned(x, *PERM), [6, 6]), W, transA=1), 1, 1),
}
# A Gemm whose bias is a number was an IndexError.
CASES["a number for a bias"] = (
    lambda x: turned(op.Reshape(op.Gemm(op.Reshape(turned(x, *PERM), [6, 6]), W, constant(np.float32(2))), [3, 2, 5]),
                     *PERM), 2, 0)
LEFT = {"a bias along an axis that lies elsewhere", "a bias of rows", "other axes reduced", "a softmax over rows",
        "axes cut across", "a product of matrices that move", "a product with transA"}


NUMBERED = {
    "cancel_transposes 1": "two in one",
    "cancel_transposes 2": "axes of one",
    "cancel_transposes 3": "parts",
    "cancel_transposes 4": "norm and activation",
    "cancel_transposes 5": "a bias first",
    "cancel_transposes 6": "a product",
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    y = CASES[NUMBERED[case]][0](variable("x", "float32", [2, 3, 6]))
    check_case(case, lambda: cancel_transposes({"y": y}))


@pytest.mark.parametrize("name", CASES)
def test_what_stays_is_not_reported(name):
    y = CASES[name][0](variable("x", "float32", [2, 3, 6]))
    with select_rewrites() as reports:
        stays = cancel_transposes({"y": y})["y"] is y
    assert stays == (not reports)


@pytest.mark.parametrize("name", CASES)
def test_fewer_transposes(name):
    make, before, after = CASES[name]
    x = variable("x", "float32", [2, 3, 6])
    y = make(x)
    actual = cancel_transposes({"y": y})["y"]
    assert (moves([y]), moves([actual])) == (before, after)
    assert (actual is y) == (name in LEFT)
    assert actual.shape == y.shape
    grads = [grad(op.ReduceSum(op.Sin(v)), [x])[0] for v in (y, actual)]
    ran = Session(build([x], dict(zip("abcd", [y, actual, *grads], strict=True)))).run({"x": real(2, 3, 6)})
    np.testing.assert_allclose(ran["b"], ran["a"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ran["d"], ran["c"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [("N", 3, 6), (0, 3, 6)])
def test_symbolic_and_empty_shapes_stay(shape):
    y = CASES["a product"][0](variable("x", "float32", shape))
    assert cancel_transposes({"y": y})["y"] is y


@pytest.mark.parametrize("seed", range(60))
def test_random_transposes(seed):
    """Axes permuted, cut, joined and computed on in any order."""
    rng = np.random.default_rng(seed)
    x = y = variable("x", "float32", [2, 3, 4])
    for _ in range(8):
        shape = list(y.shape)
        match rng.integers(6):
            case 0 | 1:
                y = turned(y, *rng.permutation(y.rank).tolist())
            case 2 if y.rank > 1:
                a = int(rng.integers(y.rank - 1))
                y = op.Reshape(y, [*shape[:a], shape[a] * shape[a + 1], *shape[a + 2 :]])
            case 3 if any(n in (4, 6, 12) for n in shape):
                a = next(i for i, n in enumerate(shape) if n in (4, 6, 12))
                y = op.Reshape(y, [*shape[:a], 2, shape[a] // 2, *shape[a + 1 :]])
            case 4 if y.rank > 1:
                y = y @ constant(real(shape[-1], shape[-1], seed=seed)) + constant(real(shape[-1], seed=seed))
            case 5:
                y = op.Tanh(op.Unsqueeze(y, [int(rng.integers(y.rank + 1))]) if y.rank < 4 else y)
    actual = cancel_transposes({"y": y})["y"]
    assert actual.shape == y.shape
    ran = Session(build([x], {"a": y, "b": op.Identity(actual)})).run({"x": real(2, 3, 4)})
    np.testing.assert_allclose(ran["b"], ran["a"], rtol=1e-4, atol=1e-5)

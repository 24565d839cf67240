"""Random programs in C beside onnxruntime: fused operators, views, reductions and products of every layout."""

import shutil

import numpy as np
import pytest
from native_cases import compute_by_runtime, compute_in_c
from once import ON_NEWEST

from ortpartial.graph import op, variable

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

UNARY = (op.Tanh, op.Sigmoid, op.Abs, op.Neg, op.Sin, lambda x: op.Exp(op.Tanh(x)), lambda x: op.Log(1.0 + x * x),
         op.Relu, lambda x: op.Erf(x * 0.5))
BINARY = (op.Add, op.Sub, op.Mul, op.Max, op.Min, lambda a, b: a / (1.0 + b * b),
          lambda a, b: op.Where(op.Greater(a, b), a, b * 0.5))
REDUCTIONS = (op.ReduceSum, op.ReduceMean, op.ReduceMax, op.ReduceLogSumExp, op.ReduceL2, op.ReduceSumSquare)


def add_view(rng, x):
    """A view of a value: turned, cut, reshaped, repeated or reversed."""
    shape, kind = list(x.shape), int(rng.integers(5))
    axis = int(rng.integers(len(shape)))
    if kind == 0:
        return op.Transpose(x, perm=[int(a) for a in rng.permutation(len(shape))])
    if kind == 1:
        at = int(rng.integers(shape[axis]))
        return op.Slice(x, [at], [shape[axis]], [axis], [int(rng.integers(1, 3))])
    if kind == 2:
        return op.Slice(x, [shape[axis] - 1], [-shape[axis] - 1], [axis], [-1])
    if kind == 3:
        return op.Reshape(x, [-1, shape[axis]])
    return op.Concat(x, op.Tanh(x), axis=axis)


def draw_program(seed):
    """Values by name, most of them computed of others, and the numbers of the variables."""
    rng = np.random.default_rng(seed)
    numbers = {}

    def make(*shape):
        v = variable("x", "float32", shape)
        numbers[v] = rng.normal(size=shape).astype(np.float32)
        return v

    shapes = [tuple(int(n) for n in rng.integers(1, 9, rng.integers(1, 5))) for _ in range(4)]
    values = [make(*shape) for shape in shapes] + [make(1), make(17, 33)]
    for _ in range(40):
        x = values[int(rng.integers(max(0, len(values) - 12), len(values)))]
        kind = rng.choice(["unary", "binary", "view", "reduction", "product"], p=[0.2, 0.3, 0.2, 0.15, 0.15])
        if kind == "unary":
            y = UNARY[int(rng.integers(len(UNARY)))](x)
        elif kind == "binary":
            others = [v for v in values if v.rank <= x.rank and all(
                a in (1, b) for a, b in zip(v.shape[::-1], x.shape[::-1], strict=False))]
            y = BINARY[int(rng.integers(len(BINARY)))](x, others[int(rng.integers(len(others)))])
        elif kind == "view":
            y = add_view(rng, x)
        elif kind == "reduction":
            axes = sorted(int(a) for a in rng.choice(x.rank, rng.integers(1, x.rank + 1), replace=False))
            y = REDUCTIONS[int(rng.integers(len(REDUCTIONS)))](x, axes)
        else:
            if x.rank < 2:
                continue
            n, m = x.shape[-1], int(rng.choice([1, 2, 5, 8, 15, 16, 17, 31, 33, 65]))
            y = op.MatMul(x, make(n, m)) * float(n) ** -0.5
            if rng.random() < 0.5:
                y = op.Transpose(op.MatMul(make(m, n), op.Transpose(op.Reshape(x, [-1, n]))))
        if 0 < np.prod(y.shape) <= 6000 and y.rank <= 5:
            values.append(y)
    computed = {f"{i}": v for i, v in enumerate(values) if v.node is not None}
    # Squares of squares soon leave the range of float32.
    sizes = {n: abs(a).max() for n, a in compute_by_runtime(computed, numbers).items()}
    return {n: v for n, v in computed.items() if sizes[n] < 1e6}, numbers


def draw_products(seed):
    """Products of every layout: operands turned, an addend of any shape, batches, factors."""
    rng = np.random.default_rng(seed)
    values, numbers = {}, {}

    def make(*shape):
        v = variable("x", "float32", shape)
        numbers[v] = rng.normal(size=shape).astype(np.float32)
        return v

    for i in range(30):
        m, n, k = (int(rng.choice([1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65])) for _ in "mnk")
        turned = [int(t) for t in rng.integers(0, 2, 2)]
        a, b = make(*((k, m) if turned[0] else (m, k))), make(*((n, k) if turned[1] else (k, n)))
        addend = [None, make(n), make(m, 1), make(m, n), make(1)][int(rng.integers(5))]
        values[f"gemm {i}: {m} {n} {k} {turned}"] = op.Gemm(
            a, b, addend, transA=turned[0], transB=turned[1], alpha=float(rng.choice([1.0, -0.5])),
            beta=float(rng.choice([1.0, 2.0])))
        if i % 3 == 0:
            batch = int(rng.integers(1, 4))
            left = make(batch, m, k) if i % 2 else op.Transpose(make(m, batch, k), perm=[1, 0, 2])
            right = make(k, n) if i % 4 else op.Transpose(make(batch, n, k), perm=[0, 2, 1])
            values[f"batch {i}: {batch} {m} {n} {k}"] = left @ right
    return values, numbers


def check(values, numbers, seed):
    expected = compute_by_runtime(values, numbers)
    for n, y in compute_in_c(values, numbers).items():
        scale = max(1.0, float(abs(expected[n]).max(initial=0)))
        np.testing.assert_allclose(y, expected[n], rtol=2e-5, atol=2e-5 * scale, err_msg=f"seed {seed}, value {n}")


@pytest.mark.parametrize("draw", [draw_program, draw_products])
def test_a_random_program(draw):
    check(*draw(0), 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 60))
@pytest.mark.parametrize("draw", [draw_program, draw_products])
def test_random_programs(draw, seed):
    check(*draw(seed), seed)

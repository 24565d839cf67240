"""Row chunks on random heads: costs and gradients of logits in a loop equal the whole's."""

import numpy as np
import pytest
from random_graphs import Draw, assert_equal, run

from ortpartial.autodiff.grad import grad
from ortpartial.graph import constant, op
from ortpartial.rewrites.row_chunks import find_row_head

FEW, MANY = 25, 500


def head(d):
    """Logits of several layers that compute rows from rows, and now and then of one that does not."""
    rows = [d.size(empty=0.0, most=5) for _ in range(d.rng.integers(1, 4))]
    k, width, dtype = d.size(empty=0.0, most=4), int(d.rng.integers(6, 12)), d.dtype("float64")
    is_open = d.chance(0.4)
    if is_open:
        rows[0] = d.one(0, 1, 2, 5, 9)
    h = d.variable([*rows, k], dtype, strange=0.0, first="N" * is_open)
    kind = 1 if dtype == "float32" else 11
    w = d.variable((k, width), dtype, strange=0.0)
    b = d.variable(d.one((width,), (1, width), (1,)), dtype, strange=0.0)
    y = h @ w
    if d.chance(0.3):
        y = op.Gemm(op.Flatten(h, axis=-1), w, b if d.chance() else None, alpha=0.5)
        if d.chance() and h.is_static:
            y = op.Reshape(y, [*h.shape[:-1], width])
    for _ in range(int(d.rng.integers(0, 4))):
        third = constant(np.array(3, dtype))
        y = d.one(lambda y: y + b, lambda y: b * y, lambda y: op.Tanh(y) * 2, lambda y, n=third: y / n,
                  lambda y: op.Clip(y, -1.0, 1.0), lambda y: op.Cast(op.Cast(y, to=11), to=kind),
                  lambda y: -y, op.Identity, lambda y: op.Unsqueeze(y, [0]), lambda y: y - op.Tanh(y))(y)
    across = d.chance(0.15)
    return h, op.Softmax(y, axis=0) if across else y, across


def cost(y, t):
    """The cross-entropy of rows of logits and a column of labels."""
    return op.ReduceLogSumExp(y, [-1]) - op.GatherElements(y, t, axis=-1)


def check(count, limit):
    sides = {False: 0, True: 0}
    for seed in range(count):
        d = Draw(np.random.default_rng([7, seed]))
        limit(chunk_elements=0, chunk_rows=d.one(1, 2, 3, 4))
        h, y, across = head(d)
        rows = int(np.prod(d.of(h).shape[:-1]))
        found = find_row_head(y, [], {"N": 10**6})
        assert not (across and found), seed
        sides[found is not None] += 1
        if found is None:
            continue
        first = "" if h.is_static else "M"
        t = d.variable((rows, 1), "int64", array=d.rng.integers(0, y.shape[-1], (rows, 1)), first=first)
        shares = d.variable((rows, 1), str(y.dtype), strange=0.0, first=first)
        costs, gradients = found.run(cost, t, shares)
        if rows == 0:  # onnxruntime 1.19.2 keeps all columns of nothing in a reduction, so the whole is no reference.
            assert [a.shape for a in run(d, [costs, *gradients])] == [(0, 1), *(a.shape for a in run(d, found.sources))]
            continue
        whole = cost(op.Flatten(y, axis=-1), t)
        expected = grad([whole], found.sources, [shares])
        outputs = run(d, [costs, *gradients, whole, *expected])
        half = len(outputs) // 2
        for a, b in zip(outputs[:half], outputs[half:], strict=True):
            assert_equal(a, b, False, f"seed {seed}: {y}, {list(d.arrays)}")
    assert min(sides.values()) > count // 10, sides


def test_random_heads(limit):
    check(FEW, limit)


@pytest.mark.slow
def test_many_random_heads(limit):
    check(MANY, limit)

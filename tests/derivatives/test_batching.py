"""Batches of expressions, beside the expression of every element."""

import numpy as np
import pytest
from table import real, rows

from ortpartial.derivatives import list_loops, vmap
from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, build, op, scan, variable
from ortpartial.testing import evaluate

SIZE = 3


def draw(a, rng):
    """A batch of arrays like this one: of real numbers, or of the same whole numbers in other orders."""
    if a.dtype.kind == "f":
        return rng.normal(size=(SIZE, *a.shape)).astype(a.dtype)
    return np.stack([rng.permutation(a.ravel()).reshape(a.shape) for _ in range(SIZE)])


def compare(f, arrays, which, naming):
    """The nodes that are repeated, once the batch has been compared with its elements."""
    rng = np.random.default_rng(0)
    xs = [variable(f"x{i}", a.dtype, [naming(i, k, n) for k, n in enumerate(a.shape)]) for i, a in enumerate(arrays)]
    data = [draw(a, rng) if i in which else a for i, a in enumerate(arrays)]
    batches = {xs[i]: variable(f"b{i}", xs[i].dtype, ["B", *xs[i].shape]) for i in which}
    ys = f(*xs)
    ys = [ys] if isinstance(ys, Value) else list(ys)
    inputs = [batches.get(x, x) for x in xs]
    result = evaluate(build(inputs, dict(enumerate_names(vmap(ys, batches)))),
                      {x.hint: a for x, a in zip(inputs, data, strict=True)})
    single = build(xs, dict(enumerate_names(ys)))
    each = [evaluate(single, {x.hint: a[k] if i in which else a for i, (x, a) in enumerate(zip(xs, data, strict=True))})
            for k in range(SIZE)]
    for n, whole in result.items():
        expected = np.stack([r[n] for r in each])
        assert whole.shape == expected.shape
        np.testing.assert_allclose(whole, expected, rtol=1e-9, atol=1e-12)
    return [node.op_type for node in list_loops(ys, batches)]


def enumerate_names(values):
    return ((f"y{i}", v) for i, v in enumerate(values))


AT = np.array([2, 0, 1])

# The expression, its arguments, and the operators that are repeated where each argument alone, and all, are batches.
TABLE = rows(
    ("elementwise, ranks differ", lambda a, b: op.Max(a * b, b), [real(4), real(2, 4)]),
    ("Where", lambda a, b: op.Where(a > 0, a, b), [real(4), real(2, 4)]),
    ("Softmax", lambda a: op.Softmax(a, axis=0), [real(2, 4)]),
    ("reductions", lambda a: (op.ReduceSum(a, [0], keepdims=0), op.ReduceMax(a, [-1]), op.ReduceMean(a, keepdims=0)),
     [real(2, 4)]),
    *[(f"MatMul {a} {b}", op.MatMul, [real(*a), real(*b)]) for a, b in (
        [(3,), (3,)], [(3,), (3, 2)], [(2, 3), (3,)], [(2, 3), (3, 4)], [(5, 2, 3), (3, 4)], [(2, 3), (5, 3, 4)],
        [(5, 2, 3), (5, 3, 4)], [(3,), (5, 3, 4)], [(5, 2, 3), (3,)])],
    ("Gemm", lambda a, b, c: op.Gemm(a, b, c, transA=1, alpha=2.0, beta=0.5), [real(3, 2), real(3, 4), real(4)]),
    ("Gemm turned", lambda a, b: op.Gemm(a, b, transB=1), [real(2, 3), real(4, 3)]),
    ("shapes", lambda a: (op.Transpose(a), op.Reshape(a, [0, -1]), op.Flatten(a, axis=2), op.Unsqueeze(a, [0, -1])),
     [real(2, 3, 4)]),
    ("Squeeze", lambda a: op.Squeeze(a, [-1]), [real(2, 1)]),
    ("Expand", lambda a: op.Expand(a, [2, 3, 4]), [real(3, 1)]),
    ("sizes", lambda a: op.Expand(op.ReduceSum(a, keepdims=0), op.Shape(a)), [real(2, 4)]),
    ("last size", lambda a: a * op.Cast(op.Shape(a, start=-1), to=11), [real(2, 4)]),
    ("Concat", lambda a, b: op.Concat(a, b, axis=-1), [real(2, 3), real(2, 4)]),
    ("Slice, Pad, Tile", lambda a: (a[1:, ::2], op.Pad(a, [1, 0, 0, 2]), op.Tile(a, [2, 1])), [real(3, 4)]),
    ("Split", lambda a: op.Split(a, num_outputs=2, axis=1), [real(2, 4)]),
    ("Trilu, CumSum, TopK", lambda a: (op.Trilu(a), op.CumSum(a, -1), op.TopK(a, [2])[0]), [real(3, 4)]),
    ("Gather 0", lambda a, i: op.Gather(a, i, axis=0), [real(3, 4), AT]),
    ("Gather 1", lambda a, i: op.Gather(a, i, axis=1), [real(2, 3), AT], {(0, 1): ["Gather"]}),
    ("GatherND", lambda a, i: op.GatherND(a, op.Unsqueeze(i, [-1])), [real(3, 4), AT]),
    ("ScatterElements", lambda a, u: op.ScatterElements(a, np.array([[0, 1]]), u, axis=1), [real(2, 4), real(1, 2)]),
    ("Conv", op.Conv, [real(2, 3, 5, 5), real(4, 3, 2, 2)], {(1,): ["Conv"], (0, 1): ["Conv"]}),
    ("MaxPool", lambda a: op.MaxPool(a, kernel_shape=[2, 2]), [real(2, 3, 4, 4)]),
    ("LayerNormalization", op.LayerNormalization, [real(2, 3), real(3), real(3)]),
    ("Einsum", lambda a, b: op.Einsum(a, b, equation="ij,jk->ik"), [real(2, 3), real(3, 4)]),
    ("Scan", lambda a, b: scan(lambda s, x: (s + x, s * x), a, b)[1], [real(3), real(4, 3)], {"": ["Scan"]}),
    ("function of the specification", op.Mish, [real(4)]),
    ("CastLike", lambda a, b: op.CastLike(a, b), [real(2), real(3)]),
    ("axes at run time", lambda a, n: op.ReduceSum(a, op.Abs(n), keepdims=0), [real(2, 4), np.array([1])],
     {"": ["ReduceSum"]}),
)


@pytest.mark.parametrize("naming", [lambda i, k, n: n, lambda i, k, n: f"n{i}_{k}"], ids=["static", "symbolic"])
@pytest.mark.parametrize("row", [pytest.param(row.values, id=row.id) for row in TABLE])
def test_batch(row, naming):
    f, arrays, *loops = row
    floats = [i for i, a in enumerate(arrays)]
    for which in {*((i,) for i in floats), tuple(floats)}:
        expected = loops[0].get(which, loops[0].get("", [])) if loops else []
        repeated = compare(f, arrays, which, naming)
        if naming(0, 0, 1) == 1:  # with symbolic sizes, more are
            assert repeated == expected


def test_sizes_that_depend_on_elements():
    x, xs = variable("x", "float32", [3]), variable("xs", "float32", ["B", 3])
    with pytest.raises(GraphError, match="as many elements as its input decides"):
        vmap([op.NonZero(x)], {x: xs})

"""Random steps in C whose states are read after their update, reductions over all axes, products of all blockings."""

import itertools
import shutil
from ctypes import c_void_p

import numpy as np
import pytest
from native_cases import compute_by_runtime, compute_in_c
from once import ON_NEWEST
from random_graphs import Draw

from ortpartial.graph import constant, op, variable
from ortpartial.native import compile_library, lay_out, translate
from ortpartial.native.compiler import FLAGS
from ortpartial.native.products import ProductShape
from tests.native.test_products import Operands, assert_near
from tests.native.test_products import write_library as write_products

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

PLAIN = tuple(f for f in FLAGS if f != "-O3")
SIZES = (1, 3, 8, 17)


def change(d, w, states, values):
    """A new value of a state, which may read elements that it has overwritten by then."""
    n = w.shape[0]
    alike = [v for v in [*states, *values] if v.shape == w.shape]
    other = d.one(*alike)
    vectors = [v for v in states if v.rank == 1 and v.shape[0] == w.shape[-1]] or [constant(np.float32(0.5))]
    kinds = {
        "kept": lambda: w, "other": lambda: other, "moved": lambda: w * 0.5 + other,
        "zero": lambda: w * 0.0, "turned round": lambda: w[::-1], "shifted": lambda: op.Concat(w[1:], w[:1], axis=0),
        "sum": lambda: w + op.ReduceMean(w), "sum of another": lambda: w - op.ReduceMean(other, [0]) * 0.5,
        "chosen": lambda: op.Where(op.Greater(w, other), other, w), "row": lambda: w * d.one(*vectors),
        "first": lambda: w + w[:1], "last": lambda: w[n - 1 :] - w, "tanh": lambda: op.Tanh(other + w),
        "scattered": lambda: op.ScatterElements(w, np.zeros((1, *w.shape[1:]), np.int64), other[n - 1 :], axis=0),
        "halves": lambda: op.Concat(w[n // 2 :], op.Neg(other[: n // 2]), axis=0)}
    if w.rank == 2 and w.shape[0] == w.shape[1]:
        square = {"turned": lambda: op.Transpose(w), "turned and moved": lambda: w + op.Transpose(other),
                  "product": lambda: op.MatMul(w, other) / n, "product from behind": lambda: op.MatMul(other, w) / n,
                  "product added": lambda: op.Gemm(op.Tanh(other), other, w, alpha=1.0 / n, transA=1)}
        kinds |= square if d.chance(0.5) else {}
    return kinds[d.one(*kinds)]()


def draw_states(d):
    """States, their new values and further values of both, and the numbers of the states."""
    n = d.one(*SIZES)
    shapes = [[n, n], [n, n], [n], [n], [n, 4], [3, n, 2]][: d.one(3, 4, 6)]
    states = [variable(f"w{i}", "float32", shape) for i, shape in enumerate(shapes)]
    arrays = {v: d.rng.normal(size=v.shape).astype(np.float32) for v in states}
    values = []
    for _ in range(d.one(0, 2, 5)):
        v = d.one(*states, *values)
        values.append(d.one(op.Tanh, op.Neg, lambda v: v[::-1], lambda v: v * d.one(*[
            u for u in states if u.shape == v.shape]))(v))
    new = []
    for w in states:
        y = change(d, w, states, [*values, *new])
        new.append(change(d, y, states, [*values, *new]) if d.chance(0.3) else y)
    # What is read beside and after: of the former states, of the new ones, and of both.
    reads = [d.one(*states, *new, *values) for _ in range(d.one(0, 1, 3))]
    results = [d.one(op.Neg, lambda v: op.ReduceSum(v, [0]), lambda v: v[::-1] * 2.0)(v) for v in reads]
    return states, new, results, arrays


def run_steps(states, new, results, arrays, count):
    """States and results after each step, in C."""
    former = {f"former{i}": variable("f", v.dtype, v.shape) for i, v in enumerate(results)}
    inputs = {**{f"w{i}": v for i, v in enumerate(states)}, **former}
    outputs = {**{f"new{i}": v for i, v in enumerate(new)}, **{f"result{i}": v for i, v in enumerate(results)}}
    state = dict(zip(inputs, outputs, strict=True))
    step = translate(inputs, {**outputs, "loss": constant(0.0, np.float32)}, rows=[], state=state, loss="loss")
    library = compile_library(step.source, {"step.h": step.header}, flags=(*PLAIN, "-O1"))
    memory, none = np.zeros(1, lay_out(step.memory)), np.zeros(1, np.int64)
    content = np.zeros(1, lay_out(step.state))
    for f, v in zip(step.state, states, strict=False):
        content[f.c_name][0][: f.size] = arrays[v].ravel()
    for _ in range(count):
        memory.view(np.uint8)[...] = 0x5A  # Nonsense, which no value may depend on.
        library.step_step(*(c_void_p(a.ctypes.data) for a in (content, memory, none, none, none)))
        yield [content[f.c_name][0][: f.size].reshape(f.shape).copy() for f in step.state]


def check_states(seed):
    d = Draw(np.random.default_rng([1, seed]))
    states, new, results, arrays = draw_states(d)
    for step, actual in enumerate(run_steps(states, new, results, arrays, 3)):
        expected = compute_by_runtime({f"{i}": v for i, v in enumerate([*new, *results])}, arrays)
        for i, (a, b) in enumerate(zip(actual, expected.values(), strict=True)):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5 * max(1.0, float(abs(b).max())),
                                       err_msg=f"seed {seed}, step {step}, {i}: {new}")
        # Both go on from the same numbers, or rounding would add up.
        arrays = dict(zip(states, actual, strict=False))


REDUCTIONS = {
    "ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod,
    "ReduceL1": lambda a, **s: np.sum(abs(a), **s), "ReduceL2": lambda a, **s: np.sqrt(np.sum(a * a, **s)),
    "ReduceSumSquare": lambda a, **s: np.sum(a * a, **s), "ReduceLogSum": lambda a, **s: np.log(np.sum(a, **s)),
    "ReduceLogSumExp": lambda a, **s: np.log(np.sum(np.exp(a), **s))}


def check_reductions(seed):
    """Reductions of random shapes over every set of axes, of plain values and of views, by their definition."""
    d = Draw(np.random.default_rng([2, seed]))
    values, expected, numbers = {}, {}, {}
    for rank in (1, 2, 3, 4):
        shape = [d.one(1, 2, 5, 8, 17) for _ in range(rank)]
        x = variable("x", d.one("float32", "float32", "float64"), shape)
        numbers[x] = (d.rng.uniform(0.5, 1.5, size=shape) * d.one(-1, d.rng.choice([-1, 1], shape))).astype(x.dtype)
        for axes in itertools.chain(*(itertools.combinations(range(rank), n) for n in range(rank + 1))):
            name, keepdims, noop = d.one(*REDUCTIONS), d.one(0, 1), d.one(0, 1)
            perm = d.rng.permutation(rank).tolist() if d.chance() else list(range(rank))
            v, a = op.Transpose(x, perm=perm), numbers[x].astype(np.float64).transpose(perm)
            signed = [i - rank if d.chance() else i for i in axes]
            if d.chance(0.3):
                v, a = v[::-1], a[::-1]
            if name == "ReduceLogSum":
                v, a = v * v, a * a
            y = getattr(op, name)(v, signed, keepdims=keepdims, noop_with_empty_axes=noop)
            # Over no axes, the elements are what is reduced, each by itself.
            over = axes or (() if noop else tuple(range(rank)))
            key, rounding = f"{name} {shape} {perm} {signed} {keepdims} {noop}", 10 * float(np.finfo(x.dtype).eps)
            right = REDUCTIONS[name](a, axis=over, keepdims=bool(keepdims))
            values[key], expected[key] = y, (right, rounding * max(1.0, float(abs(a).sum(over).max())))
    actual = compute_in_c(values, numbers, (*PLAIN, "-O0"))
    for n, y in actual.items():
        right, tolerance = expected[n]
        assert y.shape == right.shape, (seed, n)
        np.testing.assert_allclose(y, right, rtol=tolerance, atol=tolerance, err_msg=f"seed {seed}, {n}")


BLOCKS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65, 127, 128, 129, 200, 255, 256, 257, 300)


def draw_product(d):
    """Sizes around the widths of registers and panels, at most 2^20 multiplications, and any strides."""
    while True:
        m, n, k = (d.one(*BLOCKS) for _ in "mnk")
        if 0 < k <= m * n * k <= 2**20 or (k and not m * n):
            break
    more = d.one(0, 0, 3)
    a = (1, max(m, 1) + more) if d.chance(0.4) else (max(k, 1) + more, d.one(1, 1, 1, 2) if more == 0 else 1)
    b = (1, max(k, 1) + more) if d.chance(0.4) else (max(n, 1) + more, 1)
    if a[1] == 2:
        a = (2 * max(k, 1), 2)
    c = max(n, 1) + d.one(0, 0, 5)
    addend = d.one(None, (0, 1), (max(n, 1), 1), (1, 0), (1, max(m, 1)), (0, 0))
    return ProductShape(m, n, k, a, b, c, d.one("float", "float", "double"), d.one(1.0, -0.5, 0.0), addend,
                        d.one(1.0, 0.25, 0.0))


def check_products(seed, monkeypatch):
    """Products in C with registers of a drawn width; in place, the result is the addend."""
    d = Draw(np.random.default_rng([3, seed]))
    shapes = [draw_product(d) for _ in range(24)]
    monkeypatch.setattr("tests.native.test_products.SHAPES", shapes)
    lanes = d.one((), ("-DOP_LANES=8",), ("-DOP_LANES=4",), ("-DOP_LANES=1", "-ffp-contract=off"))
    library = compile_library(write_products(range(len(shapes))), flags=(*PLAIN, "-O1", *lanes))
    for i, shape in enumerate(shapes):
        if 0 in (shape.m, shape.n):
            continue
        operands = Operands(shape, seed)
        expected = operands.expected()
        result = operands.call(library[f"product{i}"])
        assert np.isfinite(result).all(), (seed, i, shape)
        assert_near(result, expected)
        if shape.addend == (max(shape.n, 1), 1) and shape.c == shape.addend[0]:
            operands.c[:] = operands.d  # The addend may be the result itself.
            assert_near(operands.call(library[f"product{i}"], operands.c), expected)


def test_some_states_that_are_overwritten():
    for seed in range(3):
        check_states(seed)


def test_products_of_nothing():
    """Sums over no terms are 0, on matrices and on batches of rows."""
    numbers, values = {}, {}
    for shapes in (((3, 0), (0, 4)), ((2, 3, 0), (0, 4)), ((2, 3, 0), (2, 0, 4)), ((0,), (0, 4)), ((2, 0), (0,))):
        a, b = (variable("x", "float32", shape) for shape in shapes)
        numbers |= {v: np.zeros(v.shape, np.float32) for v in (a, b)}
        values[f"{shapes}"] = op.MatMul(a, b) + 1.0
    for n, y in compute_in_c(values, numbers, (*PLAIN, "-O0")).items():
        assert y.size, n
        assert (y == 1).all(), n


def test_some_reductions_and_products(monkeypatch):
    check_reductions(0)
    check_products(0, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(1, 11))
def test_states_that_are_overwritten(group):
    for seed in range(20 * group, 20 * group + 20):
        check_states(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 25))
def test_reductions_and_products(seed, monkeypatch):
    check_reductions(seed)
    check_products(seed, monkeypatch)

"""Every rule of transpose elimination on random views, on both sides of its conditions, and all of them in chains."""

from math import prod
from zlib import crc32

import numpy as np
import pytest
from random_graphs import Case, Draw, assert_equal, check_rewrite, run

from ortpartial.graph import constant, op, topological
from ortpartial.rewrites.transposes import _RULES, View, cancel_transposes

#: Cases of each rule in `make test`, and in `make proof`.
FEW, MANY = 16, 400

UNARY = ("Cast", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh")
FLOATS = ("float64", "float16")


def draw_view(d, least=1, dtype="float32", strange=0.15):
    """A value that moves and merges axes of another one, with axes of size 1 anywhere."""
    sizes = [d.one(1, 2, 3, 2) for _ in range(d.rng.integers(1, 5))]
    base = d.variable(sizes, dtype, strange=strange)
    order = d.rng.permutation(len(sizes)).tolist()
    axes = [(order[0],)]
    for a in order[1:]:
        if d.chance(0.3):
            axes[-1] = (*axes[-1], a)
        else:
            axes.append((a,))
    while len(axes) < least or d.chance(0.15):
        axes.insert(int(d.rng.integers(len(axes) + 1)), ())
    return View(base, tuple(axes))


def record(views, view):
    """The value of a view, which rules find in `views`."""
    v = view.value()
    views[v] = view
    return v


def transpose(d, views):
    view = draw_view(d)
    v = record(views, view)
    perm = None if d.chance(0.2) else d.rng.permutation(v.rank).tolist()
    return [op.Transpose(v, perm=perm)], True


def regroup(d, sizes):
    """Sizes that hold as many elements: some of them merged, others cut apart, or two that cut across."""
    if d.chance(0.4):
        a = d.one(*(i for i in range(1, prod(sizes) + 1) if prod(sizes) % i == 0))
        return [a, prod(sizes) // a]
    parts = [p for n in sizes for p in ([2, n // 2] if n % 2 == 0 and d.chance(0.3) else [n])]
    merged = [1]
    for p in parts:
        if d.chance(0.4):
            merged[-1] *= p
        else:
            merged.append(p)
    return merged[1:] if merged[0] == 1 and len(merged) > 1 else merged


def reshape(kind):
    def make(d, views):
        v = record(views, draw_view(d))
        ones = [i for i, n in enumerate(v.shape) if n == 1]
        if kind == "Flatten":
            return [op.Flatten(v, axis=int(d.rng.integers(-v.rank, v.rank + 1)))], None
        if kind == "Squeeze":
            some = [i - v.rank if d.chance() else i for i in ones if d.chance(0.7)]
            # Of no axes, given as an empty list, onnxruntime 1.19 to 1.32 removes all of size 1.
            return [op.Squeeze(v, some) if some else op.Squeeze(v)], None
        if kind == "Unsqueeze":
            return [op.Unsqueeze(v, [int(d.rng.integers(-v.rank - 1, v.rank + 1))])], None
        shape = regroup(d, v.shape)
        if d.chance(0.3):
            shape[int(d.rng.integers(len(shape)))] = -1
        elif shape[0] == v.shape[0] and d.chance():
            shape[0] = 0
        return [op.Reshape(v, shape)], None

    return make


def split(d, views):
    view = draw_view(d)
    v = record(views, view)
    axis = int(d.rng.integers(v.rank))
    n, moved = v.shape[axis], [a for a in view.axes[axis] if view.sizes[a] > 1]
    if n > 1 and d.chance():
        first = int(d.rng.integers(1, n))
        return list(op.Split(v, [first, n - first], axis=axis - v.rank, n_outputs=2)), len(moved) == 1
    parts = int(d.rng.integers(1, n + 1))
    outputs = op.Split(v, axis=axis, num_outputs=parts)
    return list(outputs[0].node.outputs if isinstance(outputs, tuple) else outputs.node.outputs), len(moved) == 1


def unary(kind):
    def make(d, views):
        v = record(views, draw_view(d, dtype=d.dtype(*FLOATS), strange=0.0))
        settings = {"Cast": lambda: {"to": d.one(1, 6, 7, 11)}, "Gelu": lambda: {"approximate": d.one("none", "tanh")},
                    "Elu": lambda: {"alpha": 0.7}, "LeakyRelu": lambda: {"alpha": 0.3}}.get(kind, dict)()
        return [getattr(op, kind)(v, **settings)], True

    return make


def binary(kind):
    def make(d, views):
        dtype = d.one("float32", "float32", "float64", "int64") if kind != "Div" else d.dtype("float64")
        view = draw_view(d, dtype=dtype, strange=0.0)
        v = record(views, view)
        n = v.shape[-1]
        other = d.one("same", "row", "row", "row of ones", "column", "scalar", "another", "longer")
        if other == "same":  # The same view of another base.
            w = record(views, View(d.variable(view.sizes, dtype, strange=0.0), view.axes))
            applies = True
        elif other == "another":
            w = d.variable(list(v.shape), dtype, strange=0.0)
            views[w] = View.of(w)
            applies = view.axes == View.of(w).axes and view.sizes == View.of(w).sizes
        else:
            shape = {"row": [n], "row of ones": [*[1] * int(d.rng.integers(v.rank)), n], "scalar": [],
                     "column": [*v.shape[:-1], 1], "longer": [1, 1, *[1] * (v.rank - 1), n]}[other]
            w = d.variable(shape, dtype, strange=0.0)
            # The row may be what is moved, and beside it another row of a higher rank.
            row = shape if len(shape) <= v.rank else list(v.shape)
            is_row = row == [1] * (len(row) - 1) + [n] and n > 1
            same = tuple(shape) == v.shape
            applies = is_row if not same else view.axes == View.of(w).axes and view.sizes == View.of(w).sizes
        if kind == "Div":
            d.arrays.update({x: abs(a) + np.ones((), dtype) for x, a in d.arrays.items()})
        is_first = d.chance()
        if other not in ("same", "another") and w.rank == v.rank and tuple(w.shape) != v.shape:
            applies = applies and is_first  # Of two of one rank, the first is taken for the longer one.
        return [getattr(op, kind)(*((v, w) if is_first else (w, v)))], applies

    return make


def rowwise(kind):
    def make(d, views):
        dtype = d.dtype("float64")
        view = draw_view(d, dtype=dtype, strange=0.0, least=2 if kind in ("Gemm", "MatMul") else 1)
        if kind == "Gemm":
            while len(view.axes) > 2:
                view = View(view.base, (view.axes[0] + view.axes[1], *view.axes[2:]))
        v = record(views, view)
        n, rank = v.shape[-1], v.rank
        if kind in ("Softmax", "LogSoftmax"):
            axis = d.one(-1, -1, rank - 1, int(d.rng.integers(-rank, rank)))
            return [getattr(op, kind)(v, axis=axis)], axis % rank == rank - 1
        if kind == "LayerNormalization":
            axis = d.one(-1, -1, rank - 1, int(d.rng.integers(-rank, rank)))
            first = axis % rank
            scale = d.variable(v.shape[first:], dtype, strange=0.0)
            bias = d.variable(v.shape[first:], dtype, strange=0.0) if d.chance() else None
            outputs = op.LayerNormalization(v, scale, bias, axis=axis, epsilon=0.1).node.outputs
            return list(outputs), first == rank - 1
        m = d.size(empty=0)
        if kind == "MatMul":
            is_batched = rank > 2 and d.chance(0.2)
            shape = [*v.shape[:-2], n, m] if is_batched else d.one([n, m], [n, m], [n, m], [n])
            w = d.variable(shape, dtype, strange=0.0)
            return [op.MatMul(v, w)], w.rank == 2
        trans_a, trans_b = d.one(0, 0, 0, 1), d.one(0, 1)
        k, rows = (v.shape[0], n) if trans_a else (n, v.shape[0])
        w = d.variable([m, k] if trans_b else [k, m], dtype, strange=0.0)
        c = d.one(None, [m], [1], [1, m], [], [rows, 1], [rows, m])
        c = None if c is None else d.variable(c, dtype, strange=0.0)
        y = op.Gemm(v, w, c, alpha=0.5, beta=2.0, transA=trans_a, transB=trans_b)
        is_row = c is None or prod(c.shape) <= (c.shape or (1,))[-1]
        return [y], not trans_a and is_row

    return make


MAKERS = {"Transpose": transpose, "Split": split,
          **{kind: reshape(kind) for kind in ("Flatten", "Reshape", "Squeeze", "Unsqueeze")},
          **{kind: unary(kind) for kind in UNARY}, **{kind: binary(kind) for kind in ("Add", "Div", "Mul", "Sub")},
          **{kind: rowwise(kind) for kind in ("Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "Softmax")}}
#: Rules that always apply.
ALWAYS = {"Flatten", "Squeeze", "Transpose", "Unsqueeze", *UNARY}


def check(kind, count):
    views = {}

    def make(d):
        views.clear()
        outputs, applies = MAKERS[kind](d, views)
        return Case(outputs, applies)

    def rewrite(outputs):
        node = outputs[0].node
        results = _RULES[kind](node, node.inputs, [
            None if v is None else views.get(v) or View.of(v) for v in node.inputs])
        return outputs if results is None else [view.value() for view in results]

    check_rewrite(make, rewrite, crc32(kind.encode()), count, least=0 if kind in ALWAYS else 1)


@pytest.mark.parametrize("kind", MAKERS)
def test_rule(kind):
    check(kind, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_rule_on_many(kind):
    check(kind, MANY)


def test_every_rule_is_drawn():
    assert set(MAKERS) == set(_RULES)


STEPS = ("Transpose", "Transpose", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Split", "Tanh", "Relu",
         "Add", "Mul", "Sub", "row", "MatMul", "Softmax", "LayerNormalization", "ReduceSum", "twice")


def chain(d):
    """Some operators in a row, of sizes that are known, now and then of one that is not or is 0."""
    shape = [d.one(1, 2, 3, 4) for _ in range(d.rng.integers(1, 5))]
    if d.chance(0.05):
        shape[0] = 0
    y = d.variable(shape, open_axes=d.one(*9 * [0.0], 0.3), strange=0.0)
    for _ in range(int(d.rng.integers(4, 11))):
        y = apply_step(d, y, d.one(*STEPS))
    return y


def apply_step(d, y, step):
    rank, shape, n = y.rank, list(y.shape), y.shape[-1] if y.rank else 1
    if not y.is_static and step not in ("Transpose", "Tanh", "Relu", "twice"):
        return y
    match step:
        case "Transpose":
            return op.Transpose(y, perm=d.rng.permutation(rank).tolist())
        case "Reshape" if 0 not in shape and rank:
            return op.Reshape(y, regroup(d, shape))
        case "Flatten" if rank:
            return op.Flatten(y, axis=int(d.rng.integers(rank)))
        case "Squeeze":
            ones = [i for i, n in enumerate(shape) if n == 1]
            return op.Squeeze(y, ones[:1]) if ones else y
        case "Unsqueeze" if rank < 5:
            return op.Unsqueeze(y, [int(d.rng.integers(rank + 1))])
        case "Split" if rank and shape[0] > 1:
            first, second = op.Split(y, [1, shape[0] - 1], axis=0, n_outputs=2)
            return op.Concat(second, first, axis=0)
        case "Tanh" | "Relu":
            return getattr(op, step)(y)
        case "Add" | "Mul" | "Sub":
            return getattr(op, step)(y, op.Tanh(y) if d.chance() else y)
        case "row" if rank:
            return y * constant(d.array([n], "float32", 0.0))
        case "MatMul" if rank > 1:
            return y @ constant(d.array([n, 2], "float32", 0.0)) * 0.5
        case "Softmax" | "LayerNormalization" if rank and 0 not in shape:
            axis = int(d.rng.integers(-1, rank))
            if step == "Softmax":
                return op.Softmax(y, axis=axis)
            return op.LayerNormalization(y, constant(d.array(shape[axis % rank:], "float32", 0.0)), axis=axis)
        case "ReduceSum" if rank > 2:
            return op.ReduceSum(y, [0], keepdims=0)
        case "twice" if rank > 1:
            swap = [*range(rank - 2), rank - 1, rank - 2]
            return op.Transpose(op.Tanh(op.Transpose(y, perm=swap)), perm=swap)
    return y


def check_chains(count):
    counts = {False: 0, True: 0}
    for seed in range(count):
        d = Draw(np.random.default_rng([3, seed]))
        y = chain(d)
        new = cancel_transposes({"y": y})["y"]
        counts[new is not y] += 1
        if new is y:
            continue
        before, after = (sum(n.op_type == "Transpose" for n in topological([v])) for v in (y, new))
        assert after < before
        assert new.shape == y.shape
        for a, b in zip(run(d, [new]), run(d, [y]), strict=True):
            assert_equal(a, b, False, f"seed {seed}")
    assert min(counts.values()) > count // 5, counts


def test_chains():
    check_chains(60)


@pytest.mark.slow
def test_many_chains():
    check_chains(3000)

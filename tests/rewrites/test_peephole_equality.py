"""Every pattern of peephole optimization on random shapes, dtypes and numbers, on both sides of its conditions."""

from zlib import crc32

import numpy as np
import pytest
from random_graphs import Case, check_rewrite

from ortpartial.autodiff import normal_cdf, normal_cdf_tanh
from ortpartial.graph import constant, op, without_guards
from ortpartial.rewrites import peephole

FLOATS = ("float16", "float32", "float64")
WIDE = ("float32", "float64")
#: Cases of each pattern in `make test`, and in `make proof`.
FEW, MANY = 40, 1500


def wide(*arrays):
    return [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]


def move_right(d, limit):
    """Transposes of any permutation; half of them swap two blocks before a run."""
    limit(moved_run=d.one((4, 31), (1, 10**9)), moved_elements=d.one(0, 0, 0, 10**9))
    rank = d.one(0, 1, 2, 3, 3, 4, 4, 5, 5)
    shape = [d.size(empty=0.02, most=5) for _ in range(rank)]
    perm = d.rng.permutation(rank).tolist()
    if rank >= 3 and d.chance(0.8):
        shape[-1] = d.one(1, 3, 4, 5, 31, 32)
        first, cut = sorted(d.rng.choice(rank - 1, 2, replace=False).tolist())
        perm = [*range(first), *range(cut, rank - 1), *range(first, cut), rank - 1]
    if rank >= 3 and d.chance(0.2):  # Some blocks in another order.
        perm = [*perm[-2:], *perm[:-2]]
    dtype = d.one("float32", "float32", "float32", "float32", "float64", "float16", "int64")
    x = d.variable(shape, dtype, open_axes=0.1)
    y = op.Transpose(x, perm=None if perm == list(range(rank))[::-1] and d.chance() else perm)
    return Case([y], moves_right(x, perm), [d.of(x).transpose(perm)], exact=True)


def moves_right(x, perm):
    """Whether the axes, but for those of size 1, are leading ones, two blocks swapped, and one axis more."""
    from ortpartial.limits import limits

    kept = [a for a in range(x.rank) if x.shape[a] != 1]
    order = [kept.index(a) for a in perm if a in kept]
    n = len(order)
    swaps = [[*range(i), *range(j, n - 1), *range(i, j), n - 1] for i in range(n) for j in range(i + 1, n - 1)]
    run = x.shape[kept[-1]] if kept else 0
    shortest, longest = limits().moved_run
    is_open = sum(not isinstance(a, int) for a in x.shape)
    return (x.dtype == np.float32 and order in swaps and isinstance(run, int) and shortest <= run <= longest
            and is_open <= 1 and 0 not in x.shape and limits().moved_elements == 0)


def broadcast(d, limit):
    shape, dtype = d.shape(), d.one("float16", "float32", "float64", "int32", "int64")
    part = [1 if d.chance(0.4) else n for n in shape][int(d.rng.integers(0, len(shape) + 1)):]
    u = d.variable(part, dtype)
    kind = d.one("whole", "number", "other", "open")
    v = op.Expand(u, np.array(shape, np.int64))
    if kind == "number":
        other = constant(np.array(3, dtype))
    else:
        beside = [1 if kind == "other" and d.chance() else n for n in shape]
        other = d.variable(beside, dtype, open_axes=1.0 if kind == "open" else 0.0, strange=0.0)
        if np.dtype(dtype).kind == "i":
            d.arrays[other] = abs(d.arrays[other]) + 1
    name, is_first = d.one("Add", "Sub", "Mul", "Div"), d.chance()
    if name == "Div" and np.dtype(dtype).kind == "i":
        is_first = True
    with without_guards():  # a guard of a whole divisor has nodes of its own, to which the pattern may apply
        y = getattr(op, name)(*((v, other) if is_first else (other, v)))
    a, b = np.broadcast_to(d.of(u), shape), d.of(other)
    f = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[name]
    with np.errstate(all="ignore"):
        expected = f(*((a, b) if is_first else (b, a)))
    if np.dtype(dtype).kind == "i" and name == "Div":
        expected = np.trunc(expected).astype(dtype)
    # Expand keeps the shape of what is expanded where it does not grow; there the pattern saves the node.
    applies = y.is_static and v.shape == y.shape and (kind == "number" or other.shape == y.shape)
    return Case([y], applies, [expected], exact=dtype != "float16")


def negate_last(d, limit):
    shape = d.shape(least=1, empty=0.0)  # onnxruntime 1.19.2 keeps all columns where it reduces nothing.
    x = d.variable(shape, d.one("float32", "float64", "int32", "int64"), open_axes=0.2)
    axes = sorted(d.rng.choice(len(shape), d.rng.integers(0, len(shape) + 1), replace=False).tolist())
    given = [a - len(shape) if d.chance() else a for a in axes]
    # Over no axes, onnxruntime 1.19.2 does not run some ReduceSum with noop_with_empty_axes.
    keepdims, noop = d.one(0, 1), d.one(0, 0, 1) if axes else 0
    negative = -x
    y = op.ReduceSum(negative, *([given] if axes or d.chance() else []), keepdims=keepdims, noop_with_empty_axes=noop)
    twice = d.chance(0.3)
    (a,) = wide(d.of(x))
    a = a if a.dtype.kind == "f" else a.astype(np.int64)
    over = tuple(axes) if axes else () if noop else None
    with np.errstate(all="ignore"):
        expected = -a if over == () else (-a).sum(over, keepdims=bool(keepdims))
    return Case([y, negative] if twice else [y], not twice, [expected, -a][: 1 + twice])


def scaled(d, x, shape, dtype, power=1):
    """A value times a number, in one of the forms that gradients have, and the number."""
    number = d.one(1.0, 0.5, -1.0, 3.0, 0.0, -0.25, 1e-12, np.inf, np.nan) if d.chance(0.3) else d.one(0.5, -2.0, 3.0)
    # onnxruntime 1.19.2 does not load products with a constant of no elements.
    kinds = ("none", "scalar", "filled", "expanded", "divided", "row")
    kind = d.one(*kinds[: 2 if 0 in shape else 6])
    if kind == "none":
        return x, 1.0, False
    factor = {"scalar": lambda: constant(np.array(number, dtype)), "filled": lambda: d.filled(number, shape, dtype),
              "expanded": lambda: op.Expand(constant(np.array(number, dtype)), np.array(shape, np.int64)),
              "divided": lambda: op.Expand(constant(np.array(2 * number, dtype)), np.array(shape, np.int64)) / 2,
              "row": lambda: constant(np.arange(2, 2 + shape[-1]).astype(dtype))}[kind]()
    with np.errstate(all="ignore"):
        number = np.arange(2, 2 + shape[-1]) if kind == "row" else float(np.array(number, dtype))
    is_row = kind == "row" and shape[-1] != 1
    number = number if is_row else float(np.reshape(number, -1)[0]) if np.size(number) else 1.0
    is_number = not is_row and (kind != "row" or shape[-1] == 1) and (kind != "filled" or 0 not in shape)
    return (factor * x if d.chance() else x * factor), number, is_number and not np.isnan(number)


def fold_factor(d, limit):
    m, k, n = (d.size(empty=empty) for empty in (0.03, 0.0, 0.03))  # 1.19.2 refuses a Gemm over no columns.
    is_gemm, dtype = d.chance(0.7), d.dtype("float64", "float16")
    trans_a, trans_b = (d.one(0, 1), d.one(0, 1)) if is_gemm else (0, 0)
    shapes = [(k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)]
    is_constant = d.chance()
    a = constant(d.array(shapes[0], dtype, 0.0)) if is_constant else d.variable(shapes[0], dtype)
    b = d.variable(shapes[1], dtype)
    left, s, folds_s = (a, 1.0, False) if is_constant else scaled(d, a, shapes[0], dtype)
    right, t, folds_t = scaled(d, b, shapes[1], dtype)
    na, nb = wide(d.of(a), d.of(b))
    with np.errstate(all="ignore"):
        product = (s * na).T if trans_a else s * na
        product = product @ ((t * nb).T if trans_b else t * nb)
    if is_gemm:
        alpha, beta = d.one(1.0, 0.5, -2.0), d.one(1.0, 0.5)
        c = d.variable((m, n), dtype) if d.chance() else None
        y = op.Gemm(left, right, c, alpha=alpha, beta=beta, transA=trans_a, transB=trans_b)
        with np.errstate(all="ignore"):
            product = alpha * product + (0 if c is None else beta * wide(d.of(c))[0])
    else:
        y = op.MatMul(left, right)
    number = (s if folds_s else 1.0) * (t if folds_t else 1.0)
    applies = number != 1 and 1e-30 < abs(number) < 1e30 and (dtype == "float32" if is_gemm else is_constant)
    return Case([y], applies, [product])


def factor_out(d, limit):
    shape, dtype = d.shape(), d.dtype("float64", "float16")
    is_broadcast = d.chance(0.15) and len(shape) > 0
    a, b = d.variable(shape, dtype), d.variable(shape[1:] if is_broadcast else shape, dtype)
    shapes = [shape, shape[1:] if is_broadcast else shape]
    if 0 not in shape and d.chance(0.6):
        # The same factor in both, perhaps with another sign.
        number, sign = d.one(0.5, -2.0, 1e-12, 0.0, np.inf), d.one(1, -1)
        s, t = number, sign * number
        left, right = d.filled(s, shapes[0], dtype) * a, constant(np.array(t, dtype)) * b
        s, t, is_s, is_t = float(np.array(s, dtype)), float(np.array(t, dtype)), True, True
    else:
        left, s, is_s = scaled(d, a, [*shapes[0], 1][: max(1, len(shapes[0]))], dtype) if shapes[0] else (a, 1.0, False)
        right, t, is_t = (b, 1.0, False)
    name = d.one("Add", "Sub")
    y = getattr(op, name)(left, right)
    na, nb = wide(d.of(a), d.of(b))
    with np.errstate(all="ignore"):
        expected = np.add(s * na, t * nb) if name == "Add" else np.subtract(s * na, t * nb)
    s, t = s if is_s else 1.0, t if is_t else 1.0
    applies = (abs(s) == abs(t) and s != 1 and 0 < abs(s) < np.inf and a.shape == b.shape and dtype in WIDE)
    return Case([y], applies, [expected])


def fuse_bias(d, limit):
    x_shape, n = d.shape(least=2, most=5, empty=0.08), d.size()
    dtype, kind = d.dtype("float64", "float16"), d.one("row", "row", "row", "column", "scalar", "batched", "one more")
    k = x_shape[-1]
    w_shape = [*x_shape[:-2], k, n] if kind == "batched" else [k, n]
    x = d.variable(x_shape, dtype, open_axes=d.one(0.0, 0.0, 0.2), unknown=0.2)
    w, b = d.variable(w_shape, dtype), d.variable(
        {"column": [x_shape[-2], 1], "scalar": [1], "one more": [1, n]}.get(kind, [n]), dtype)
    product = x @ w
    y = product + b if d.chance() else b + product
    twice = d.chance(0.1)
    nx, nw, nb = wide(*map(d.of, (x, w, b)))
    with np.errstate(all="ignore"):
        expected = [nx @ nw + nb, nx @ nw]
    is_row = list(b.shape) == [product.shape[-1]] if product.shape else False
    sizes = list(product.shape or ())
    applies = (not twice and x.rank >= 3 and w.rank == 2 and is_row and dtype in WIDE and 0 not in (*sizes, k)
               and sum(not isinstance(s, int) for s in sizes) <= 1)
    return Case([y, product] if twice else [y], applies, expected[: 1 + twice])


def gemm_by_column(d, limit):
    least = d.one(0, 3, 128)
    limit(column_rows=least)
    m, k, n = d.size(), d.size(), d.one(1, 1, 1, 1, 2)
    dtype = d.dtype("float64", "float16")
    settings = {"alpha": d.one(1.0, 1.0, 1.0, 2.0), "beta": d.one(1.0, 1.0, 1.0, 0.5), "transA": d.one(0, 0, 0, 1)}
    a = d.variable((k, m) if settings["transA"] else (m, k), dtype, open_axes=d.one(0.0, 0.0, 0.0, 0.3))
    w, b = d.variable((n, k), dtype), d.one(None, (1,), (1,), (1,), (n,), (m, 1), ())
    b = None if b is None else d.variable(b, dtype)
    y = op.Gemm(a, w, b, transB=1, **settings)
    na, nw = wide(d.of(a), d.of(w))
    with np.errstate(all="ignore"):
        product = settings["alpha"] * (na.T if settings["transA"] else na) @ nw.T
        expected = product if b is None else product + settings["beta"] * wide(d.of(b))[0]
    is_plain = [settings["alpha"], settings["beta"], settings["transA"]] == [1, 1, 0]
    applies = (is_plain and n == 1 and b is not None and b.shape == (1,) and a.is_static and m >= least and k > 0)
    return Case([y], applies, [expected])


def mask(d, limit):
    activation, is_output = d.one("Relu", "Relu", "LeakyRelu", "Elu", "Selu", "Tanh", ""), d.chance(0.3)
    x = read = d.variable(d.shape(), d.dtype("float64", "float16"), strange=0.0 if activation else 0.5)
    others = [getattr(op, activation)(x)] if activation else []
    if others and is_output:
        read = others[0]
    zero = d.one(*3 * [lambda t: constant(np.array(0, t))], lambda t: constant(np.array(1, t)),
                 lambda t: constant(np.zeros(1, t)), lambda t: d.variable((), t))(str(x.dtype))
    to, is_greater = d.one(1, 1, 1, 1, 1, 10, 11, 7), d.chance(0.8)
    y = op.Cast(read > zero if is_greater else read >= zero, to=to)
    is_masked = activation == "Relu" or (activation in ("LeakyRelu", "Elu", "Selu") and not is_output)
    applies = (is_masked and x.dtype == np.float32 and to == 1 and is_greater and zero.array is not None
               and zero.rank == 0 and not zero.array.any())
    if others:
        return Case([y, *others], applies, exact=True)
    a, z = d.of(x), d.of(zero)
    return Case([y], applies, [(a > z if is_greater else a >= z).astype(y.dtype)], exact=True)


def mean_of_squares(d, limit):
    shape, dtype = d.shape(), d.dtype("float64", "float16")
    x = d.variable(shape, dtype, open_axes=0.05)
    power = d.one(2, 2, 2, 3)
    power = constant(d.one(np.array(power, dtype), np.array(power, np.int64), np.full(1, power, dtype)))
    axes = d.one(None, None, None, [0], list(range(len(shape))), [])
    axes = None if not shape else axes
    keepdims, noop = d.one(0, 0, 1), d.one(0, 0, 1)
    y = op.ReduceMean(op.Pow(x, power), *([] if axes is None else [axes]), keepdims=keepdims, noop_with_empty_axes=noop)
    (a,) = wide(d.of(x))
    squares = a ** power.array.astype(float)
    with np.errstate(all="ignore"):
        over = tuple(axes) if axes else () if noop else None
        expected = squares if over == () else squares.sum(over, keepdims=bool(keepdims)) / (
            max(a.size, 0) if over is None else np.prod([a.shape[i] for i in over]))
    # ReduceMean of nothing is an error of some runtimes and NaN of others.
    applies = (x.is_static and power.rank == 0 and power.array == 2 and axes is None and not keepdims and not noop
               and dtype in WIDE and 0 not in shape)
    return Case([y], applies, [expected])


def mean_of_products(d, limit):
    shape, dtype = d.shape(least=1, empty=0.0), d.dtype("float64", "float16")
    x = d.variable(shape, dtype, open_axes=0.1)
    row_shape = d.one([shape[-1]], [shape[-1]], [shape[-1]], [1], [1, shape[-1]], shape)
    row = d.variable(row_shape, dtype)
    axes = d.one([-1], [-1], [len(shape) - 1], [0], [0, -1] if len(shape) > 1 else [0])
    keepdims, twice = d.one(1, 1, 0), d.chance(0.1)
    product = x * row if d.chance() else row * x
    y = op.ReduceMean(product, axes, keepdims=keepdims)
    nx, nr = wide(d.of(x), d.of(row))
    with np.errstate(all="ignore"):
        expected = [(nx * nr).mean(tuple(axes), keepdims=bool(keepdims)), nx * nr]
    last = set(axes) in ({-1}, {product.rank - 1})
    pairs = ((x, row), (row, x))
    applies = (not twice and last and bool(keepdims) and dtype in WIDE and any(
        r.rank == 1 < v.rank and v.shape[-1:] == r.shape and isinstance(r.shape[0], int) for v, r in pairs))
    return Case([y, product] if twice else [y], applies, expected[: 1 + twice])


def expand_gelu(d, limit):
    x = d.variable(d.shape(), d.dtype("float64"), open_axes=0.2, strange=0.0)
    form, other = d.one("none", "tanh"), d.one("none", "tanh", "")
    y = op.Gelu(x, approximate=form)
    cdf = {"none": normal_cdf, "tanh": normal_cdf_tanh, "": op.Exp}[other](x)
    return Case([y, cdf], form == other)


def exp_to_softmax(d, limit):
    shape, dtype = d.shape(least=1, empty=0.0), d.dtype("float64", "float16")
    x = d.variable(shape, dtype, open_axes=0.1, strange=0.0)
    axes = d.one([-1], [-1], [len(shape) - 1], [0], list(range(len(shape))))
    keepdims = d.one(1, 1, 0 if len(shape) == 1 else 1)
    read = d.one(x, x, x, x * 2)
    total = op.ReduceLogSumExp(read, axes, keepdims=keepdims)
    y = op.Exp(x - total if d.chance(0.9) else total - x)
    is_softmax = y.node.inputs[0].node.inputs[0] is x
    (a,) = wide(d.of(x))
    sums = np.log(np.exp(a if read is x else 2 * a).sum(tuple(axes), keepdims=bool(keepdims)))
    expected = np.exp(a - sums if is_softmax else sums - a)
    last = axes in ([-1], [len(shape) - 1])
    return Case([y], is_softmax and read is x and last and bool(keepdims), [expected])


def scatter_in_place(d, limit):
    rank = int(d.rng.integers(1, 4))
    shape, dtype = [d.size(empty=0.0) for _ in range(rank)], d.one("float32", "float32", "float64")
    axis = int(d.rng.integers(rank))
    column = [1 if i == axis or d.chance(0.1) else n for i, n in enumerate(shape)]
    places_shape = column if d.chance(0.8) else [d.one(1, min(2, n)) if i == axis else n for i, n in enumerate(column)]
    places = d.variable(places_shape, "int64", array=d.rng.integers(-shape[axis], shape[axis], places_shape))
    x = d.variable(places_shape, dtype, strange=0.0)
    v = d.variable(shape, dtype)
    number = d.one(0.0, 0.0, 0.0, -0.0, 1.0)
    filled = constant(np.array(number, dtype))
    zeros = d.filled(number, shape, dtype) if d.chance() else op.Expand(filled, np.array(shape, np.int64))
    reduction, is_negative = d.one("none", "none", "add", "add", "mul", "max"), d.chance(0.9)
    updates = -x if is_negative else x
    written_axis = axis - rank if d.chance() else axis
    scattered = op.ScatterElements(zeros, places, updates, axis=written_axis, reduction=reduction)
    swapped, twice = d.chance(), d.chance(0.1)
    fits = all(p in (1, n) for p, n in zip(places_shape, shape, strict=True))
    factor = x if fits else d.variable([1] * rank, dtype, strange=0.0)
    product = op.Mul(factor, v) if d.chance(0.1) else op.Mul(v, factor)
    is_order = product.node.inputs[1] is factor
    y = scattered + product if swapped else product + scattered
    base = np.full(shape, number, np.float64)
    nx, nv, nf = wide(d.of(x), d.of(v), d.of(factor))
    u, index = (-nx if is_negative else nx), d.of(places)
    for at in np.ndindex(*places_shape):
        to = (*at[:axis], index[at], *at[axis + 1 :])
        former, number_there = base[to], u[at]
        base[to] = {"none": number_there, "add": former + number_there, "mul": former * number_there,
                    "max": max(former, number_there)}[reduction]
    with np.errstate(all="ignore"):
        expected = [base + nv * nf, base]
    applies = (not twice and is_negative and is_order and factor is x and places_shape[axis] == 1 and number == 0
               and reduction in ("none", "add"))
    return Case([y, scattered] if twice else [y], applies, expected[: 1 + twice])


def move_row_factor(d, limit):
    least = d.one(0, 0, 0, 10**6)
    limit(row_factor_elements=least)
    rank = d.one(2, 2, 2, 3, 1, 4)
    shape, dtype = [d.size(empty=0.04) for _ in range(rank)], d.dtype("float64", "float16")
    x = d.variable(shape, dtype, strange=0.0)
    column_shape = d.one([*shape[:-1], 1], [*shape[:-1], 1], [*shape[:-1], 1], shape, [1] * rank)
    column = d.variable(column_shape, dtype, strange=0.0)
    product = x * column if d.chance(0.9) else column * x
    is_order = product.node.inputs[0] is x
    cut = d.one(-1, -1, -1, 0) if rank != 2 else d.one(None, None, -1)
    v = product if cut is None else op.Flatten(product, axis=cut)
    rows, n = v.shape
    is_right, trans_a, trans_b = d.chance(), d.one(0, 1), d.one(0, 1)
    alpha, m = d.one(1.0, 0.5), d.size()
    nx, nc = wide(d.of(x), d.of(column))
    matrix = (nx * nc).reshape(rows, n)
    if is_right:
        k = n if trans_b else rows
        other = d.variable((k, m) if trans_a else (m, k), dtype, strange=0.0)
        (no,) = wide(d.of(other))
        product = alpha * (no.T if trans_a else no) @ (matrix.T if trans_b else matrix)
    else:
        k = rows if trans_a else n
        other = d.variable((m, k) if trans_b else (k, m), dtype, strange=0.0)
        (no,) = wide(d.of(other))
        product = alpha * (matrix.T if trans_a else matrix) @ (no.T if trans_b else no)
    c = d.variable((product.shape[1],), dtype, strange=0.0) if d.chance(0.3) else None
    y = op.Gemm(*((other, v) if is_right else (v, other)), c, alpha=alpha, transA=trans_a, transB=trans_b)
    expected = product if c is None else product + wide(d.of(c))[0]
    # A matrix of its own rows; a column of ones is one where the matrix has a single column, too.
    is_column = column.shape == (*x.shape[:-1], 1) and is_order
    if not is_order and column.shape == product_shape(x, column) and x.shape == (*column.shape[:-1], 1):
        is_column = True
    side = trans_a and not trans_b if is_right else not trans_a and c is None
    flat = cut is None or n == x.shape[-1]
    applies = bool(side and is_column and flat and dtype in WIDE and least == 0 and 0 not in x.shape)
    return Case([y], applies, [expected])


def product_shape(a, b):
    return np.broadcast_shapes(a.shape, b.shape)


def cancel_scale(d, limit):
    shape, dtype = d.shape(), d.one("float32", "float32", "float64", "float16", "int64")
    x = d.variable(shape, dtype, open_axes=0.2)
    scale_shape = d.one((), (1,), shape[-1:], shape, [2, *shape])
    numbers = d.rng.uniform(0.5, 2, scale_shape) * d.one(1, -1) if dtype != "int64" else np.ones(scale_shape)
    scale = np.asarray(numbers, dtype)
    if scale.size and dtype != "int64" and d.chance(0.2):
        scale[(0,) * scale.ndim] = d.one(0, np.inf, np.nan)
    other = scale if d.chance(0.85) else np.asarray(scale * 2, dtype)
    product = x * constant(scale) if d.chance(0.9) else constant(scale) * x
    is_order = product.node.inputs[0] is x
    y = product / constant(other)
    (a,) = wide(d.of(x))
    with np.errstate(all="ignore"):
        expected = a * scale.astype(np.float64) / other.astype(np.float64)
    applies = (is_order and np.array_equal(scale, other) and bool(scale.all()) and bool(np.isfinite(scale).all())
               and x.is_float and x.shape == y.shape)
    return Case([-y], applies, [-expected])


PATTERNS = {
    "broadcast": broadcast, "cancel_scale": cancel_scale, "exp_to_softmax": exp_to_softmax, "expand_gelu": expand_gelu,
    "factor_out": factor_out, "fold_factor": fold_factor, "fuse_bias": fuse_bias, "gemm_by_column": gemm_by_column,
    "mask_by_hard_sigmoid": mask, "mean_of_products": mean_of_products, "mean_of_squares": mean_of_squares,
    "move_right": move_right, "move_row_factor": move_row_factor, "negate_last": negate_last,
    "scatter_in_place": scatter_in_place}


def check(name, count, monkeypatch, limit):
    pattern = getattr(peephole, f"_{name}")
    alone = {op_type: [pattern] for op_type, patterns in peephole._PATTERNS.items() if pattern in patterns}
    monkeypatch.setattr(peephole, "_PATTERNS", alone)
    check_rewrite(lambda d: PATTERNS[name](d, limit), peephole.apply_peepholes, crc32(name.encode()), count)


@pytest.mark.parametrize("name", PATTERNS)
def test_random_cases(name, monkeypatch, limit):
    check(name, FEW, monkeypatch, limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_many_random_cases(name, monkeypatch, limit):
    check(name, MANY, monkeypatch, limit)


def test_every_pattern_is_drawn():
    """Convolutions have tests of their own."""
    drawn = {getattr(peephole, f"_{name}") for name in PATTERNS} | {peephole._conv_to_gemm}
    assert drawn == {p for patterns in peephole._PATTERNS.values() for p in patterns}

"""Every pattern of graph simplification on random shapes and numbers, on both sides of its conditions."""

from math import prod
from types import SimpleNamespace
from zlib import crc32

import numpy as np
import pytest
from random_graphs import Case, check_rewrite

from ortpartial.graph import constant, make_rewriter, op
from ortpartial.rewrites import simplify as module

#: Cases of each pattern in `make test`, and in `make proof`.
FEW, MANY = 30, 1000
SMALL = (0, 1, 2, 3, 5, -1, -2, -4, 2**63 - 1, -(2**63), -(2**63) + 1)


def fold_shape(d, limit):
    x = d.variable(d.shape(), d.dtype("float16", "int64"), open_axes=d.one(0.0, 0.0, 0.3))
    if d.chance(0.3):
        return Case([-op.Size(x)], x.is_static, [-np.array(d.of(x).size)])
    bounds = {k: int(d.rng.integers(-7, 8)) for k in ("start", "end") if d.chance()}
    expected = np.array(d.of(x).shape, np.int64)[bounds.get("start", 0) : bounds.get("end")]
    return Case([-op.Shape(x, **bounds)], x.is_static, [-expected])


def skip_slice_of_nothing(d, limit):
    shape = d.shape(least=1, empty=0.5)
    x = d.variable(shape, open_axes=d.one(0.0, 0.0, 0.3))
    axes = sorted(d.rng.choice(len(shape), d.rng.integers(1, len(shape) + 1), replace=False).tolist())
    if d.chance(0.7):
        axes = [a for a in axes if shape[a] == 0] or axes
    starts, ends = ([int(d.rng.integers(-3, 4)) for _ in axes] for _ in range(2))
    steps = [d.one(1, 2, -1) for _ in axes] if d.chance() else None
    named = [a - len(shape) if d.chance() else a for a in axes]
    has_axes = d.chance(0.9) or len(axes) < len(shape)
    bounds = (starts, ends, named) if has_axes else (starts, ends)
    y = op.Slice(x, *bounds, *([steps] if steps and has_axes else []))
    places = [slice(None)] * len(shape)
    for i, a in enumerate(axes):
        places[a] = slice(*place(starts[i], ends[i], steps[i] if steps and has_axes else 1, shape[a]))
    expected = d.of(x)
    for a, s in enumerate(places):
        if s != slice(None):
            expected = np.take(expected, range(s.start, s.stop, s.step), axis=a)
    applies = has_axes and all(x.shape[a] == 0 for a in axes)
    return Case([-y], applies, [-expected], exact=True)


def place(start, end, step, n):
    """Where a Slice begins and ends, from the text of the specification."""
    start, end = (i + n if i < 0 else i for i in (start, end))
    if step > 0:
        return min(max(start, 0), n), min(max(end, 0), n), step
    return min(max(start, 0), n - 1), min(max(end, -1), n - 1), step


def fold_sizes(d, limit):
    most = d.one(4, 64, 10**9)
    limit(folded_elements=most)
    dtype = d.one("int64", "int64", "int64", "int64", "int32")

    def vector():
        return constant(np.asarray(d.rng.integers(-9, 10, d.size(most=6)), dtype))

    if d.chance(0.4):
        parts = [vector() for _ in range(d.rng.integers(1, 4))]
        expected = np.concatenate([p.array for p in parts])
        y = op.Concat(*parts, axis=d.one(0, -1))
        fits = all(p.array.size <= most for p in parts)
    else:
        x = vector()
        start, end, step = d.one(*SMALL), d.one(*SMALL), d.one(1, 1, 2, -1, -2, -(2**63), 2**63 - 1)
        arguments = d.one([[start], [end]], [[start], [end], [d.one(0, -1)]], [[start], [end], [0], [step]],
                          [[start], [end], None, [step]])
        y = op.Slice(x, *(None if a is None else constant(np.array(a, np.int64)) for a in arguments))
        first, last, stride = place(start, end, step if len(arguments) > 3 else 1, x.array.size)
        expected, fits = x.array[np.array(range(first, last, stride), np.int64)], x.array.size <= most
    return Case([-y], fits and expected.size <= most and dtype == "int64", [-expected])


def fold_constants(d, limit):
    most = d.one(1, 3, 64, 10**9)
    limit(folded_elements=most)
    kinds = sorted(module._FOLDABLE)
    kind, dtype = d.one(*kinds), d.one("float32", "float32", "int64", "int32", "float64", "float16")
    shape = [d.size(empty=0.03, most=4) for _ in range(d.rng.integers(0, 4))]

    def numbers(t=dtype, shape=shape, positive=False):
        a = d.array(shape, t, 0.0 if t == "float16" else 0.1)  # Max of 1.19.2 loses NaN in float16.
        return constant(np.asarray(abs(a) + np.ones((), t) if positive else a, t))

    axis = int(d.rng.integers(-len(shape), len(shape))) if shape else 0
    if not shape and kind in ("Gather", "Slice", "Transpose", "Concat", "ReduceProd", "Unsqueeze", "Squeeze"):
        kind = "Mul"
    make = {
        "Cast": lambda: op.Cast(numbers(dtype), to=d.one(1, 6, 7, 9, 10, 11)),
        "Concat": lambda: op.Concat(numbers(), numbers(), axis=axis),
        "ConstantOfShape": lambda: op.ConstantOfShape(constant(np.array(shape, np.int64)), value=np.array([3], dtype)),
        "Div": lambda: op.Div(numbers(), numbers(positive=True)),
        "Expand": lambda: op.Expand(numbers(), [2, *shape]),
        "Gather": lambda: op.Gather(numbers(), [0, -1] if shape[axis] else [], axis=axis) if shape[axis] else None,
        "Pow": lambda: op.Pow(numbers(positive=True), constant(np.array(2, dtype))),
        "Range": lambda: op.Range(*(constant(np.array(n, dtype if dtype != "float16" else "float32")) for n in d.one(
            (0, 5, 1), (5, 0, -2), (0, 0, 1), (1, 4, 2)))),
        "ReduceProd": lambda: op.ReduceProd(numbers("float32"), [axis], keepdims=d.one(0, 1)),
        "Reshape": lambda: op.Reshape(numbers(), [-1]),
        "Slice": lambda: op.Slice(numbers(), [-2], [2**63 - 1], [axis]),
        "Squeeze": lambda: op.Squeeze(numbers(shape=[1, *shape]), [0]),
        "Sqrt": lambda: op.Sqrt(numbers("float32", positive=True)),
        "Floor": lambda: op.Floor(numbers("float32")), "Reciprocal": lambda: op.Reciprocal(numbers("float32")),
        "Transpose": lambda: op.Transpose(numbers(), perm=d.rng.permutation(len(shape)).tolist()),
        "Unsqueeze": lambda: op.Unsqueeze(numbers(), [axis]),
        "Where": lambda: op.Where(numbers("bool"), numbers(), numbers()),
        **{k: lambda k=k: getattr(op, k)(numbers("bool"), numbers("bool")) for k in ("And", "Or")},
        "Not": lambda: op.Not(numbers("bool")),
        **{k: lambda k=k: getattr(op, k)(numbers()) for k in ("Abs", "Identity", "Neg")},
    }
    y = make.get(kind, lambda: getattr(op, kind)(numbers(), numbers()))()
    if y is None:
        y = op.Neg(numbers())
    fits = all(v.array.size <= most for v in y.node.reads) and y.is_static and np.prod(y.shape) <= most
    return Case([y], fits)


def remove_idle_dropout(d, limit):
    x = d.variable(d.shape(), d.dtype("float64", "float16"), open_axes=0.2)
    training = d.one(None, False, True, d.variable((), "bool", array=np.array(False)))
    ratio = d.one(None, 0.0, 0.5) if training is not True else 0.0
    y = op.Dropout(x, ratio, training)
    mask = y.node.outputs[1]
    outputs = [-y, op.Not(mask)] if d.chance(0.3) else [-y]
    applies = training is None or training is False
    expected = [-d.of(x), np.zeros(d.of(x).shape, bool)]
    return Case(outputs, applies, expected[: len(outputs)], exact=True)


def relu_after_pool(d, limit):
    rank = d.one(1, 2, 2, 3)
    shape = [d.size(empty=0.0, most=3), d.size(empty=0.0, most=3), *(int(d.rng.integers(3, 9)) for _ in range(rank))]
    x = d.variable(shape, d.dtype("float64"), open_axes=d.one(0.0, 0.2), strange=0.0)
    kernel = [int(d.rng.integers(1, 4)) for _ in range(rank)]
    settings = {"kernel_shape": kernel, "strides": [int(d.rng.integers(1, 3)) for _ in kernel]}
    if d.chance():
        settings["pads"] = [int(d.rng.integers(0, k)) for k in kernel * 2]
    elif d.chance(0.3):
        settings["strides"] = [1] * rank  # Longer ones than the kernel make pads negative, which runtimes refuse.
        settings["auto_pad"] = d.one("SAME_UPPER", "SAME_LOWER", "VALID")
    if d.chance(0.3):
        settings |= {"ceil_mode": 1}
    if d.chance(0.3) and rank > 1 and "auto_pad" not in settings:
        settings["dilations"] = [d.one(1, 2) for _ in kernel]
        if any((k - 1) * e + 1 > n for k, e, n in zip(kernel, settings["dilations"], shape[2:], strict=True)):
            del settings["dilations"]
    activation = op.Relu if d.chance(0.9) else op.Neg
    activated = activation(x)
    y = op.MaxPool(activated, **settings)
    y = y[0] if isinstance(y, tuple) else y
    reads = d.one("pool", "pool", "pool", "indices", "activation")
    outputs = {"pool": [op.Neg(y)], "indices": [op.Neg(y), op.Neg(y.node.outputs[1])],
               "activation": [op.Neg(y), op.Neg(activated)]}[reads]
    # Where a window may begin behind the input, a pool is written without ceil_mode, in part behind a Pad.
    pool = y.node
    is_plain = pool.op_type == "MaxPool" and pool.inputs[0] is activated and not pool.attributes.get("ceil_mode")
    return Case(outputs, activation is op.Relu and reads == "pool" and is_plain)


def gathers_to_split(d, limit):
    shape = [d.one(1, 2, 3) for _ in range(d.rng.integers(1, 4))]
    y = d.variable(shape, open_axes=d.one(0.0, 0.0, 0.3))
    for _ in range(d.rng.integers(0, 3)):
        if d.chance(0.6):
            y = op.Transpose(y, perm=d.rng.permutation(y.rank).tolist())
        elif d.chance() and y.rank < 5:
            y = op.Unsqueeze(y, [int(d.rng.integers(-y.rank - 1, y.rank + 1))])
        elif ones := [i for i, n in enumerate(y.shape) if n == 1]:
            y = op.Squeeze(y, [d.one(*ones)])
    if y.rank == 0:
        y = op.Unsqueeze(y, [0])
    axis = int(d.rng.integers(y.rank))
    n = y.shape[axis]
    count = n if isinstance(n, int) else 2
    is_whole, forms = d.chance(0.8), []
    wanted = d.rng.permutation(count).tolist() if is_whole else list(range(count - 1))
    outputs = []
    for i in wanted:
        form = d.one(lambda i: i, lambda i: [i], lambda i: i - count, lambda i: [i - count],
                     *([lambda i: [[i]]] if d.chance(0.1) else []))
        index = constant(np.array(form(i), d.one("int64", "int32")))
        if not isinstance(n, int):
            index = constant(np.array(0))
        forms.append(index.rank)
        outputs.append(op.Gather(y, index, axis=axis if d.chance() else axis - y.rank) * float(i + 1))
    if not outputs:
        outputs = [-y]
    is_complete = is_whole and isinstance(n, int) and n > 1 and max(forms, default=0) < 2
    return Case(outputs, is_complete, exact=True)


def reshape_before_transpose(d, limit):
    apart = [d.one(1, 2, 3) for _ in range(d.rng.integers(1, 5))]
    if d.chance(0.05):
        apart[0] = 0
    x = d.variable([prod(apart)] if d.chance() else apart, strange=0.0, open_axes=d.one(0.0, 0.0, 0.0, 0.3))
    inner = op.Reshape(x, apart, allowzero=1)
    perm = d.rng.permutation(len(apart)).tolist()
    turned = op.Transpose(inner, perm=perm) if d.chance(0.9) else op.Neg(inner)
    sizes = list(turned.shape)
    if d.chance() and 0 not in sizes:
        a = d.one(*(i for i in range(1, prod(sizes) + 1) if prod(sizes) % i == 0))
        shape = d.one([a, prod(sizes) // a], [prod(sizes)], [-1, a])
    else:
        shape = [p for n in sizes for p in d.one([n], [n, 1], [1, n])]
    return Case([op.Reshape(turned, shape, allowzero=int(0 in shape))], None, exact=True)


PATTERNS = {"fold_shape": fold_shape, "skip_slice_of_nothing": skip_slice_of_nothing, "fold_sizes": fold_sizes,
            "fold_constants": fold_constants, "remove_idle_dropout": remove_idle_dropout,
            "relu_after_pool": relu_after_pool, "gathers_to_split": gathers_to_split,
            "reshape_before_transpose": reshape_before_transpose}


def check(name, count, limit):
    pattern = getattr(module, f"_{name}")

    def rewrite(outputs):
        model = SimpleNamespace(outputs=dict(enumerate(outputs)))
        change = pattern(model) if name in ("relu_after_pool", "gathers_to_split") else pattern
        new = make_rewriter(outputs, {}, change)
        return [new(v) for v in outputs]

    check_rewrite(lambda d: PATTERNS[name](d, limit), rewrite, crc32(name.encode()), count)


@pytest.mark.parametrize("name", PATTERNS)
def test_random_cases(name, limit):
    check(name, FEW, limit)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_many_random_cases(name, limit):
    check(name, MANY, limit)

"""Operators without a kernel of float64 on random attributes and shapes, beside their definition in numpy."""

import math

import numpy as np
import pytest
from once import ON_BOTH
from onnx import TensorProto
from random_graphs import Draw
from window_formulas import Geometry, convolve, draw_geometry, transpose_convolve

from ortpartial.graph import build, op
from ortpartial.model import load
from ortpartial.rewrites.float64 import LOWERINGS
from ortpartial.rewrites.lowering import lower
from ortpartial.runtime import Session


def fraction(d, *numbers):
    """An attribute, which is a float32."""
    return float(np.float32(d.one(*numbers)))


def elementwise(d):
    """Numbers of any size, of both signs, infinite and none."""
    a = np.asarray(d.rng.normal(size=d.shape(empty=0.0)) * d.one(0.1, 1.0, 30.0, 800.0))
    a[d.rng.uniform(size=a.shape) < 0.1] = d.one(0.0, -0.0, 1.0, np.inf, -np.inf, np.nan)
    x = d.variable(a.shape, "float64", array=a, open_axes=0.2)
    return x, d.of(x)


def exp_minus_1(a):
    return np.expm1(np.minimum(a, 0))


def draw_elu(d):
    x, a = elementwise(d)
    alpha = fraction(d, 0.5, 1.0, 2.5)
    return op.Elu(x, alpha=alpha), np.where(a < 0, alpha * exp_minus_1(a), a)


def draw_selu(d):
    x, a = elementwise(d)
    alpha, gamma = fraction(d, 0.5, 1.6), fraction(d, 1.0, 1.1)
    return op.Selu(x, alpha=alpha, gamma=gamma), gamma * np.where(a <= 0, alpha * exp_minus_1(a), a)


def erf(a):
    return np.vectorize(math.erf, otypes=[np.float64])(a)


def draw_erf(d):
    x, a = elementwise(d)
    return op.Erf(x), erf(a)


def draw_gelu(d):
    x, a = elementwise(d)
    if d.chance():
        return op.Gelu(x), 0.5 * a * (1 + erf(a / math.sqrt(2)))
    return op.Gelu(x, approximate="tanh"), 0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))


def draw_hard_sigmoid(d):
    x, a = elementwise(d)
    alpha, beta = fraction(d, 0.2, 1.0, -0.5), fraction(d, 0.5, 0.0, 2.0)
    return op.HardSigmoid(x, alpha=alpha, beta=beta), np.maximum(0, np.minimum(1, alpha * a + beta))


def draw_hard_swish(d):
    x, a = elementwise(d)
    return op.HardSwish(x), a * np.maximum(0, np.minimum(1, a / 6 + 0.5))


def draw_leaky(d):
    x, a = elementwise(d)
    alpha = fraction(d, 0.01, 0.5, 2.0, -1.0)
    return op.LeakyRelu(x, alpha=alpha), np.where(a < 0, alpha * a, a)


def draw_prelu(d):
    x, a = elementwise(d)
    shape = [n if d.chance() else 1 for n in a.shape][int(d.rng.integers(0, a.ndim + 1)):]
    slope = d.variable(shape, "float64", strange=0.0)
    return op.PRelu(x, slope), np.where(a < 0, d.of(slope) * a, a)


def draw_mish(d):
    x, a = elementwise(d)
    return op.Mish(x), a * np.tanh(np.logaddexp(0, a))


def draw_softplus(d):
    x, a = elementwise(d)
    return op.Softplus(x), np.logaddexp(0, a)


def draw_softsign(d):
    x, a = elementwise(d)
    return op.Softsign(x), a / (1 + abs(a))


def draw_thresholded(d):
    x, a = elementwise(d)
    alpha = fraction(d, 0.5, 1.0, 0.0, -2.0)
    return op.ThresholdedRelu(x, alpha=alpha), np.where(a > alpha, a, 0)


def draw_mean(d):
    x, a = elementwise(d)
    arrays, values = [a], [x]
    for _ in range(d.one(0, 1, 3)):
        shape = [n if d.chance() else 1 for n in a.shape][int(d.rng.integers(0, a.ndim + 1)):]
        values.append(d.variable(shape, "float64", strange=0.0))
        arrays.append(d.of(values[-1]))
    return op.Mean(*values), sum(arrays) / len(arrays)


def images(d, least=1, most=3, **settings):
    """Images of one to three axes beside batch and channels."""
    shape = [d.size(empty=0, most=3), d.size(empty=0, most=5), *(d.size(empty=0) for _ in range(d.rng.integers(
        least, most + 1)))]
    x = d.variable(shape, "float64", strange=0.0, **settings)
    return x, d.of(x), tuple(range(2, len(shape)))


def draw_global_average(d):
    x, a, axes = images(d, open_axes=0.2)
    return op.GlobalAveragePool(x), a.mean(axes, keepdims=True)


def draw_global_max(d):
    x, a, axes = images(d, open_axes=0.2)
    return op.GlobalMaxPool(x), a.max(axes, keepdims=True)


def draw_instance_normalization(d):
    x, a, axes = images(d)
    scale, b = (d.variable(a.shape[1:2], "float64", strange=0.0) for _ in "sb")
    epsilon = fraction(d, 1e-5, 0.1)
    right = (a - a.mean(axes, keepdims=True)) / np.sqrt(a.var(axes, keepdims=True) + epsilon)
    by_channel = [d.of(v).reshape(-1, *[1] * len(axes)) for v in (scale, b)]
    return op.InstanceNormalization(x, scale, b, epsilon=epsilon), right * by_channel[0] + by_channel[1]


def draw_lrn(d):
    x, a, _ = images(d, least=2, most=2)
    size, alpha, beta, bias = d.one(1, 2, 3, 4, 5), fraction(d, 1e-4, 0.5), fraction(d, 0.75, 2.0), fraction(d, 1.0, 2)
    squares = np.zeros(a.shape)
    for c in range(a.shape[1]):
        before, behind = (size - 1) // 2, -(-(size - 1) // 2)
        squares[:, c] = (a[:, max(0, c - before) : c + behind + 1] ** 2).sum(1)
    return op.LRN(x, size=size, alpha=alpha, beta=beta, bias=bias), a / (bias + alpha / size * squares) ** beta


def draw_conv(d):
    g, sizes, settings = draw_geometry(d, d.one(1, 2, 3), most=3)
    group = d.one(1, 1, 2, 3)
    c, o = (d.size(empty=0, most=2) for _ in "co")
    x = d.variable([d.size(empty=0, most=2), c * group, *sizes], "float64", strange=0.0,
                   open_axes=0.0 if "auto_pad" in settings else 0.2)
    w = d.variable([o * group, c, *g.kernel], "float64", strange=0.0)
    right = convolve(d.of(x), d.of(w), g, group)
    if d.chance():
        return op.Conv(x, w, group=group, **settings), right
    b = d.variable([o * group], "float64", strange=0.0)
    return op.Conv(x, w, b, group=group, **settings), right + d.of(b).reshape(-1, *[1] * len(sizes))


def draw_conv_transpose(d):
    r, group = d.one(1, 2, 3), d.one(1, 1, 2)
    kernel, sizes = ([d.size(empty=0, most=4) for _ in range(r)] for _ in "kn")
    strides, dilations = ([d.one(1, 1, 2, 3) for _ in range(r)] for _ in "sd")
    extent = [(k - 1) * e + 1 for k, e in zip(kernel, dilations, strict=True)]
    extra = [int(d.rng.integers(0, s)) for s in strides]
    whole = [(n - 1) * s + e + p for n, s, e, p in zip(sizes, strides, extent, extra, strict=True)]
    pads = [0] * 2 * r
    auto = d.one("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "shape")
    settings = {"strides": strides, "dilations": dilations, "output_padding": extra, "group": group}
    total = [0] * r
    if auto == "NOTSET":
        pads = [int(d.rng.integers(0, max(1, min(e, n) // 2 + 1))) for e, n in zip(extent * 2, whole * 2, strict=True)]
        pads = [p if whole[i % r] - pads[i % r] - pads[i % r + r] > 0 else 0 for i, p in enumerate(pads)]
        settings["pads"] = pads
    elif auto == "shape":
        settings["output_shape"] = [max(1, m - d.one(0, 1, 2)) for m in whole]
        total = [m - n for m, n in zip(whole, settings["output_shape"], strict=True)]
        pads = [*(t - t // 2 for t in total), *(t // 2 for t in total)]  # as the specification says but for SAME_UPPER
    else:
        settings["auto_pad"] = auto
        if auto != "VALID":
            total = [max(0, m - n * s) for m, n, s in zip(whole, sizes, strides, strict=True)]
            less, more = [t // 2 for t in total], [t - t // 2 for t in total]
            pads = [*less, *more] if auto == "SAME_UPPER" else [*more, *less]
    c, o = d.size(empty=0, most=2) * group, d.size(empty=0, most=2)
    x = d.variable([d.size(empty=0, most=2), c, *sizes], "float64", strange=0.0)
    w = d.variable([c, o, *kernel], "float64", strange=0.0)
    ends = [m - p - q for m, p, q in zip(whole, pads[:r], pads[r:], strict=True)]
    right = transpose_convolve(d.of(x), d.of(w), ends, Geometry(kernel, strides, dilations, pads), group)
    return op.ConvTranspose(x, w, **settings), right


def draw_average_pool(d):
    """Sums over the elements that a window sees, divided by their number, or by that of padded ones, too."""
    r = d.one(1, 2, 3)
    g, sizes, settings = draw_geometry(d, r, most=3)
    counts, ceil = d.one(0, 1), 0 if "auto_pad" in settings else d.one(0, 1)
    m = g.positions(sizes)
    beyond = [0] * r
    if ceil:
        for i, (n, e) in enumerate(zip(sizes, m, strict=True)):
            before, behind = g.around[2 + i]
            extent, s = (g.kernel[i] - 1) * g.dilations[i] + 1, g.strides[i]
            last = -(-(n + before + behind - extent) // s) + 1
            if (last - 1) * s >= n + before:
                # Behind the image: a window for ONNX's inference and onnxruntime 1.19.2, and none for 1.32.0.
                return draw_average_pool(d)
            m[i] = last
            beyond[i] = max(0, (last - 1) * s + extent - n - before - behind)
            assert last in (e, e + 1)
    x = d.variable([d.one(1, 2), d.one(1, 2), *sizes], "float64", strange=0.0)
    zeros, widths = np.zeros(d.of(x).shape), [(0, 0)] * 2 + [(0, b) for b in beyond]
    padded = np.pad(np.pad(d.of(x), g.around), widths)
    counted = np.pad(np.pad(zeros + 1, g.around, constant_values=counts), widths)
    sums, number = (sum(a[at] for _, at in g.places(m)) for a in (padded, counted))
    y = op.AveragePool(x, kernel_shape=g.kernel, count_include_pad=counts, ceil_mode=ceil, **settings)
    with np.errstate(invalid="ignore"):
        return y, sums / number


def draw_col2im(d):
    r = d.one(1, 2, 3)
    g, sizes, settings = draw_geometry(d, r, most=3)
    settings.pop("auto_pad", None)
    g = Geometry(g.kernel, g.strides, g.dilations, settings.get("pads", [0] * 2 * r))
    m = g.positions(sizes)
    n, c = d.size(empty=0, most=2), d.size(empty=0, most=3)
    x = d.variable([n, c * math.prod(g.kernel), math.prod(m)], "float64", strange=0.0)
    blocks = d.of(x).reshape(n, c, *g.kernel, *m)
    image = np.pad(np.zeros((n, c, *sizes)), g.around)
    for place, at in g.places(m):
        image[at] += blocks[(slice(None), slice(None), *place)]
    inside = tuple(slice(a, a + s) for (a, _), s in zip(g.around, (n, c, *sizes), strict=True))
    y = op.Col2Im(x, np.array(sizes, np.int64), np.array(g.kernel, np.int64), **settings)
    return y, image[inside]


def draw_function(operator, function):
    def draw(d):
        x, a = elementwise(d)
        return operator(x), function(a)

    return draw


def draw_moderate(operator, function):
    """A periodic function, whose argument is no better known than to its last bit."""

    def draw(d):
        x = d.variable(d.shape(), "float64", strange=0.0, open_axes=0.2)
        return operator(x), function(d.of(x))

    return draw


def draw_global_norm(d):
    x, a, axes = images(d, open_axes=0.2)
    p = d.one(1, 2, 3)
    return op.GlobalLpPool(x, p=p), (abs(a) ** p).sum(axes, keepdims=True) ** (1 / p)


def draw_norm_pool(d):
    g, sizes, settings = draw_geometry(d, d.one(1, 2, 3), most=3)
    p = d.one(1, 2, 3)
    x = d.variable([d.one(1, 2), d.one(1, 2), *sizes], "float64", strange=0.0)
    powers = np.pad(abs(d.of(x)) ** p, g.around)
    return op.LpPool(x, kernel_shape=g.kernel, p=p, **settings), sum(
        powers[at] for _, at in g.places(g.positions(sizes))) ** (1 / p)


def draw_hardmax(d):
    x = d.variable(d.shape(empty=0.0, least=1), "float64", strange=0.0, open_axes=0.2)
    axis = int(d.rng.integers(-d.of(x).ndim, d.of(x).ndim))
    a = d.of(x)
    first = np.expand_dims(a.argmax(axis), axis)
    right = np.zeros(a.shape)
    np.put_along_axis(right, first, 1, axis)
    return op.Hardmax(x, axis=axis), right


def draw_reduction(operator, function):
    def draw(d):
        x = d.variable(d.shape(empty=0.0, least=1), "float64", strange=0.0, open_axes=0.2)
        a = d.of(x)
        axes = sorted({int(d.rng.integers(0, a.ndim)) for _ in range(2)})
        keepdims = d.one(0, 1)
        return operator(x, axes, keepdims=keepdims), function(a, tuple(axes), bool(keepdims))

    return draw


def draw_deformed(d):
    """Each tap reads between four elements, of which those outside are 0."""
    n, c, h, w, k = 2, d.one(1, 2), d.one(3, 4), 5, 2
    x = d.variable([n, c, h, w], "float64", strange=0.0, open_axes=0.2)
    weights, moves = (d.variable(s, "float64", strange=0.0) for s in ([3, c, k, k], [n, 2 * k * k, h - 1, w - 1]))
    padded, expected = np.pad(d.of(x), [(0, 0), (0, 0), (40, 40), (40, 40)]), np.zeros((n, 3, h - 1, w - 1))
    for image, tap, row, column in np.ndindex(n, k * k, h - 1, w - 1):
        at = [40 + row + tap // k + d.of(moves)[image, 2 * tap, row, column],
              40 + column + tap % k + d.of(moves)[image, 2 * tap + 1, row, column]]
        (i, j), (u, v) = np.floor(at).astype(int), np.mod(at, 1)
        around = padded[image, :, i : i + 2, j : j + 2]
        seen = np.einsum("cij,i,j->c", around, [1 - u, u], [1 - v, v])
        expected[image, :, row, column] += d.of(weights)[:, :, tap // k, tap % k] @ seen
    return op.DeformConv(x, weights, moves), expected


def draw_unpool(d):
    n, c, h, w = (d.one(1, 2, 3) for _ in range(4))
    x = d.variable([n, c, h, w], "float64", strange=0.0, open_axes=0.2)
    sizes = (n, c, 2 * h + d.one(0, 1), 3 * w)
    places = d.rng.permutation(math.prod(sizes))[: n * c * h * w].reshape(n, c, h, w)
    right = np.zeros(math.prod(sizes))
    right[places.ravel()] = d.of(x).ravel()
    shape = list(sizes) if sizes[2] % 2 or d.chance() else None
    return op.MaxUnpool(x, places, shape, kernel_shape=[2, 3], strides=[2, 3]), right.reshape(sizes)


def draw_one_hot(d):
    x = d.variable(d.shape(empty=0.0, least=1), "float64", strange=0.0, open_axes=0.2)
    depth = d.one(1, 3, 4)
    i = np.trunc(3 * d.of(x)).astype(int)
    at = np.where((i < -depth) | (i >= depth), depth, i % depth)
    return op.OneHot(3 * x, depth, [0.5, 2.5]), np.eye(depth + 1, depth)[at] * 2 + 0.5


def draw_non_zero(d):
    x = d.variable(d.shape(least=1), "float64", strange=0.0)
    a = np.maximum(d.of(x), 0)
    return op.Cast(op.NonZero(op.Max(x, 0)), to=TensorProto.DOUBLE), np.array(a.nonzero(), np.float64)


DRAWS = {
    "AveragePool": draw_average_pool, "Col2Im": draw_col2im, "Conv": draw_conv, "ConvTranspose": draw_conv_transpose,
    "DeformConv": draw_deformed, "Cos": draw_moderate(op.Cos, np.cos), "Cosh": draw_function(op.Cosh, np.cosh),
    "GlobalLpPool": draw_global_norm, "Hardmax": draw_hardmax, "LpPool": draw_norm_pool, "MaxUnpool": draw_unpool,
    "NonZero": draw_non_zero, "OneHot": draw_one_hot,
    "ReduceL1": draw_reduction(op.ReduceL1, lambda a, axes, keep: abs(a).sum(axes, keepdims=keep)),
    "ReduceL2": draw_reduction(op.ReduceL2, lambda a, axes, keep: np.sqrt((a * a).sum(axes, keepdims=keep))),
    "ReduceLogSum": draw_reduction(op.ReduceLogSum, lambda a, axes, keep: np.log(a.sum(axes, keepdims=keep))),
    "ReduceProd": draw_reduction(op.ReduceProd, lambda a, axes, keep: a.prod(axes, keepdims=keep)),
    "Sinh": draw_function(op.Sinh, np.sinh), "Tan": draw_moderate(op.Tan, np.tan),
    "Elu": draw_elu, "Erf": draw_erf, "Gelu": draw_gelu, "GlobalAveragePool": draw_global_average,
    "GlobalMaxPool": draw_global_max, "HardSigmoid": draw_hard_sigmoid, "HardSwish": draw_hard_swish,
    "InstanceNormalization": draw_instance_normalization, "LRN": draw_lrn, "LeakyRelu": draw_leaky, "Mean": draw_mean,
    "Mish": draw_mish, "PRelu": draw_prelu, "Selu": draw_selu, "Softplus": draw_softplus, "Softsign": draw_softsign,
    "ThresholdedRelu": draw_thresholded}


def check_lowering(name, seed):
    d = Draw(np.random.default_rng([list(DRAWS).index(name), seed]))
    with np.errstate(all="ignore"):
        y, expected = DRAWS[name](d)
    model = build(list(d.arrays), {"y": y})
    lowered = lower(model)
    # NonZero and OneHot are written with others of the same operator, of booleans and whole numbers.
    assert name in ("NonZero", "OneHot") or name not in {node.op_type for node in lowered.graph.node}, (seed, y.node)
    assert load(lowered).outputs["y"].dtype == np.float64
    session = Session(lowered)
    actual = session.run({v.hint: a for v, a in d.arrays.items() if v.hint in session.inputs})["y"]
    assert actual.shape == expected.shape, (seed, y.node, actual.shape, expected.shape)
    finite = expected[np.isfinite(expected)]
    size = max(1.0, float(abs(finite).max(initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14 * size, err_msg=f"seed {seed}: {y.node}")


@ON_BOTH
@pytest.mark.parametrize("name", DRAWS)
def test_some_lowered(name):
    for seed in range(4):
        check_lowering(name, seed)


def test_every_lowering_is_drawn():
    # tests/autodiff/rules/test_recurrent.py tries the recurrent ones.
    assert {*DRAWS, "GRU", "LSTM", "RNN"} == set(LOWERINGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_many_lowered(name):
    for seed in range(100, 250):
        check_lowering(name, seed)

"""Convolutions, pools and their gradients by every way of computing them, on both sides of its conditions, by torch."""

from math import prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ortpartial.autodiff import grad
from ortpartial.graph import build, constant, op, variable
from ortpartial.rewrites import rewrite_step
from ortpartial.rewrites.convolutions import write_convolutions
from ortpartial.runtime import Session
from ortpartial.runtime.channel_block import channel_block

#: The tests say on which side of the limits they are.
pytestmark = pytest.mark.usual_limits
needs_blocks = pytest.mark.skipif(channel_block() is None, reason="onnxruntime convolves no blocks of channels here")

#: Multiplications from which on these tests lay out blocks.
COST = 2**15


def real(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def assert_close(actual, expected, what):
    expected = expected.detach().numpy() if isinstance(expected, torch.Tensor) else expected
    assert actual.shape == expected.shape, what
    assert np.max(abs(actual - expected), initial=0) <= 2e-5 * np.max(abs(expected), initial=1), what


def draw_convolution(seed):
    """Images, kernels, a bias or None, attributes of Conv, and the pads that they mean."""
    rng = np.random.default_rng(seed)
    block = channel_block() or 8
    n, c, o = (int(rng.choice(some)) for some in (
        (1, 2, 5, block), (1, 3, block - 2, block, block + 1, 2 * block, 3 * block - 2),
        (2, 5, block - 2, block, 2 * block)))
    kernel, strides, dilations = ([int(rng.integers(1, k)) for _ in "hw"] for k in (5, 3, 3))
    sizes = [int(rng.integers((k - 1) * d + 1, 15)) for k, d in zip(kernel, dilations, strict=True)]
    auto = str(rng.choice(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    pads = [0] * 4
    if auto == "NOTSET":
        pads = [int(rng.integers(0, k)) for k in kernel * 2]
        settings = {"pads": pads}
    else:
        settings = {"auto_pad": auto}
    if auto.startswith("SAME"):
        dilations = [1, 1]  # onnxruntime 1.19 to 1.32 refuses others.
        total = [max(0, (-(-i // s) - 1) * s + k - i) for i, s, k in zip(sizes, strides, kernel, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = [*less, *more] if auto == "SAME_UPPER" else [*more, *less]
    group = 2 if c % 2 == 0 == o % 2 and rng.random() < 0.2 else 1
    x, w = real(rng, n, c, *sizes), real(rng, o, c // group, *kernel)
    b = real(rng, o) if rng.random() < 0.5 else None
    return x, w, b, {**settings, "strides": strides, "dilations": dilations, "group": group}, pads


def convolve(x, w, b, settings, pads):
    padded = F.pad(x, [pads[1], pads[3], pads[0], pads[2]])
    return F.conv2d(padded, w, b, settings["strides"], 0, settings["dilations"], settings["group"])


def fills_blocks(block, *channels):
    return all(-(-n // block) * block <= 1.34 * n for n in channels)


def is_in_blocks(x, w, y, group, block):
    """Whether a Conv is laid out in blocks: by the rules in words at the head of the module and its limits."""
    (n, c), o, places = x[:2], w[0], prod(y[2:])
    is_gradient = prod(w[2:]) > places
    depth = n * places if is_gradient else c * prod(w[2:])
    is_full = fills_blocks(block, o, max(c, block)) and not (is_gradient and c < block)
    return group == 1 and is_full and depth >= 64 and prod(y) * prod(w[1:]) >= COST


def check_convolution(seed, limit):
    limit(block_cost=COST)
    x, w, b, settings, pads = draw_convolution(seed)
    arrays = {"x": x, "w": w, **({} if b is None else {"b": b})}
    values = {n: variable(n, "float32", a.shape) for n, a in arrays.items()}
    y = op.Conv(*values.values(), **settings)
    block = channel_block()
    model = build(list(values.values()), {"y": y})
    written = write_convolutions(model, block)
    kinds = [node.domain + node.op_type for node in written.graph.node]
    is_gradient = prod(w.shape[2:]) > prod(y.shape[2:])
    in_blocks = block is not None and is_in_blocks(x.shape, w.shape, y.shape, settings["group"], block)
    if in_blocks or not is_gradient:  # A gradient that fills no blocks has other ways.
        assert kinds.count("com.microsoft.nchwcConv") == in_blocks, (seed, kinds)
    tensors = {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in arrays.items()}
    right = convolve(tensors["x"], tensors["w"], tensors.get("b"), settings, pads)
    assert_close(Session(written).run(arrays)["y"], right, f"seed {seed}: y")
    dy = np.random.default_rng(seed).normal(size=y.shape).astype(np.float32)
    cotangent = variable("dy", "float32", y.shape)
    results = dict(zip(arrays, grad(y, list(values.values()), [cotangent]), strict=True))
    outputs = rewrite_step({f"d{n}": v for n, v in results.items()})
    gradient = write_convolutions(build([*values.values(), cotangent], outputs), block)
    session = Session(gradient)
    actual = session.run({n: a for n, a in {**arrays, "dy": dy}.items() if n in session.inputs})
    expected = torch.autograd.grad(right, list(tensors.values()), torch.from_numpy(dy).double())
    for n, d in zip(arrays, expected, strict=True):
        assert_close(actual[f"d{n}"], d, f"seed {seed}: d{n}")
    return in_blocks


@pytest.mark.parametrize("group", range(2))
def test_some_convolutions_equal_those_of_torch(group, limit):
    applied = [check_convolution(seed, limit) for seed in range(15 * group, 15 * group + 15)]
    assert channel_block() is None or {True, False} == set(applied)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(30))
def test_convolutions_equal_those_of_torch(group, limit):
    for seed in range(1000 + 20 * group, 1020 + 20 * group):
        check_convolution(seed, limit)


@needs_blocks
@pytest.mark.parametrize("sizes", [(channel_block() or 8, 2 * (channel_block() or 8)), (3, 16), (30, 20)])
def test_convolutions_of_other_kinds_are_left_alone(sizes, limit):
    limit(block_cost=0, block_depth=0)
    c, o = sizes
    x, w = variable("x", "float32", [2, c, 9, 9]), variable("w", "float32", [o, c, 3, 3])
    arrays = np.random.default_rng(0).normal(size=(o, c, 3, 3)).astype(np.float32)
    others = {
        "constant": op.Conv(x, constant(arrays)), "open": op.Conv(variable("x", "float32", ["N", c, 9, 9]), w),
        "float64": op.Conv(variable("x", "float64", x.shape), variable("w", "float64", w.shape)),
        "1-D": op.Conv(variable("x", "float32", [2, c, 9]), variable("w", "float32", [o, c, 3])),
        "3-D": op.Conv(variable("x", "float32", [2, c, 5, 5, 5]), variable("w", "float32", [o, c, 2, 2, 2]))}
    for what, y in others.items():
        model = build([v for v in y.node.inputs if v.array is None], {"y": y})
        assert write_convolutions(model, channel_block()) is model, what


def check_transposed(seed, limit):
    limit(block_cost=COST)
    rng, block = np.random.default_rng(seed), channel_block()
    width = block or 8
    n, c, o = (int(rng.choice(some)) for some in ((1, 3), (3, width, 2 * width - 1, 2 * width), (2, width, width + 2)))
    kernel = [int(rng.integers(1, 5)) for _ in "hw"]
    strides, dilations = ([int(rng.choice([1, 1, 1, 2])) for _ in "hw"] for _ in "sd")
    pads = [int(rng.integers(0, (k - 1) * d + 1)) for k, d in zip(kernel, dilations, strict=True)]
    extra = [int(rng.integers(0, s)) for s in strides]
    sizes = [int(rng.integers(8, 13)) for _ in "hw"]
    x, w = real(rng, n, c, *sizes), real(rng, c, o, *kernel)
    b = real(rng, o) if rng.random() < 0.2 else None
    arrays = {"x": x, "w": w, **({} if b is None else {"b": b})}
    values = [variable(name, "float32", a.shape) for name, a in arrays.items()]
    y = op.ConvTranspose(*values, strides=strides, dilations=dilations, pads=pads * 2, output_padding=extra)
    written = write_convolutions(build(values, {"y": y}), block)
    count = [node.domain for node in written.graph.node if node.op_type == "Conv"].count("com.microsoft.nchwc")
    is_plain = b is None and not any(extra) and {*strides, *dilations} == {1}
    is_deep = c * prod(kernel) >= 64 and x.size * o * prod(kernel) >= COST
    in_blocks = block is not None and is_plain and is_deep and fills_blocks(block, o, max(c, block)) and all(
        p < k for p, k in zip(pads, kernel, strict=True))
    assert count == in_blocks, seed
    right = F.conv_transpose2d(*(torch.from_numpy(a).double() for a in (x, w)),
                               None if b is None else torch.from_numpy(b).double(), strides, pads, extra, 1, dilations)
    assert_close(Session(written).run(arrays)["y"], right, f"seed {seed}")
    return in_blocks


def test_some_transposed_convolutions_equal_those_of_torch(limit):
    applied = [check_transposed(seed, limit) for seed in range(25)]
    assert channel_block() is None or {True, False} == set(applied)


@pytest.mark.slow
def test_transposed_convolutions_equal_those_of_torch(limit):
    for seed in range(1000, 1300):
        check_transposed(seed, limit)


def check_pool(seed):
    """A pool and its gradient; whether masks give that of MaxPool, in place of indices."""
    rng = np.random.default_rng(seed)
    r = int(rng.choice([1, 2, 2, 2, 3]))
    kernel, strides = ([int(rng.integers(1, k)) for _ in range(r)] for k in (4, 4))
    dilations = [int(rng.choice([1, 1, 2])) for _ in range(r)]
    name = str(rng.choice(["MaxPool", "AveragePool"]))
    pads = [int(rng.integers(0, k)) if seed % 3 == 0 else 0 for k in kernel * 2]
    sizes = [int(rng.integers((k - 1) * d + 1, 12)) for k, d in zip(kernel, dilations, strict=True)]
    counts = int(rng.integers(2))
    settings = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    if name == "AveragePool":
        settings |= {"count_include_pad": counts}
        settings.pop("dilations")
        dilations = [1] * r
    x = rng.permutation(2 * 3 * prod(sizes)).reshape(2, 3, *sizes).astype(np.float32) / 8
    v = variable("x", "float32", x.shape)
    y = getattr(op, name)(v, **settings)
    dy = real(rng, *y.shape)
    cotangent = variable("dy", "float32", y.shape)
    graph = build([v, cotangent], rewrite_step({"y": y, "dx": grad(y, [v], [cotangent])[0]}))
    kinds = [node.op_type for node in graph.graph.node]
    is_small = r == 2 and prod(kernel) <= 4 and not any(pads)
    if name == "MaxPool":
        assert ("ScatterElements" in kinds) == (not is_small), (seed, kinds)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    margin = [p for i in reversed(range(r)) for p in (pads[i], pads[r + i])]
    if name == "MaxPool":
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[r - 1]
        right = pool(F.pad(t, margin, value=-np.inf), kernel, strides, 0, dilations)
    else:
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[r - 1]
        right = pool(F.pad(t, margin), kernel, strides) / pool(
            F.pad(torch.ones_like(t), margin, value=float(counts)), kernel, strides)
    (dx,) = torch.autograd.grad(right, [t], torch.from_numpy(dy).double())
    session = Session(graph)
    actual = session.run({n: a for n, a in {"x": x, "dy": dy}.items() if n in session.inputs})
    assert_close(actual["y"], right, f"seed {seed}: y")
    assert_close(actual["dx"], dx, f"seed {seed}: dx")
    return name == "MaxPool" and is_small


def test_some_pools_equal_those_of_torch():
    assert {True, False} == {check_pool(seed) for seed in range(25)}


@pytest.mark.slow
def test_pools_equal_those_of_torch():
    for seed in range(1000, 1400):
        check_pool(seed)

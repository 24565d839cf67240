"""Kernels of convolutions and of their gradients against their definition, around every limit, and in trainings."""

import ctypes
import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest
from once import ON_NEWEST

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.execution.native_engine import write_step
from ortpartial.native import convolutions
from ortpartial.native.compiler import FLAGS, compile_library
from ortpartial.native.convolutions import ConvolutionShape
from ortpartial.native.linking import find_address, read_text
from ortpartial.native.types import suffix

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

PAIRS = ("x", "k", "y", "strides", "dilations", "before")


class Windows(ctypes.Structure):
    _fields_ = [*((n, ctypes.c_ssize_t) for n in ("images", "groups", "channels", "outputs")),
                *((n, ctypes.c_ssize_t * 2) for n in PAIRS)]


def draw_shape(rng, kind="forward", **chosen):
    """A convolution whose windows, with margins, see at least a pixel of the image in each direction."""
    n, g, k, s, d, before, behind = (
        rng.integers(1, 4), rng.integers(1, 3), rng.integers(1, 5, 2), rng.integers(1, 4, 2), rng.integers(1, 3, 2),
        rng.integers(0, 3, 2), rng.integers(0, 3, 2))
    behind = chosen.pop("behind", behind)
    drawn = {"images": n, "groups": g, "channels": rng.integers(1, 40), "outputs": rng.integers(1, 40),
             "x": rng.integers(1, 13, 2), "k": k, "strides": s, "dilations": d, "before": before, **chosen}
    spans = (np.array(drawn["k"]) - 1) * drawn["dilations"] + 1
    x = np.maximum(drawn["x"], spans - drawn["before"] - behind)
    y = (x + drawn["before"] + behind - spans) // drawn["strides"] + 1
    sizes = {n: tuple(map(int, v)) if np.ndim(v) else int(v) for n, v in {**drawn, "x": x, "y": y}.items()}
    return ConvolutionShape(kind, **sizes, dtype=np.dtype([np.float32, np.float64][rng.integers(2)]))


def draw_filtered(rng, kind="forward", **chosen):
    """A convolution of 3 x 3, most of which Winograd's tiles compute."""
    sizes = {"channels": rng.integers(31, 50), "outputs": rng.integers(31, 70), "x": rng.integers(3, 16, 2)}
    settings = {"images": 3, "k": (3, 3), "strides": (1, 1), "dilations": (1, 1)}
    return draw_shape(rng, kind, **{**sizes, **settings, **chosen})


def see(z, x, tap):
    """The pixels (N, G, C, P, Q) that a tap sees, 0 in the margin; and their places in the padded image."""
    reach = [max((y - 1) * s + (k - 1) * d + 1 - b - n, 0) for n, k, y, s, d, b in
             zip(*(getattr(z, name) for name in PAIRS), strict=True)]
    padded = np.pad(x.reshape(z.images, z.groups, z.channels, *z.x),
                    [(0, 0)] * 3 + list(zip(z.before, reach, strict=True)))
    first = [t * d for t, d in zip(tap, z.dilations, strict=True)]
    places = tuple(slice(f, f + (y - 1) * s + 1, s) for f, y, s in zip(first, z.y, z.strides, strict=True))
    return padded, (..., *places)


def define(z, x, w, y):
    """The convolution of x by w, and the gradients by x and by w of its product with y, in float64."""
    x, w, y = (a.astype(float) for a in (x, w, y))
    kernels, dy = (w.reshape(z.groups, z.outputs, z.channels, *z.k), y.reshape(z.images, z.groups, z.outputs, *z.y))
    forward, by_kernels, by_images = np.zeros_like(dy), np.zeros_like(kernels), None
    for tap in itertools.product(*map(range, z.k)):
        padded, at = see(z, x, tap)
        by_images = np.zeros_like(padded) if by_images is None else by_images
        forward += np.einsum("goc,ngcpq->ngopq", kernels[..., tap[0], tap[1]], padded[at], optimize=True)
        by_kernels[..., tap[0], tap[1]] = np.einsum("ngopq,ngcpq->goc", dy, padded[at], optimize=True)
        by_images[at] += np.einsum("goc,ngopq->ngcpq", kernels[..., tap[0], tap[1]], dy, optimize=True)
    inside = tuple(slice(b, b + n) for b, n in zip(z.before, z.x, strict=True))
    return forward.reshape(y.shape), by_images[(..., *inside)].reshape(x.shape), by_kernels.reshape(w.shape)


def call(z, first, second, result, addend=None, threads=1, library=None):
    """Run a kernel with as much memory as it asks for, and not a number more."""
    name = f"op_{'correlate' if z.kind == 'kernels' else 'convolve'}_{suffix(z.dtype)}"
    address = find_address(name) if library is None else ctypes.cast(library[name], ctypes.c_void_p).value
    kind = ctypes.c_float if z.dtype == np.float32 else ctypes.c_double
    scratch = np.full(z.scratch + 64, np.nan, z.dtype)
    places = [None if a is None else a.ctypes.data for a in (first, second, addend, result, scratch)]
    windows = Windows(z.images, z.groups, z.channels, z.outputs,
                      *((ctypes.c_ssize_t * 2)(*getattr(z, n)) for n in PAIRS))
    if z.kind == "kernels":
        kinds = [Windows, *[ctypes.c_void_p] * 5, ctypes.c_ssize_t, kind, kind]
        ctypes.CFUNCTYPE(None, *kinds)(address)(windows, *places, threads, z.alpha, z.beta)
    else:
        kinds = [Windows, ctypes.c_int, *[ctypes.c_void_p] * 5, ctypes.c_ssize_t]
        ctypes.CFUNCTYPE(None, *kinds)(address)(windows, int(z.kind == "images"), *places, threads)
    assert np.isnan(scratch[z.scratch :]).all(), z
    return result


def check(z, rng, library=None):
    """All three kernels, with a bias or an addend, on one thread and on two and three."""
    x = rng.standard_normal((z.images, z.groups * z.channels, *z.x)).astype(z.dtype)
    w = rng.standard_normal((z.groups * z.outputs, z.channels, *z.k)).astype(z.dtype)
    y = rng.standard_normal((z.images, z.groups * z.outputs, *z.y)).astype(z.dtype)
    bias, shift = (rng.standard_normal(a.shape[1]).astype(z.dtype) for a in (y, x))
    forward, by_images, by_kernels = define(z, x, w, y)
    for kind, first, second, addend, expected in (
            ("forward", x, w, bias, forward + bias[:, None, None]), ("images", y, w, None, by_images),
            ("images", y, w, shift, by_images + shift[:, None, None]), ("kernels", x, y, None, by_kernels),
            ("kernels", x, y, w, w - 0.5 * by_kernels)):
        shape = replace(z, kind=kind)
        if kind == "kernels" and addend is not None:
            shape = shape.scaled(-0.5, 1.0)
        results = []
        for threads in (1, 2, 3):
            result = np.full(expected.shape, np.nan, z.dtype) if addend is not w else w.copy()
            results.append(call(shape, first, second, result, result if addend is w else addend, threads, library))
        terms = z.images * np.prod(z.y) if kind == "kernels" else w[0].size
        scale = (4e-6 if z.dtype == np.float32 else 1e-14) * max(abs(expected).max(), terms**0.5)
        assert abs(results[0] - expected).max() <= scale, shape
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0], err_msg=str(shape))


def check_random(seed, count, library=None):
    rng = np.random.default_rng(seed)
    for i in range(count):
        check((draw_filtered if i % 3 == 0 else draw_shape)(rng), rng, library)


def test_random_convolutions_and_gradients():
    check_random(0, 24)


LIMITS = {
    "few channels": [{"channels": 11, "outputs": 40}, {"channels": 12, "outputs": 40}],
    "places of a block": [{"images": 1, "x": (1, n), "k": (1, 1), "strides": (1, 1), "before": (0, 0), "behind": (0, 0)}
                          for n in (127, 128, 129, 255, 256, 257)],
    "columns written at a time": [{"images": 1, "groups": 1, "channels": 1, "outputs": 3, "x": (64, n), "k": (1, 1),
                                   "strides": (1, 1), "before": (0, 0), "behind": (0, 0)} for n in (64, 65)],
    "rows of a block": [{"channels": n, "k": (2, 4), "x": (5, 5)} for n in (71, 72, 73, 85)],
    "wide columns": [{"channels": 2, "k": (2, n), "x": (4, 22), "dilations": (1, 1)} for n in (15, 16, 17)],
}
FILTERS = {
    "channels": [{"channels": n, "outputs": 32, "x": (12, 12)} for n in (31, 32)],
    "outputs": [{"channels": 32, "outputs": n, "x": (12, 12)} for n in (31, 32)],
    "tiles": [{"images": n, "x": (4, 32), "before": (1, 1), "groups": 1} for n in (2, 3, 4)],
    "sizes": [{"images": 6, "x": x, "before": (1, 1)} for x in ((3, 40), (4, 40), (40, 3), (40, 4))],
    "a row of tiles": [{"images": 1, "groups": 1, "x": (6, n), "before": (1, 1)} for n in (94, 95, 96, 97)],
    "kernels held": [{"channels": n, "outputs": 96, "x": (12, 12), "groups": 1, "images": 3} for n in (128, 129)],
}


@pytest.mark.parametrize("name", [*LIMITS, *FILTERS])
def test_both_sides_of_every_limit(name):
    rng = np.random.default_rng(1)
    for chosen in LIMITS.get(name, []):
        check(draw_shape(rng, **chosen), rng)
    for chosen in FILTERS.get(name, []):
        check(draw_filtered(rng, **chosen), rng)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-DOP_LANES=8",), ("-DOP_LANES=4",), ("-DOP_LANES=1", "-ffp-contract=off")],
                         ids=["native", "8", "4", "1"])
def test_convolutions_with_vectors_of_any_width(flags):
    texts = map(read_text, ("prelude", "support", "threads", "large_products", "convolutions"))
    warned = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function")
    head = "#define _POSIX_C_SOURCE 200809L\n#define OP_POOL\n#define OP_KERNEL\n"
    check_random(len(flags), 300, compile_library(head + "\n".join(texts), flags=(*FLAGS, *warned, *flags)))


def test_small_convolutions_are_no_calls():
    shape = ConvolutionShape("forward", 1, 1, 12, 16, (40, 40), (3, 3), (40, 40), (1, 1), (1, 1), (1, 1),
                             np.dtype("float32"))
    assert shape.is_worth_a_call
    for less in ({"outputs": 15}, {"channels": 11}, {"y": (8, 8)}, {"channels": 12, "k": (1, 2)}):
        assert not replace(shape, **less).is_worth_a_call, less
    assert replace(shape, channels=4, outputs=32).is_worth_a_call
    assert not replace(shape, channels=4, outputs=31).is_worth_a_call
    assert not replace(shape, kind="images", channels=15).is_worth_a_call


def draw_net(seed, axes):
    """A model of two convolutions with random strides, pads and groups, whose output is a number for each row."""
    rng = np.random.default_rng(seed)
    channels, outputs, group = (int(rng.integers(4, 9)) * 2 for _ in range(2)), int(rng.integers(8, 20)) * 2, 2
    first, second = channels
    x = variable("x", "float32", [4, 3, *rng.integers(9, 14, axes).tolist()])
    shapes = {"v": (first * 2, 3), "w": (second * 2, first), "u": (outputs, second * 2)}
    w = {n: constant(rng.normal(size=(*s, *rng.integers(1, 4, axes))).astype(np.float32) * 0.1, hint=n)
         for n, s in shapes.items()}
    b = constant(rng.normal(size=first * 2).astype(np.float32), hint="b")

    def settings():
        return {"strides": rng.integers(1, 3, axes).tolist(), "pads": rng.integers(0, 2, 2 * axes).tolist()}

    y = op.Relu(op.Conv(x, w["v"], b, **settings()))
    y = op.Tanh(op.Conv(y, w["w"], group=group, **settings()))
    y = op.ConvTranspose(op.Conv(y, w["u"], **settings()), w["u"], **settings())
    return build([x], {"y": op.ReduceMean(y, list(range(1, 2 + axes)), keepdims=0)})


@pytest.mark.parametrize(("seed", "axes"), [(0, 1), (1, 2)])
def test_trainings_are_those_of_the_other_engines(monkeypatch, seed, axes):
    """Kernels, also small ones, and the update as a part of a gradient."""
    monkeypatch.setattr(convolutions, "_WORTH", 0)
    monkeypatch.setattr(convolutions, "_FULL", 1)
    model, rng = draw_net(seed, axes), np.random.default_rng(seed)
    sizes = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    X = rng.normal(size=(12, *sizes)).astype(np.float32)
    y, weights = rng.normal(size=12).astype(np.float32), {}
    for engine in ("native", "step"):
        trained = OrtGradientForwardBackwardOptimizer(model, learning_rate=0.05, batch_size=4, max_iter=3,
                                                      engine=engine, shuffle=False, random_state=0)
        weights[engine] = trained.fit(X, y).trained_coef_
        if engine == "native":
            source = write_step(trained._engine.source.for_rows(4)).source
            assert source.count("op_convolve_f(z") == 8
            # Of two axes, a weight is neither grouped, nor cropped, nor read twice.
            assert source.count(", OP_THREADS, (-0.05f), 1.0f);") == axes - 1
    for name, w in weights["step"].items():
        np.testing.assert_allclose(weights["native"][name], w, rtol=0, atol=2e-6 * abs(w).max(), err_msg=name)

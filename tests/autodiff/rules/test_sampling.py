"""Gradients of image sampling."""

from itertools import product

import numpy as np
import pytest
import torch.nn.functional as F
from table import NOTHING, OLD, assert_as_torch, cotangent, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import _gradient, check_gradient, evaluate

# The names of torch.
TORCH_MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
PADDING = ["zeros", "border", "reflection"]

SETTINGS = [
    pytest.param({"mode": mode, "padding_mode": padding, "align_corners": align}, id=f"{mode}-{padding}-{align}")
    for mode, padding, align in product(TORCH_MODES, PADDING, [0, 1])
]
# Some points lie outside of the image.
IMAGE, POINTS = real(2, 2, 3, 4), 1.2 * real(2, 3, 2, 2)
VOLUME, POINTS_IN_VOLUME = real(1, 2, 3, 4, 2), 1.2 * real(1, 3, 1, 2, 3)


def sampled(**settings):
    return lambda x, grid: op.GridSample(x, grid, **settings)


def torch_sampled(mode, padding_mode, align_corners):
    return lambda x, grid: F.grid_sample(x, grid, TORCH_MODES[mode], padding_mode, bool(align_corners))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("settings", SETTINGS)
def test_grid_sample(settings):
    check_gradient(sampled(**settings), [IMAGE, POINTS], directions=1, order=1)
    assert_as_torch(sampled(**settings), torch_sampled(**settings), [IMAGE, POINTS])


@pytest.mark.parametrize("mode", [pytest.param(m, marks=[pytest.mark.slow] * (m == "cubic")) for m in TORCH_MODES])
def test_grid_sample_to_the_second_order(mode):
    check_gradient(sampled(mode=mode), [real(1, 1, 2, 3), real(1, 1, 2, 2)], directions=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("settings", [s for s in SETTINGS if s.values[0]["mode"] != "cubic"])
def test_grid_sample_of_a_volume(settings):
    check_gradient(sampled(**settings), [VOLUME, POINTS_IN_VOLUME], directions=1, order=1)
    assert_as_torch(sampled(**settings), torch_sampled(**settings), [VOLUME, POINTS_IN_VOLUME])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("far", [1e4, 1e30, 3e38])
@pytest.mark.parametrize("settings", SETTINGS)
def test_points_as_far_as_floats_reach(settings, far):
    """The gradient of what is far outside is 0, or that of the border, and never NaN."""
    x, points = (variable(n, "float32", s) for n, s in (("x", [1, 1, 3, 4]), ("points", [1, 1, 2, 2])))
    y = sampled(**settings)(x, points)
    model = build([x, points], dict(zip(["dx", "dp"], grad(y, [x, points]), strict=True)))
    feeds = {"x": real(1, 1, 3, 4).astype(np.float32), "points": np.float32([[[[far, 0.1], [0.2, -far]]]])}
    d = evaluate(model, feeds)
    assert all(np.isfinite(v).all() for v in d.values())
    if settings["padding_mode"] == "zeros":
        assert not d["dx"].any()
    if settings["padding_mode"] != "reflection":
        np.testing.assert_array_equal([d["dp"][0, 0, 0, 0], d["dp"][0, 0, 1, 1]], 0)


@pytest.mark.parametrize("padding", PADDING)
def test_points_far_outside(padding):
    settings = {"mode": "linear", "padding_mode": padding, "align_corners": 0}
    points = np.array([[[[-7.3, 0.1], [5.2, 9.4], [0.3, -4.6]]]])
    check_gradient(sampled(**settings), [real(1, 1, 3, 4), points], order=1)
    assert_as_torch(sampled(**settings), torch_sampled(**settings), [real(1, 1, 3, 4), points])


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[2, 1, 3, 4], [2, 1, 1, 5], [2, 1, 3, 2, 4]], ids=str)
def test_affine_grid(size, align):
    theta = real(2, len(size) - 2, len(size) - 1)
    check_gradient(lambda t: op.AffineGrid(t, size, align_corners=align), [theta])
    if 1 not in size[2:]:  # of one element with corners aligned, torch makes the middle
        assert_as_torch(lambda t: op.AffineGrid(t, size, align_corners=align),
                        lambda t: F.affine_grid(t, size, bool(align)), [theta])


def test_a_spatial_transformer():
    def f(x, theta):
        return op.GridSample(x, op.AffineGrid(theta, [2, 2, 3, 4]))

    def torch_f(x, theta):
        return F.grid_sample(x, F.affine_grid(theta, [2, 2, 3, 4], False), align_corners=False)

    theta = np.array([[[0.9, 0.2, 0.1], [-0.1, 0.8, 0.05]], [[1.1, -0.3, 0.2], [0.2, 0.7, -0.2]]])
    check_gradient(f, [IMAGE, theta], directions=1, order=1)
    assert_as_torch(f, torch_f, [IMAGE, theta])


# Offsets that keep away from the elements, at which there is a kink.
OFFSETS = 0.5 * real(2, 8, 3, 2)
DEFORMED = rows(
    ("plain", {}, [real(2, 2, 4, 3), real(3, 2, 2, 2), OFFSETS]),
    ("bias", {}, [real(2, 2, 4, 3), real(3, 2, 2, 2), OFFSETS, real(3)]),
    ("bias and mask", {}, [real(2, 2, 4, 3), real(3, 2, 2, 2), OFFSETS, real(3), real(2, 4, 3, 2)]),
    ("kernel_shape", {"kernel_shape": [2, 2]}, [real(2, 2, 4, 3), real(3, 2, 2, 2), OFFSETS]),
    ("pads", {"pads": [1, 0, 1, 1]}, [real(1, 1, 3, 2), real(1, 1, 2, 2), 0.5 * real(1, 8, 4, 2)]),
    ("strides", {"strides": [2, 1]}, [real(1, 1, 4, 3), real(1, 1, 2, 2), 0.5 * real(1, 8, 2, 2)]),
    ("groups", {"group": 2}, [real(1, 4, 4, 3), real(2, 2, 2, 2), 0.5 * real(1, 8, 3, 2)]),
    ("everything", {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]},
     [real(1, 4, 4, 4), real(4, 2, 2, 2), 0.5 * real(1, 16, 3, 3), real(4), real(1, 8, 3, 3)]),
)


ARRAYS = {"x": real(1, 2, 4, 2), "w": real(3, 2, 2, 2), "dy": real(1, 3, 3, 2)}


@pytest.mark.sampled(3)
@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no DeformConv, and the reference of onnx rounds to float32")
@pytest.mark.parametrize(("settings", "args"), DEFORMED)
def test_deformable_convolution(settings, args):
    """To the second order where all inputs are there; each setting has its own in the next test."""
    order = 2 if len(args) == 5 and not settings else 1
    check_gradient(lambda *x: op.DeformConv(*x, **settings), args, directions=1, order=order)


SLOW = pytest.mark.slow
# What runs is the gradient, on any runtime and of any rank, and its differences are the second order.
DEFORMED_AGAIN = rows(
    ("mask, no bias", {}, [real(1, 1, 3, 2), real(2, 1, 2, 2), 0.5 * real(1, 8, 2, 1), None, real(1, 4, 2, 1)], SLOW),
    ("groups of offsets", {"offset_group": 2}, [real(1, 4, 3, 2), real(2, 4, 2, 2), 0.5 * real(1, 16, 2, 1)], SLOW),
    ("everything", {"group": 2, "offset_group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]},
     [real(1, 2, 4, 4), real(2, 1, 2, 2), 0.5 * real(1, 16, 3, 3), real(2), real(1, 8, 3, 3)], SLOW),
    ("one axis", {}, [real(1, 2, 4), real(1, 2, 2), 0.5 * real(1, 2, 3)], SLOW),
    ("three axes", {}, [real(1, 1, 2, 2, 3), real(1, 1, 1, 2, 2), 0.5 * real(1, 12, 2, 1, 2)], SLOW),
)


@pytest.mark.parametrize(("settings", "args"), DEFORMED_AGAIN)
def test_a_deformable_convolution_to_the_second_order(settings, args):
    def f(*x):
        free = iter(x)
        return op.DeformConv(*(None if a is None else next(free) for a in args), **settings)

    given = [a for a in args if a is not None]
    y = f(*(variable(f"x{i}", "float64", a.shape) for i, a in enumerate(given)))
    g = _gradient(f, range(len(given)), len(given))
    check_gradient(g, [*given, cotangent(y.shape)], order=1, directions=1)


def test_without_offsets_a_deformable_convolution_is_one():
    # Its gradient runs where the operator itself does not.
    x, w, dy = (variable(n, "float64", a.shape) for n, a in ARRAYS.items())
    zeros = constant(np.zeros((1, 8, 3, 2)))
    found, expected = (
        evaluate(build([x, w, dy], grad(y, [x, w], [dy])), ARRAYS).values()
        for y in (op.DeformConv(x, w, zeros, pads=[0, 1, 0, 0]), op.Conv(x, w, pads=[0, 1, 0, 0]))
    )
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@NOTHING
@pytest.mark.parametrize(
    ("f", "args"),
    rows(
        ("GridSample of no images", op.GridSample, [np.zeros((0, 1, 3, 3)), np.zeros((0, 2, 2, 2))]),
        ("GridSample of no points", op.GridSample, [real(1, 1, 3, 3), np.zeros((1, 0, 2, 2))]),
        ("GridSample of a grid without columns", op.GridSample, [real(1, 1, 3, 3), np.zeros((1, 2, 0, 2))]),
        ("AffineGrid", lambda t: op.AffineGrid(t, [0, 1, 2, 2]), [np.zeros((0, 2, 3))]),
    ),
)
def test_of_nothing(f, args):
    check_gradient(f, args, order=1)

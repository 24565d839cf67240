"""im2col: convolutions and pools as products of windows, beside onnxruntime's own kernels."""

import numpy as np
import pytest

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import build, constant, op, topological, variable
from ortpartial.rewrites.im2col import lower_average_pool, lower_col2im, lower_conv, lower_conv_transpose
from ortpartial.runtime import Session

RNG = np.random.default_rng(0)
A, K, B = (RNG.normal(size=s).astype(np.float32) for s in ((2, 4, 7, 6), (6, 2, 3, 2), (6,)))


def check(lowered, y, x, *arrays):
    """Both compute the same, and the new form has no windows of ONNX."""
    kinds = {n.op_type for n in topological([lowered])}
    assert not kinds & {"Conv", "ConvTranspose", "AveragePool", "Col2Im"}
    found, expected = (Session(build([x], {"y": v})).run({"x": arrays[0]})["y"] for v in (lowered, y))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 4, 7, 6), ("N", 4, "h", "w")])
@pytest.mark.parametrize("settings", [{}, {"pads": [1, 0, 2, 1], "strides": [2, 1]}, {"dilations": [2, 3]},
                                      {"auto_pad": "SAME_UPPER", "strides": [2, 2]}])
def test_convolution(settings, sizes):
    if "auto_pad" in settings and "h" in sizes:
        settings = {"pads": [0, 1, 0, 1]}
    x, w, b = variable("x", "float32", sizes), constant(K), constant(B)
    y = op.Conv(x, w, b, group=2, **settings)
    check(lower_conv(x, w, b, node=y.node, group=2), y, x, A)


@pytest.mark.parametrize("settings", [{}, {"strides": [2, 3], "output_padding": [1, 2]}, {"pads": [1, 0, 0, 1]}])
def test_transposed_convolution(settings):
    x, w = variable("x", "float32", ["N", 4, 7, 6]), constant(K[:4])
    y = op.ConvTranspose(x, w, group=2, **settings)
    check(lower_conv_transpose(x, w, node=y.node, group=2), y, x, A)


@pytest.mark.parametrize(("ceil", "counted", "pads"), [
    (0, 0, [1, 0, 1, 1]), (0, 1, [1, 0, 1, 1]), (1, 0, [0, 0, 0, 0])])
def test_average_pool(ceil, counted, pads):
    x = variable("x", "float32", A.shape)
    y = op.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2], pads=pads, ceil_mode=ceil, count_include_pad=counted)
    check(lower_average_pool(x, node=y.node, ceil_mode=ceil, count_include_pad=counted), y, x, A)


def test_col2im():
    x, image, block = variable("x", "float32", [2, 12, 16]), constant(np.array([5, 6])), constant(np.array([2, 3]))
    a = RNG.normal(size=(2, 12, 16)).astype(np.float32)
    y = op.Col2Im(x, image, block)
    lowered = lower_col2im(x, image, block, node=y.node, strides=(), dilations=(), pads=())
    found, expected = (Session(build([x], {"y": v})).run({"x": a})["y"] for v in (lowered, y))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sizes_that_are_computed_are_an_error():
    x, image = variable("x", "float32", [2, 12, 16]), variable("image", "int64", [2])
    y = op.Col2Im(x, image, constant(np.array([2, 3])))
    with pytest.raises(NoGradientError, match="has sizes that are computed, so its windows depend on unknown sizes"):
        lower_col2im(x, image, constant(np.array([2, 3])), node=y.node, strides=(), dilations=(), pads=())

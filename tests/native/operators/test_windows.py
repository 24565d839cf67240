"""Convolutions and pools in C beside their definition: pads, strides, dilations and groups."""

import shutil

import numpy as np
import pytest
from native_cases import compute_by_runtime, compute_in_c

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import op, variable

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

RNG = np.random.default_rng(0)
ARRAYS = [RNG.normal(size=s).astype(np.float32) for s in ((2, 4, 7, 6), (6, 4, 3, 3), (4, 2, 3, 3), (6,))]
X, W, G, B = (variable(n, "float32", a.shape) for n, a in zip("xwgb", ARRAYS, strict=True))


def convolve(x, w, stride=1):
    """Without pads, by the definition."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("ncyxij,ocij->noyx", windows, w)


def test_by_the_definition():
    x, w, _, b = ARRAYS
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3))
    cases = {"Conv": (op.Conv(X, W, B), convolve(x, w) + b[:, None, None]),
             "pads and strides": (op.Conv(X, W, pads=[1] * 4, strides=[2, 2]), convolve(padded, w, 2)),
             "MaxPool": (op.MaxPool(X, kernel_shape=[2, 2], n_outputs=1)[0], windows.max((-2, -1))),
             "AveragePool": (op.AveragePool(X, kernel_shape=[2, 2]), windows.mean((-2, -1))),
             "GlobalAveragePool": (op.GlobalAveragePool(X), x.mean((2, 3), keepdims=True))}
    found = compute_in_c({n: y for n, (y, _) in cases.items()}, dict(zip((X, W, B), (x, w, b), strict=True)))
    for name, (_, expected) in cases.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_groups_and_dilations_are_those_of_onnxruntime():
    values = {"groups": op.Conv(X, G, group=2), "dilations": op.Conv(X, W, dilations=[2, 1], pads=[2, 1, 2, 1]),
              "few places": op.Conv(X, G, op.Slice(B, [2], [6]), group=2, strides=[2, 3], pads=[1, 0, 0, 1]),
              "turned around": op.ConvTranspose(X, G, group=2, strides=[2, 1])}
    numbers = dict(zip((X, W, G, B), ARRAYS, strict=True))
    expected = compute_by_runtime(values, numbers)
    for name, y in compute_in_c(values, numbers).items():
        np.testing.assert_allclose(y, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_window_in_the_padding_at_the_end_is_left_out():
    x = variable("x", "float32", [1, 1, 5])
    values = {str(c): op.AveragePool(x, kernel_shape=[2], strides=[2], pads=[1, 1], ceil_mode=1, count_include_pad=c)
              for c in (0, 1)}
    computed = compute_in_c(values, {x: np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5)})
    assert [y.ravel().tolist() for y in computed.values()] == [[1, 2.5, 4.5], [0.5, 2.5, 4.5]]


def test_indices_of_maxima_are_those_of_onnxruntime():
    """Random pools of one to three axes, of few different numbers: of equal ones, the first is meant."""
    rng, values, numbers = np.random.default_rng(1), {}, {}
    for i in range(24):
        n = 1 + i % 3
        size, kernel, stride = (rng.integers(*r, n) for r in ((5, 9), (1, 4), (1, 3)))
        dilations = rng.integers(1, 3, n) if i % 2 else np.ones(n, int)
        pads = np.concatenate([rng.integers(0, kernel), rng.integers(0, kernel)])
        x = variable(f"x{i}", "float32", [2, 2, *size.tolist()])
        numbers[x] = rng.integers(-2, 2, x.shape).astype(np.float32)
        largest, places = op.MaxPool(x, kernel_shape=kernel.tolist(), strides=stride.tolist(), pads=pads.tolist(),
                                     dilations=dilations.tolist(), ceil_mode=int(i % 4 == 0), n_outputs=2)
        values |= {f"largest {i}": largest, f"places {i}": places}
    expected = compute_by_runtime(values, numbers)
    for name, y in compute_in_c(values, numbers).items():
        np.testing.assert_array_equal(y, expected[name], err_msg=name)


def test_indices_in_column_major_order_are_refused():
    x = variable("x", "float32", [1, 1, 5, 4])
    values = dict(zip("yp", op.MaxPool(x, kernel_shape=[2, 2], n_outputs=2, storage_order=1), strict=True))
    with pytest.raises(UntranslatableError, match=r"The indices of MaxPool.* in column-major order are not written"):
        compute_in_c(values, {x: np.zeros(x.shape, np.float32)})

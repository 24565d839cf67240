"""Pools by their definition: largest and mean values, counts of pads, and adaptive windows."""

import numpy as np
import pytest

from ortpartial import nn

X = np.random.default_rng(0).normal(size=(2, 3, 8, 6)).astype(np.float32)


def run(layer, x=X):
    return layer.compile(nn.placeholder(x.shape)).eval()(x)


def windows(x, size):
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::size, ::size]


def test_the_largest():
    y = run(nn.MaxPool2d(2, return_indices=True))
    values, places = y
    np.testing.assert_array_equal(values, windows(X, 2).max((-2, -1)))
    np.testing.assert_array_equal(np.take_along_axis(X.reshape(2, 3, -1), places.reshape(2, 3, -1), 2).ravel(),
                                  values.ravel())


@pytest.mark.parametrize("counted", [True, False])
def test_the_mean(counted):
    np.testing.assert_allclose(run(nn.AvgPool2d(2)), windows(X, 2).mean((-2, -1)), rtol=1e-5, atol=1e-6)
    ones = run(nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=counted), np.ones_like(X))
    assert ones[0, 0, 0, 0] == pytest.approx(4 / 9 if counted else 1)
    assert ones[0, 0, 1, 1] == pytest.approx(1)


def test_a_divisor_of_its_own():
    np.testing.assert_allclose(run(nn.AvgPool2d(2, divisor_override=1)), windows(X, 2).sum((-2, -1)), rtol=1e-4,
                               atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_adaptive_means(n):
    """Window i is from ⌊i m/n⌋ to ⌈(i+1) m/n⌉."""
    m = X.shape[2]
    expected = [X[:, :, i * m // n : -(-(i + 1) * m // n)].mean((2, 3)) for i in range(n)]
    np.testing.assert_allclose(run(nn.AdaptiveAvgPool2d((n, 1)))[..., 0], np.stack(expected, -1), rtol=1e-4, atol=1e-6)


def test_other_ranks():
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    assert run(nn.MaxPool1d(3), x).tolist() == [[[2, 5]]]
    assert run(nn.AvgPool1d(4), x).tolist() == [[[1.5, 5.5]]]
    assert run(nn.AdaptiveAvgPool1d(2), x).tolist() == [[[1.5, 5.5]]]
    assert run(nn.MaxPool3d(2), x.reshape(1, 1, 2, 2, 2)).tolist() == [[[[[7]]]]]

"""Convolutions by their definition: pads of every mode, strides, groups, and transposed ones as their gradients."""

import numpy as np
import pytest

from ortpartial import nn

X = np.random.default_rng(0).normal(size=(2, 4, 7, 6)).astype(np.float32)


def run(layer, x=X):
    layer.compile(nn.placeholder(["N", *x.shape[1:]]), random_state=0)
    return layer(x), layer.state_dict()


def convolve(x, w, stride=1, dilation=1):
    span = [dilation * (n - 1) + 1 for n in w.shape[2:]]
    windows = np.lib.stride_tricks.sliding_window_view(x, span, (2, 3))[:, :, ::stride, ::stride]
    windows = windows[..., ::dilation, ::dilation]
    return np.einsum("ncyxij,ocij->noyx", windows, w)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_pads(mode):
    y, state = run(nn.Conv2d(4, 3, 3, padding=1, padding_mode=mode))
    kind = {"zeros": "constant", "replicate": "edge", "circular": "wrap"}.get(mode, mode)
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)), mode=kind)
    expected = convolve(padded, state["weight"]) + state["bias"][:, None, None]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_strides_dilations_and_groups():
    y, state = run(nn.Conv2d(4, 6, 2, stride=2, dilation=2, groups=2, bias=False))
    parts = [convolve(X[:, 2 * i : 2 * i + 2], state["weight"][3 * i : 3 * i + 3], 2, 2) for i in range(2)]
    np.testing.assert_allclose(y, np.concatenate(parts, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("layer", "shape"), [(nn.Conv1d(4, 2, 3), (2, 4, 9)), (nn.Conv3d(4, 2, 2), (1, 4, 3, 4, 5))])
def test_other_ranks(layer, shape):
    x = np.ones(shape, np.float32)
    y, state = run(layer, x)
    expected = state["weight"].sum((1, *range(2, x.ndim))) + state["bias"]
    np.testing.assert_allclose(y.reshape(len(x), 2, -1)[0, :, 0], expected, rtol=1e-4, atol=1e-5)


def test_the_transposed_one_is_the_adjoint():
    """⟨conv(x), y⟩ = ⟨x, convᵀ(y)⟩ with the same kernels."""
    forward, state = run(nn.Conv2d(4, 3, 3, stride=2, bias=False), X[:, :, :, :5])
    back = nn.ConvTranspose2d(3, 4, 3, stride=2, bias=False).compile(nn.placeholder(["N", *forward.shape[1:]]))
    back.load_state_dict({"weight": state["weight"]})
    y = np.random.default_rng(1).normal(size=forward.shape).astype(np.float32)
    np.testing.assert_allclose((forward * y).sum(), (X[:, :, :, :5] * back(y)).sum(), rtol=1e-4)

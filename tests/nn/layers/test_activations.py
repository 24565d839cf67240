"""Activations by their formulas in numpy, and PReLU's weight."""

import numpy as np
import pytest
from scipy.special import erf, expit, log_expit, log_softmax, softmax

from ortpartial import nn

X = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 4, 3)


def run(layer, x=X):
    return layer.compile(nn.placeholder(x.shape)).eval()(x)


FORMULAS = {
    "ReLU": (nn.ReLU(), np.maximum(X, 0)), "ReLU6": (nn.ReLU6(), np.clip(X, 0, 6)),
    "LeakyReLU": (nn.LeakyReLU(0.2), np.where(X > 0, X, 0.2 * X)), "PReLU": (nn.PReLU(), np.where(X > 0, X, 0.25 * X)),
    "ELU": (nn.ELU(0.5), np.where(X > 0, X, 0.5 * np.expm1(X))), "CELU": (
        nn.CELU(2.0), np.maximum(X, 0) + np.minimum(0, 2 * np.expm1(X / 2))),
    "GELU": (nn.GELU(), X * (1 + erf(X / np.sqrt(2))) / 2), "SiLU": (nn.SiLU(), X * expit(X)),
    "Mish": (nn.Mish(), X * np.tanh(np.log1p(np.exp(X)))), "Sigmoid": (nn.Sigmoid(), expit(X)),
    "LogSigmoid": (nn.LogSigmoid(), log_expit(X)), "Hardsigmoid": (nn.Hardsigmoid(), np.clip(X / 6 + 0.5, 0, 1)),
    "Hardswish": (nn.Hardswish(), X * np.clip(X / 6 + 0.5, 0, 1)), "Tanh": (nn.Tanh(), np.tanh(X)),
    "Tanhshrink": (nn.Tanhshrink(), X - np.tanh(X)), "Hardtanh": (nn.Hardtanh(-2, 1), np.clip(X, -2, 1)),
    "Softplus": (nn.Softplus(), np.log1p(np.exp(X))), "Softsign": (nn.Softsign(), X / (1 + abs(X))),
    "Softshrink": (nn.Softshrink(), np.sign(X) * np.maximum(abs(X) - 0.5, 0)),
    "Hardshrink": (nn.Hardshrink(), np.where(abs(X) > 0.5, X, 0)),
    "Threshold": (nn.Threshold(1.0, 7.0), np.where(X > 1, X, 7)), "Softmax": (nn.Softmax(1), softmax(X, 1)),
    "LogSoftmax": (nn.LogSoftmax(-1), log_softmax(X, -1)), "Softmin": (nn.Softmin(1), softmax(-X, 1)),
    "GLU": (nn.GLU(1), X[:, :2] * expit(X[:, 2:])),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name):
    layer, expected = FORMULAS[name]
    np.testing.assert_allclose(run(layer), expected, rtol=1e-4, atol=1e-6)


def test_softmax_over_channels():
    x = np.stack([X] * 2, -1)
    np.testing.assert_allclose(run(nn.Softmax2d(), x), softmax(x, 1), rtol=1e-5)

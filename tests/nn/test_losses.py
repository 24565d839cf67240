"""Losses of a module: any loss of the library, its mean, and its labels in their range."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import DataError

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


class Net(nn.Module):
    def __init__(self, loss):
        self.fc, self.loss, self.optimizer = nn.Linear(3, 2), nn.Loss(loss), nn.Optimizer(0.1)

    def forward(self, x):
        return self.fc(x)

    def train_one_batch(self, x, t):
        loss = self.loss(self.forward(x), t)
        self.optimizer(loss)
        return loss


def first_loss(loss, t):
    net = Net(loss).compile(nn.placeholder(["N", 3]), random_state=0)
    return net.eval()(X), net.train().train_one_batch(X, t)


@pytest.mark.parametrize(("name", "formula"), [
    ("square_error", lambda e: e * e), ("absolute_error", abs), (lambda y, t: (y - t) ** 4, lambda e: e**4)])
def test_means_of_elements(name, formula):
    t = np.zeros((6, 2), np.float32)
    y, loss = first_loss(name, t)
    assert loss == pytest.approx(formula(y - t).mean(), rel=1e-5)


def test_labels():
    labels = np.array([0, 1, 1, 0, 1, 0])
    y, loss = first_loss("softmax_cross_entropy", labels)
    log = y - np.log(np.exp(y).sum(1, keepdims=True))
    assert loss == pytest.approx(-log[np.arange(6), labels].mean(), rel=1e-5)
    with pytest.raises(DataError, match=r"Input .* of the loss has a label that is not in 0 to 1 or -100: 2"):
        first_loss("softmax_cross_entropy", labels * 2)


def test_how_it_is_shown():
    assert repr(nn.Loss()).startswith("Loss(SquareLearningLoss(")

"""Dropout: elements left out, how often, and where."""

import numpy as np
import pytest

from ortpartial import nn


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_elements_are_left_out_with_the_probability(p):
    model, x = nn.Dropout(p).compile(nn.placeholder(["N", 100]), random_state=0), np.ones((100, 100), np.float32)
    first, second = model(x), model(x)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / (1 - p))}
    assert (first == 0).mean() == pytest.approx(p, abs=0.02)
    assert (first != second).mean() == pytest.approx(2 * p * (1 - p), abs=0.02)
    assert np.array_equal(model.eval()(x), x)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_channels_are_left_out_as_a_whole(n):
    model = getattr(nn, f"Dropout{n}d")(0.5).compile(nn.placeholder(["N", "C", *[3] * n]), random_state=0)
    y = model(np.ones((20, 50, *[3] * n), np.float32)).reshape(1000, -1)
    assert (y == y[:, :1]).all()
    assert (y[:, 0] == 0).mean() == pytest.approx(0.5, abs=0.05)


def test_gradients_flow_where_elements_were_kept():
    class Model(nn.Module):
        def __init__(self):
            self.factor, self.dropout = nn.Parameter([200], 1.0), nn.Dropout(0.5)
            self.optimizer = nn.Optimizer(1.0)

        def forward(self, x):
            return self.dropout(x * self.factor)

        def train_one_batch(self, x):
            y = self.forward(x)
            self.optimizer(y.sum())
            return y, y.sum()

    model = Model().compile(nn.placeholder(["N", 200]), random_state=0)
    y, _ = model.train_one_batch(np.ones((1, 200), np.float32))
    assert np.array_equal(1 - model.factor.numpy(), y[0])

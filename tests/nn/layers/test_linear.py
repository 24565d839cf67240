"""Linear: x Wᵀ + b, over the last axis, and the range of its first weights."""

import numpy as np
import pytest

from ortpartial import nn

X = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


@pytest.mark.parametrize("bias", [True, False])
def test_the_formula(bias):
    layer = nn.Linear(4, 3, bias=bias).compile(nn.placeholder(["N", 5, 4]), random_state=0)
    state = layer.state_dict()
    assert {n: a.shape for n, a in state.items()} == {"weight": (3, 4), **({"bias": (3,)} if bias else {})}
    np.testing.assert_allclose(layer(X), X @ state["weight"].T + state.get("bias", 0), rtol=1e-5, atol=1e-6)


def test_first_weights():
    state = nn.Linear(400, 30).compile(nn.placeholder(["N", 400]), random_state=0).state_dict()
    for a in state.values():
        assert 0.9 / 20 < abs(a).max() <= 1 / 20


def test_a_layer_learns():
    layer = nn.Linear(4, 1).set_optimizer(0.1).compile(nn.placeholder(["N", 4]), random_state=0)
    x = X.reshape(10, 4)
    layer.fit(x, x[:, :1], epochs=50, batch_size=10, verbose=0)
    assert layer.history_[-1]["loss"] < 0.01 * layer.history_[0]["loss"]

"""Optimizers of a module: what they update, and calls and settings that make no sense."""

import re

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import GraphError, ModelError, SettingError
from ortpartial.learning import LearningRateSGD, ReduceOnPlateauSchedule

X = np.ones((4, 3), np.float32)


class Net(nn.Module):
    def __init__(self, **settings):
        self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)
        self.optimizer = nn.Optimizer(0.5, **settings)

    def forward(self, x):
        return self.a(x) + self.b(x)

    def train_one_batch(self, x):
        loss = self.forward(x).mean()
        self.optimizer(loss, self.a)
        return loss


def compiled(net):
    return net.compile(nn.placeholder(["N", 3]), random_state=0)


def step(net):
    before = net.state_dict()
    net.train_one_batch(X)
    after = net.state_dict()
    return {n: after[n] - before[n] for n in before}


def test_the_chosen_weights():
    changes = step(compiled(Net()))
    np.testing.assert_allclose(changes["a.weight"], -0.5)
    assert not changes["b.weight"].any()


def test_clipping():
    changes = step(compiled(Net(gradient_clipping=0.1)))
    assert np.sqrt(sum((c**2).sum() for c in changes.values())) == pytest.approx(0.05, rel=1e-4)


def test_a_rate_that_is_replaced():
    net = compiled(Net())
    net.optimizer.rate = 0.25
    np.testing.assert_allclose(step(net)["a.weight"], -0.25)


@pytest.mark.parametrize(("settings", "message"), [
    ({"gradient_dtype": "float32"}, "gradient_dtype is 'float16' or None, not 'float32'."),
    ({"top_k": 2}, "top_k is the share of the gradients that are sent, above 0 and at most 1, not 2."),
    ({"top_k": 0.1}, "gradient_dtype and top_k say how several processes send gradients; set distributed"),
    ({"rate": LearningRateSGD(schedule=ReduceOnPlateauSchedule())}, "reduces the step size by the losses of whole")])
def test_settings(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        nn.Optimizer(**settings)


def test_calls():
    with pytest.raises(ModelError, match="An optimizer is called with a loss in train_one_batch"):
        nn.Optimizer()(3)

    class Wrong(Net):
        def train_one_batch(self, x):
            self.optimizer(self.forward(x))

    with pytest.raises(GraphError, match=r"An optimizer takes a scalar loss, not .*; take its mean, as nn\.Loss does"):
        compiled(Wrong()).train_one_batch(X)

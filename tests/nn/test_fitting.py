"""Data of `fit`, and its errors about data that do not fit."""

import re

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import DataError, ModelError, SettingError
from ortpartial.learning import LearningRateSGD, ReduceOnPlateauSchedule


class Sum(nn.Module):
    """Two inputs, each with a layer."""

    def __init__(self):
        self.a, self.b = nn.Linear(3, 1), nn.Linear(2, 1)
        self.loss, self.optimizer = nn.Loss(), nn.Optimizer(0.1)

    def forward(self, x, z):
        return self.a(x) + self.b(z)

    def train_one_batch(self, x, z, t):
        loss = self.loss(self.forward(x, z), t)
        self.optimizer(loss)
        return self.forward(x, z), loss


X, Z, T = np.ones((6, 3), np.float32), np.ones((6, 2), np.float32), np.zeros((6, 1), np.float32)


@pytest.fixture
def module():
    return Sum().compile([nn.placeholder(["N", 3]), nn.placeholder(["N", 2])])


@pytest.mark.parametrize("data", [(X, Z), [X, Z], {"z": Z, "x": X}], ids=["tuple", "list", "dict"])
def test_several_inputs(module, data):
    assert len(module.fit(data, T, epochs=2, verbose=0).history_) == 2


@pytest.mark.parametrize(("data", "message"), [
    ((X, 1.0), "X: 'z' is no array with a row for each example."),
    ((X, Z[:5]), "X: the arrays differ in their number of rows: x 6, z 5."),
    ({"x": X, "y": Z}, "X has no 'z'; it has 'x', 'y'."),
    ((X,), "X takes 2 arrays, x, z, as a tuple or by name."),
    ((X, Z, Z), "X takes 2 arrays, x, z, as a tuple or by name."),
])
def test_data_that_do_not_fit(module, data, message):
    with pytest.raises(DataError, match=re.escape(message)):
        module.fit(data, T)


def test_a_module_takes_no_schedule_of_epochs():
    with pytest.raises(SettingError, match=r"reduces the step size by the losses of whole epochs, which a module's"):
        nn.Optimizer(LearningRateSGD(0.1, schedule=ReduceOnPlateauSchedule()))


def test_a_loss_that_depends_on_no_weight_is_not_trained(module):
    module.optimizer = nn.Optimizer(0.1, [module.b])
    module.forward = lambda x, z: module.a(x)
    with pytest.raises(ModelError, match=r"The loss .* depends on none of the weights that .* trains"):
        module.fit((X, Z), T)

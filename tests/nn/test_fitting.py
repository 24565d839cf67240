"""Data of `fit`, and its errors about data that do not fit."""

import re

import numpy as np
import pytest

from ortpartial import build, constant, nn, op, variable
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


class Noisy(nn.Module):
    """Dropout, running statistics and two layers."""

    def __init__(self):
        self.hidden, self.norm, self.drop = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.drop(op.Tanh(self.norm(self.hidden(x)))))


@pytest.mark.parametrize(("settings", "engine", "in_batches"), [
    ({"averaging": "ema", "use_average": True}, {}, False), ({"accumulate": 2}, {"engine": "step"}, True),
    pytest.param({}, {"use_graph": False}, False, marks=pytest.mark.slow)], ids=["averaged", "accumulated", "eager"])
def test_a_fit_that_starts_anew_is_the_first(rng, settings, engine, in_batches):
    """To the last bit, and so are the fits after it; the optimizer, the masks and the order of the rows begin again."""
    X = rng.normal(size=(30, 3)).astype(np.float32)
    y = X.sum(1, keepdims=True)
    data, fit = ([[(X[:10], y[:10]), (X[10:], y[10:])]], {}) if in_batches else ([X, y], {"batch_size": 10})
    modules = [Noisy().set_optimizer("adam", **settings) for _ in range(2)]
    first, other = (m.compile(nn.placeholder(["N", 3]), random_state=0, **engine) for m in modules)
    first.fit(*data, epochs=2, **fit)
    other.fit(*data, epochs=3, **fit)
    for warm_start in (False, True):
        other.fit(*data, epochs=2, warm_start=warm_start, **fit)
        again = other.state_dict()
        assert all((again[n] == a).all() for n, a in first.state_dict().items())
        assert [r["loss"] for r in first.history_] == [r["loss"] for r in other.history_]
        assert (first.predict(X) == other.predict(X)).all()
        first.fit(*data, epochs=2, **fit)


def test_a_model_in_a_module_starts_anew_from_its_file():
    x = variable("x", "float32", ["N", 2])
    model = build([x], {"y": x @ constant(np.float32([[1], [2]]), hint="w")})
    module = nn.Module.from_onnx(model).set_optimizer("sgd").compile(nn.placeholder(["N", 2]))
    X, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    losses = [module.fit(X, y, epochs=1, warm_start=warm).history_[-1]["loss"] for warm in (True, True, False)]
    assert losses[0] == losses[2] == 9.0 > losses[1]
    with pytest.raises(SettingError, match="warm_start is True or False"):
        module.fit(X, y, warm_start="no")

"""Settings are read, changed and cloned as scikit-learn does it, and what was trained is kept."""

import dataclasses
import inspect
import pickle
import re

import numpy as np
import pytest
from models import data, linear, mlp
from sklearn.base import clone

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.estimator.params import FitSettings
from ortpartial.exceptions import DeviceError, ModelError, SettingError
from ortpartial.learning.losses import HuberLearningLoss
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
X, Y, W = data(60)


def optimizer(**settings):
    return Optimizer(mlp(), **{"random_state": 0, "max_iter": 3, "learning_rate": 0.05, **settings})


def same(a, b):
    kinds = ("weight", "optimizer")
    pairs = [p for kind in kinds for p in zip(a.get_state(kind), b.get_state(kind), strict=True)]
    return a.train_losses_ == b.train_losses_ and a.n_iter_ == b.n_iter_ and all((u == v).all() for u, v in pairs)


def test_what_was_given_is_read():
    model = mlp()
    o = Optimizer(model, ["W2"], learning_rate="Adam", learning_loss=HuberLearningLoss(2.0), max_iter=7)
    found = o.get_params()
    assert [n for n in found if "__" not in n] == list(inspect.signature(Optimizer).parameters)
    assert (found["model"], found["weights_to_train"], found["learning_rate"]) == (model, ["W2"], "Adam")
    assert (found["max_iter"], found["learning_rate__beta1"], found["learning_loss__delta"]) == (7, 0.9, 2.0)
    assert [n for n in o.get_params(deep=False) if "__" in n] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimizer_with_the_same_settings_is_the_same(engine):
    a = optimizer(learning_rate=LearningRateAdam(0.01), learning_loss="huber", engine=engine)
    assert same(a.fit(X, Y), Optimizer(**a.get_params(deep=False)).fit(X, Y))
    assert same(a, clone(a).fit(X, Y))
    assert clone(a).n_iter_ == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "change",
    [
        {"max_iter": 5},
        {"batch_size": 7, "shuffle": False},
        {"random_state": 3, "init": "random"},
        {"learning_rate": "Adam"},
        {"learning_rate__eta0": 0.01},
        {"learning_rate": "Adam", "learning_rate__beta1": 0.5},
        {"learning_loss": "huber", "learning_loss__delta": 0.3},
        {"weights_to_train": ["W2"]},
        {"model": linear(), "weights_to_train": ["coef"]},
    ],
    ids=lambda change: ",".join(change),
)
def test_a_changed_setting_is_as_if_given(engine, change):
    o = optimizer(engine=engine).fit(X, Y)
    assert o.set_params(**change) is o
    given = {n: v for n, v in change.items() if "__" not in n}
    expected = clone(optimizer(engine=engine)).set_params(**given)
    parts = {n: v for n, v in change.items() if "__" in n}
    now = {n: v for n, v in o.get_params().items() if n in change}
    assert now.keys() == change.keys()
    assert all(now[n] == v for n, v in parts.items())
    assert same(o.fit(X, Y), expected.set_params(**parts).fit(X, Y))


@pytest.mark.parametrize("engine", ENGINES)
def test_training_goes_on_after_a_change(engine):
    """As with a rate of its own for each epoch from the start."""
    o = optimizer(engine=engine, learning_rate=LearningRateAdam(0.01)).fit(X, Y)
    before, weights = o.get_state("optimizer"), o.get_state()
    o.set_params(learning_rate__eta0=0.002, warm_start=True)
    assert all((a == b).all() for a, b in zip(weights + before, o.get_state() + o.get_state("optimizer"), strict=True))
    assert (o.n_iter_, len(o.train_losses_)) == (3, 3)
    o.fit(X, Y)
    assert (o.n_iter_, o.train_losses_[3] < o.train_losses_[2]) == (6, True)
    o.set_params(learning_rate=LearningRateSGD(0.01))
    assert o.get_state("optimizer") == [36]


def test_another_model_starts_anew():
    o = optimizer().fit(X, Y).set_params(model=linear())
    assert (o.n_iter_, o.weights_to_train) == (0, ["coef", "intercept"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"eta": 1}, SettingError,
         "OrtGradientForwardBackwardOptimizer has no setting 'eta'; did you mean 'learning_rate'?"),
        ({"zzz": 1}, SettingError, "has no setting 'zzz'; its settings are "),
        ({"learning_rate__lr": 1}, SettingError,
         "learning_rate=LearningRateSGD has no setting 'lr'; did you mean 'eta0'?"),
        ({"learning_rates__eta0": 1}, SettingError, "has no setting 'learning_rates__eta0'; did you "),
        ({"shuffle": "no"}, SettingError, "shuffle is True or False, not 'no'."),
        ({"max_iter": 0}, SettingError, "max_iter is a whole number of at least 1, not 0."),
        ({"init": "zero"}, SettingError, "init is 'model' or 'random', not 'zero'."),
        ({"learning_rate__eta0": -1.0}, SettingError, "LearningRateSGD: eta0 is -1.0"),
        ({"learning_loss": "square"}, SettingError, "learning_loss: 'square' is not known."),
        ({"weights_to_train": ["b3"]}, ModelError, "The weight 'b3' is no initializer of the model"),
        ({"device": "tpu"}, DeviceError, "The device is 'tpu'"),
    ],
)
def test_a_change_that_is_not_allowed_changes_nothing(change, error, message):
    a, b = (optimizer().fit(X, Y) for _ in range(2))
    with pytest.raises(error, match=re.escape(message)):
        a.set_params(**change)
    assert same(a.partial_fit(X, Y), b.partial_fit(X, Y))


def test_changes_by_a_callback():
    """Between two epochs the order and the size of batches may change, and nothing that a graph depends on."""
    o = optimizer(callbacks=[lambda o: o.set_params(batch_size=60, shuffle=False)]).fit(X, Y)
    assert (o.get_state("optimizer")[-1], o.batch_size, o.shuffle) == (6 + 1 + 1, 60, False)
    o.set_params(callbacks=[lambda o: o.set_params(learning_rate__eta0=0.1)])
    with pytest.raises(SettingError, match="learning_rate belongs to the graphs that run now; change it before or"):
        o.fit(X, Y)
    assert o.set_params(learning_rate__eta0=0.1).learning_rate.eta0 == 0.1


def test_settings_of_a_fit_are_frozen_and_validated():
    settings = FitSettings(max_iter=np.int64(20), callbacks=[print])
    assert (settings.max_iter, type(settings.max_iter), settings.callbacks) == (20, int, (print,))
    assert [FitSettings(max_iter=20, validation_every=e).validation_period for e in (0.1, 1, 7, 1e-9)] == [2, 1, 7, 1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_iter = 3
    o = optimizer()
    with pytest.raises(SettingError, match="max_iter is a whole number of at least 1, not 0"):
        o.max_iter = 0
    o.max_iter = 4
    assert (o.max_iter, o.get_params()["max_iter"], pickle.loads(pickle.dumps(o)).max_iter) == (4, 4, 4)

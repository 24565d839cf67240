"""Settings are read, changed and cloned as scikit-learn does it, and the training is kept."""

import copy
import dataclasses
import inspect
import pickle
import re

import numpy as np
import pytest
from models import data, linear, mlp, net, weights_of
from sklearn.base import clone

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DeviceError, ModelError, SettingError
from ortpartial.execution import FitSettings
from ortpartial.graph import build, constant, variable
from ortpartial.learning.losses import HuberLearningLoss
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.learning.schedules import (
    ConstantSchedule,
    CosineSchedule,
    InvScalingSchedule,
    OneCycleSchedule,
    OptimalSchedule,
    StepSchedule,
    WarmUpSchedule,
)

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


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_are_no_longer_trained_keep_what_they_have_learned(engine):
    o = optimizer(engine=engine).fit(X, Y)
    predicted, learned = o.predict(X), o.trained_coef_
    o.set_params(weights_to_train=["W2"])
    for frozen in (o, pickle.loads(pickle.dumps(o)), copy.deepcopy(o)):
        np.testing.assert_allclose(frozen.predict(X), predicted, rtol=1e-5)
        frozen.set_params(learning_rate=0.01).fit(X, Y)
        after = weights_of(frozen.get_trained_onnx())
        assert [n for n in learned if (after[n] != learned[n]).any()] == ["W2"]
    # Trained again, they go on from there, and a new training starts from those of the model.
    for again in (pickle.loads(pickle.dumps(o)), o):
        again.set_params(weights_to_train=None, learning_rate=0.05)
        assert all((again.trained_coef_[n] == learned[n]).all() for n in ("W1", "b1", "b2"))
        assert same(again.fit(X, Y), optimizer(engine=engine, learning_rate=0.05).fit(X, Y))


def test_statistics_that_are_no_longer_updated_keep_what_they_have_learned():
    images = np.random.default_rng(0).normal(size=(20, 2, 5, 5)).astype(np.float32)
    o = Optimizer(net(), train_mode=True, max_iter=3).fit(images, np.zeros((20, 2)))
    predicted = o.predict(images)
    np.testing.assert_allclose(o.set_params(train_mode=False).predict(images), predicted, rtol=1e-5)


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
        ({"verbose": "yes"}, SettingError, "verbose is 0, 1 or 2, not 'yes'."),
        ({"init": "zero"}, SettingError, "init is 'model' or 'random', not 'zero'."),
        ({"learning_rate__eta0": -1.0}, SettingError, "LearningRateSGD: eta0 is -1.0"),
        ({"learning_loss": "cubic"}, SettingError, "learning_loss: 'cubic' is not known."),
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
    for change in ({"learning_loss__delta": 0.1}, {"model": linear()}, {"device": "cpu"}):
        o = optimizer(learning_loss="huber", callbacks=[lambda o, change=change: o.set_params(**change)])
        with pytest.raises(SettingError, match=r"belongs to the graphs that run now; change it before or after fit\."):
            o.fit(X, Y)
        assert o.set_params(**change).n_iter_ == (0 if "model" in change else 1)


WAYS = {
    "a field": lambda o: o.set_params(learning_rate__eta0=0.02),
    "an object": lambda o: o.set_params(learning_rate=LearningRateSGDNesterov(0.02, schedule="invscaling")),
    "an attribute": lambda o: setattr(o, "learning_rate", dataclasses.replace(o.learning_rate, eta0=0.02)),
    "a field of a field": lambda o: o.set_params(learning_rate__schedule__power_t=0.1),
    "a name": lambda o: setattr(o, "learning_rate", "Adam"),
    "a penalty": lambda o: setattr(o, "learning_penalty", ElasticLearningPenalty(l1=0.1, l2=0.1)),
    "everything": lambda o: o.set_params(learning_rate=0.01, learning_penalty="none", batch_size=20, verbose=0),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_the_update_changes_at_the_next_step(engine, change):
    """As between two calls of `fit`, and between those of `partial_fit`: states stay, and the schedule goes on."""
    rate = LearningRateSGDNesterov(0.1, schedule="invscaling")
    settings = {"learning_rate": rate, "max_iter": 4, "engine": engine}
    a = optimizer(**settings, callbacks=[lambda o: change(o) and None if o.n_iter_ == 2 else None]).fit(X, Y)
    b = optimizer(**{**settings, "max_iter": 2}, warm_start=True).fit(X, Y)
    change(b)
    assert same(a, b.fit(X, Y))
    assert list(a._engine._programs) == list(b._engine._programs), "programs for the same sizes"
    c = optimizer(**settings)
    for epoch in range(4):
        if epoch == 2:
            change(c)
        c.partial_fit(X, Y)
    assert same(a, c)
    assert (a.get_state()[0] != optimizer(**settings).fit(X, Y).get_state()[0]).any()


def test_a_changed_rate_in_numpy():
    """w ← w - η₀/√k · g, with η₀ halved after two epochs of three batches, and k going on."""
    o = Optimizer(linear(), learning_rate=LearningRateSGD(0.2, schedule="invscaling"), batch_size=20, shuffle=False,
                  max_iter=4, callbacks=[lambda o: o.n_iter_ == 2 and o.set_params(learning_rate__eta0=0.1) and None])
    w, b = (a.astype(float) for a in o.get_state())
    o.fit(X, Y)
    for k in range(1, 13):
        rows = slice(20 * ((k - 1) % 3), 20 * ((k - 1) % 3 + 1))
        e = X[rows] @ w + b - Y[rows]
        eta = (0.2 if k <= 6 else 0.1) / k**0.5
        w, b = w - eta * 2 * X[rows].T @ e / 20, b - eta * 2 * e.mean(0)
    np.testing.assert_allclose(o.get_state()[0], w, rtol=1e-5)
    np.testing.assert_allclose(o.get_state()[1], b, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimizer_of_another_class_starts_with_states_of_zero(engine):
    """Adam after 36 batches of SGD corrects its bias as from the first one; a pickle remembers where it started."""
    a = optimizer(engine=engine).fit(X, Y).set_params(learning_rate="Adam", warm_start=True)
    weights = a.get_state()
    b = optimizer(engine=engine, learning_rate="Adam", shuffle=False)
    b.set_state(weights)
    a.shuffle = False
    c = pickle.loads(pickle.dumps(a.partial_fit(X[:30], Y[:30])))
    b.partial_fit(X[:30], Y[:30]).partial_fit(X, Y)
    assert same(a.partial_fit(X, Y), c.partial_fit(X, Y))
    for u, v in zip(a.get_state(), b.get_state(), strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-6)
    assert [int(o.get_state("optimizer")[-1]) for o in (a, b)] == [18 + 9, 9]
    a.set_params(warm_start=False, shuffle=True)
    assert same(a.fit(X, Y), optimizer(engine=engine, learning_rate="Adam").fit(X, Y))


def test_states_stay_in_a_family_alone():
    o = optimizer(learning_rate="Adam").fit(X, Y)
    states = o.get_state("optimizer")
    o.learning_rate = "AdamW"
    assert all((a == b).all() for a, b in zip(o.get_state("optimizer"), states, strict=True))
    o.learning_rate = "Adagrad"  # It has a state v, too, which means something else.
    assert not any(a.any() for a in o.get_state("optimizer")[:-1])


@pytest.mark.parametrize("precision", [None, "float16"])
@pytest.mark.parametrize("schedule", [
    ConstantSchedule(), InvScalingSchedule(0.3), OptimalSchedule(0.01), WarmUpSchedule("invscaling", n=2),
    CosineSchedule(n=4, minimum=0.01), StepSchedule(n=2), OneCycleSchedule(n=5)], ids=lambda s: type(s).__name__)
def test_the_step_size_can_be_read(schedule, precision):
    """A gradient of -1 moves a weight of 0 by just this."""
    x, w = variable("x", "float32", ["N", 1]), constant(np.zeros((1, 1), np.float32), hint="w")
    o = Optimizer(build([x], {"y": x @ w}), learning_loss="absolute_error", precision=precision,
                  learning_rate=LearningRateSGD(0.3, schedule=schedule))
    for _ in range(7):
        eta = o.learning_rate_
        o.set_state([np.zeros((1, 1))])
        o.partial_fit([[1.0]], [[1e4]])
        assert o.get_state()[0] == np.float32(eta) == eta


def test_pieces_say_how_they_are_changed():
    o = optimizer(learning_rate=LearningRateSGD(schedule="cosine"), learning_penalty=ElasticLearningPenalty(l2=0.1))
    for piece, name, path in ((o.learning_rate, "eta0", "learning_rate__eta0"),
                              (o.learning_rate.schedule, "n", "learning_rate__schedule__n"),
                              (o.learning_penalty, "l1", "learning_penalty__l1")):
        with pytest.raises(dataclasses.FrozenInstanceError, match=re.escape(
                f"{type(piece).__name__} is immutable, and {name} cannot be assigned; give the optimizer another one, "
                f"as set_params({path}=1) does.")):
            setattr(piece, name, 1)
        o.set_params(**{path: 1})
        assert o.get_params()[path] == 1


@pytest.mark.parametrize("name", ["learning_rate", "learning_penalty", "device", "weights_to_train", "engine", "model"])
def test_a_wrong_assignment_is_an_error_and_changes_nothing(name):
    a, b = optimizer(), optimizer()
    with pytest.raises((SettingError, DeviceError, ModelError)):
        setattr(a, name, b"x")
    assert same(a.fit(X, Y), b.fit(X, Y))


def test_a_formula_that_fails_is_an_error_of_the_assignment():
    class Broken(LearningRateSGD):
        def update(self, w, g, *, k):
            raise ZeroDivisionError

    a = optimizer().fit(X, Y)
    with pytest.raises(ZeroDivisionError):
        a.learning_rate = Broken()
    assert same(a.partial_fit(X, Y), optimizer().fit(X, Y).partial_fit(X, Y))


def test_the_loop_changes_at_the_next_epoch():
    """More epochs, then fewer; callbacks that take the place of others; another order of the rows."""
    o = optimizer(max_iter=2, callbacks=[lambda o: setattr(o, "max_iter", 6 if o.n_iter_ < 4 else 4)]).fit(X, Y)
    assert same(o, optimizer(max_iter=4).fit(X, Y))
    seen = []
    o = optimizer(callbacks=[lambda o: setattr(o, "callbacks", [lambda o: seen.append(o.n_iter_)])]).fit(X, Y)
    assert seen == [2, 3]
    o = optimizer(max_iter=2, callbacks=[lambda o: o.set_params(random_state=7)]).fit(X, Y)
    assert o._rng.bit_generator.state != optimizer(max_iter=2).fit(X, Y)._rng.bit_generator.state


def test_another_thread_may_not_change_the_update():
    def batches():
        yield X[:10], Y[:10]
        o.learning_rate = 0.1

    o = optimizer(max_iter=1)
    with pytest.raises(SettingError, match="learning_rate changes between two steps: in a callback, not in another "):
        o.fit(batches())
    o.learning_rate = 0.1


def test_another_thread_changes_the_loop_and_what_predicts():
    def batches():
        yield X[:10], Y[:10]
        o.set_params(max_iter=1, batch_size=5, validation_every=1, verbose=0, timeout=60.0, use_average=True)

    o = optimizer(max_iter=1, averaging="ema")
    o.fit(batches())
    assert (o.batch_size, o.validation_every, o.timeout, o.use_average) == (5, 1, 60.0, True)


def test_a_callback_may_train_on_other_rows():
    o = optimizer(max_iter=2, shuffle=False, callbacks=[lambda o: o.partial_fit(X[:7], Y[:7]) and None]).fit(X, Y)
    expected = optimizer(shuffle=False)
    for rows in (slice(None), slice(7)) * 2:
        expected.partial_fit(X[rows], Y[rows])
    assert same(o, expected)


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


def test_a_schedule_of_the_whole_training_is_set_by_a_callback():
    """It ends with the training that runs, as if it had been there from the start."""
    def change(o):
        if o.n_iter_ == 2:
            o.set_params(learning_rate__schedule="cosine")

    a = optimizer(max_iter=4, callbacks=[change]).fit(X, Y)
    b = optimizer(max_iter=2, warm_start=True).fit(X, Y)
    b.set_params(learning_rate__schedule=CosineSchedule(n=24)).fit(X, Y)
    assert same(a, b)
    assert a.learning_rate_ == 0
    without_length = (batch for batch in [(X, Y)])
    with pytest.raises(SettingError, match="the data do not say how many batches they give; give the schedule their"):
        optimizer(max_iter=1, callbacks=[lambda o: o.set_params(learning_rate__schedule="cosine")]).fit(without_length)

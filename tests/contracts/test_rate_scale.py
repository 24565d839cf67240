"""The scale of the step size: reduced on a plateau as by torch, or set by a callback, without another program."""

import pickle

import numpy as np
import pytest
import torch
from models import assert_close
from torch_steps import ENGINES, IN_EVERY_ENGINE, first_weights, forward_torch, images, network

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import SettingError
from ortpartial.learning import LearningRateAdam, LearningRateSGD, ReduceOnPlateauSchedule, WarmUpSchedule
from ortpartial.runtime import Session
from ortpartial.training_info import TrainingSession

EPOCHS, BATCH, KEPT = 50, 20, 30
PLATEAU = {"factor": 0.5, "patience": 1, "threshold": 0.2, "cooldown": 1}
RATE = LearningRateSGD(0.4, schedule=ReduceOnPlateauSchedule(minimum=0.01, **PLATEAU))


def optimizer(engine="step", rate=RATE, **settings):
    return Optimizer(network(), learning_rate=rate, batch_size=BATCH, shuffle=False,
                     **{"max_iter": EPOCHS, "validation_every": 1, **ENGINES[engine], **settings})


def split():
    X, y = images("float32")
    return X[:KEPT], y[:KEPT], X[KEPT:], y[KEPT:]


def train_torch(validated):
    """The weights and step sizes of fifty epochs in torch."""
    X, y, X_val, y_val = map(torch.tensor, split())
    weights = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in first_weights("float32").items()}
    sgd, cost, rates = torch.optim.SGD(weights.values(), lr=0.4), torch.nn.functional.mse_loss, []
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, min_lr=0.01, **PLATEAU)
    for _ in range(EPOCHS):
        losses = []
        for rows in torch.arange(KEPT).split(BATCH):
            sgd.zero_grad()
            loss = cost(forward_torch(weights, X[rows]), y[rows])
            loss.backward()
            sgd.step()
            losses += [loss.item()] * len(rows)
        with torch.no_grad():
            plateau.step(cost(forward_torch(weights, X_val), y_val).item() if validated else np.mean(losses))
        rates.append(plateau.get_last_lr()[0])
    return {n: w.detach().numpy() for n, w in weights.items()}, rates


@pytest.fixture(scope="module")
def torch_weights():
    return {validated: train_torch(validated) for validated in (False, True)}


@IN_EVERY_ENGINE
@pytest.mark.parametrize("validated", [False, True], ids=["training loss", "validation loss"])
def test_fifty_epochs_of_torch(torch_weights, validated, engine):
    expected, rates = torch_weights[validated]
    assert len(set(rates)) > 3
    actual = []
    o = optimizer(engine, callbacks=[lambda o: actual.append(o.learning_rate_)])
    X, y, X_val, y_val = split()
    o.fit(X, y, **({"X_val": X_val, "y_val": y_val} if validated else {}))
    np.testing.assert_allclose(actual, rates, rtol=1e-6)
    assert_close(o.trained_coef_, expected, 1e-5)


@pytest.mark.parametrize("settings", [
    {}, {"patience": 0}, {"patience": 2, "cooldown": 3}, {"factor": 0.9, "patience": 1, "threshold": 0.1},
    {"patience": 0, "minimum": 0.03}, {"patience": 0, "factor": 0.5, "epsilon": 0.02}], ids=repr)
def test_scale_of_many_losses(settings):
    rng = np.random.default_rng(0)
    names = {"minimum": "min_lr", "epsilon": "eps"}
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    in_torch = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, **{names.get(n, n): v for n, v in settings.items()})
    plateau, scale = ReduceOnPlateauSchedule(**settings), 1.0
    memory = plateau.first_memory
    for loss in [*np.exp(-np.arange(20) / 5) + rng.normal(size=20) / 10, np.nan, *rng.normal(size=60)]:
        scale, memory = plateau.watch(loss, scale, memory, 0.3)
        in_torch.step(loss)
        np.testing.assert_allclose(0.3 * scale, in_torch.get_last_lr()[0], rtol=1e-12)
    assert scale < 1


@IN_EVERY_ENGINE
def test_a_callback_scales_without_another_program(engine, monkeypatch):
    opened, scales = [], []
    init = Session.__init__
    monkeypatch.setattr(Session, "__init__", lambda self, *a, **k: (opened.append(len(scales)), init(self, *a, **k))[1])

    def halve(o):
        scales.append(o.learning_rate_scale_)
        o.scale_learning_rate(o.learning_rate_scale_ / 2)

    X, y, *_ = split()
    o = optimizer(engine, LearningRateSGD(0.4), max_iter=5, callbacks=[halve])
    assert o.scale_learning_rate(1.0) is o
    opened.clear()
    o.fit(X, y)
    assert scales == [1, 0.5, 0.25, 0.125, 0.0625]
    assert all(epoch == 0 for epoch in opened)
    np.testing.assert_allclose(o.learning_rate_, 0.4 / 32)
    other = optimizer(engine, LearningRateSGD(0.4), max_iter=1)
    for epoch in range(5):
        other.learning_rate = LearningRateSGD(0.4 / 2**epoch)
        other.partial_fit(X, y)
    assert_close(o.trained_coef_, other.trained_coef_, 1e-6)


@IN_EVERY_ENGINE
@pytest.mark.parametrize("rate", [RATE, LearningRateAdam(0.3, schedule=WarmUpSchedule(ReduceOnPlateauSchedule(
    "invscaling", factor=0.5, patience=0), n=3))], ids=["constant", "warm-up"])
def test_a_pickle_goes_on_with_the_scale(rate, engine):
    X, y, X_val, y_val = split()
    whole = optimizer(engine, rate, max_iter=16).fit(X, y, X_val=X_val, y_val=y_val)
    first = optimizer(engine, rate, max_iter=8).fit(X, y, X_val=X_val, y_val=y_val)
    second = pickle.loads(pickle.dumps(first)).set_params(warm_start=True)
    assert second.get_state("buffer")[-1][0] < 1e300  # the least loss
    assert second.learning_rate_scale_ == first.learning_rate_scale_ < 1
    second.fit(X, y, X_val=X_val, y_val=y_val)
    assert second.learning_rate_ == whole.learning_rate_
    for a, b in zip(second.get_state(), whole.get_state(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pickle_goes_on_with_the_scale_of_a_callback():
    X, y, *_ = split()
    o = optimizer(rate=LearningRateSGD(0.4)).scale_learning_rate(0.25)
    again = pickle.loads(pickle.dumps(o))
    assert again.learning_rate_scale_ == o.set_params(train_mode=False).learning_rate_scale_ == 0.25
    assert_close(again.partial_fit(X, y).trained_coef_, o.partial_fit(X, y).trained_coef_, 0)


@IN_EVERY_ENGINE
def test_factors_of_weights_are_scaled_as_well(engine):
    X, y, *_ = split()
    settings = {"rate": LearningRateAdam(0.1), "max_iter": 3}
    scaled = optimizer(engine, rate_factors={"fc.*": 0.5, "conv.*": 3}, **settings).scale_learning_rate(0.25)
    scaled.set_params(warm_start=True).fit(X, y)
    plain = optimizer(engine, rate_factors={"fc.*": 0.125, "conv.*": 0.75, "norm.*": 0.25}, **settings).fit(X, y)
    assert_close(scaled.trained_coef_, plain.trained_coef_, 1e-6)


def test_a_new_fit_starts_without():
    X, y, *_ = split()
    o = optimizer(max_iter=20).fit(X, y)
    first = o.trained_coef_
    assert o.learning_rate_scale_ < 1
    assert_close(o.fit(X, y).trained_coef_, first, 0)


@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_a_stored_training_keeps_the_scale(style):
    X, y, *_ = split()
    o = optimizer(rate=LearningRateSGD(0.4)).scale_learning_rate(0.25)
    session = TrainingSession(o.get_training_onnx(style))
    session.step({"x": X[:BATCH], "y_target": y[:BATCH]})
    assert_close(session.state, o.partial_fit(X[:BATCH], y[:BATCH]).trained_coef_, 1e-6)


def test_a_training_without_scale_has_none():
    assert not optimizer(rate=LearningRateSGD(0.4)).get_state("buffer")


@pytest.mark.parametrize("scale", [0, -1, np.inf, np.nan, "half", True])
def test_what_is_no_scale(scale):
    with pytest.raises(SettingError, match=r"scale is .*, a finite number more than 0 was expected\."):
        optimizer().scale_learning_rate(scale)


@pytest.mark.parametrize("by_callback", [False, True])
def test_a_checkpoint_keeps_the_scale(tmp_path, by_callback):
    X, y, *_ = split()
    rate = LearningRateSGD(0.4) if by_callback else RATE
    o = optimizer(rate=rate, max_iter=15).fit(X, y)
    if by_callback:
        o.scale_learning_rate(0.25)
    o.save_checkpoint(tmp_path / "a.safetensors")
    again = optimizer(rate=rate, max_iter=15)
    again.load_checkpoint(tmp_path / "a.safetensors")
    assert again.learning_rate_scale_ == o.learning_rate_scale_ < 1
    assert_close(again.partial_fit(X, y).trained_coef_, o.partial_fit(X, y).trained_coef_, 0)
    for a, b in zip(again.get_state("buffer"), o.get_state("buffer"), strict=True):
        np.testing.assert_array_equal(a, b)

"""A learning rate finder: its sweep, its suggestion, and a training that is as without it."""

import copy
import pickle

import numpy as np
import pytest
from models import two_in_two_out
from sklearn.linear_model import LogisticRegression
from trainings import ENGINES, W, X, Y, optimizer, same

from ortpartial import OnnxClassifier
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.callbacks import LearningRateFinder, LearningRateSweep, find_learning_rate
from ortpartial.exceptions import ConvergenceWarning, SettingError
from ortpartial.plots import plot_learning_rate_finder


def state(o):
    """All that later steps depend on."""
    arrays = [a.tobytes() for kind in ("weight", "optimizer", "buffer") for a in o.get_state(kind)]
    return arrays, o._rng.bit_generator.state, o.history_, o.n_iter_, o.learning_rate


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rate", ["SGD", "Adam"])
def test_it_leaves_the_optimizer_as_it_is(engine, rate):
    o = optimizer(engine=engine, learning_rate=rate).fit(X, Y)
    before = copy.deepcopy(state(o))
    sweep = find_learning_rate(o, X, Y, W)
    assert state(o) == before
    assert sweep.rates[0] == 1e-7
    assert len(sweep.rates) == len(sweep.losses) == len(sweep.raw_losses) <= 100
    assert same(o.partial_fit(X, Y), optimizer(engine=engine, learning_rate=rate).fit(X, Y).partial_fit(X, Y))


def test_the_sweep():
    """The losses are those of steps whose rate grows, each before its step."""
    sweep = find_learning_rate(optimizer(), X[:10], Y[:10], min_rate=1e-3, max_rate=1e-1, steps=11, smoothing=0.5)
    np.testing.assert_allclose(sweep.rates, np.geomspace(1e-3, 1e-1, 11))
    o, losses = optimizer(learning_rate=1e-3, max_iter=1), []
    for rate in sweep.rates:
        o.learning_rate = float(rate)
        order = np.arange(10)
        losses.append(float(o.losses(X[order], Y[order]).mean()))
        o.partial_fit(X[:10], Y[:10])
    np.testing.assert_allclose(sweep.raw_losses, losses, rtol=1e-5)
    mean = 0
    for k, (loss, smoothed) in enumerate(zip(sweep.raw_losses, sweep.losses, strict=True), 1):
        mean = 0.5 * mean + 0.5 * loss
        assert smoothed == pytest.approx(mean / (1 - 0.5**k))


def test_suggestions():
    rates = np.geomspace(1e-5, 1, 101)
    exponent = np.log10(rates)
    losses = np.where(exponent < -3, 2.0, np.where(exponent < -1, 2 - (exponent + 3) / 2, 1 + 3 * (exponent + 1)))
    sweep = LearningRateSweep(rates, losses, losses)
    assert np.log10(sweep.valley) == pytest.approx(-2, abs=0.1), "the middle of the way down"
    assert -3.1 < np.log10(sweep.steepest) < -1
    assert sweep.suggestion == sweep.valley
    short = LearningRateSweep(rates[:5], losses[:5], losses[:5])
    assert (short.valley, short.steepest) == (None, None)
    assert plot_learning_rate_finder(sweep).get_xscale() == "log"
    assert pickle.loads(pickle.dumps(sweep)).suggestion == sweep.suggestion


def test_a_sweep_ends_where_the_loss_diverges():
    sweep = find_learning_rate(optimizer(), X, Y, max_rate=1e6, steps=50)
    assert len(sweep.rates) < 50
    assert np.isfinite(sweep.losses).all()
    assert 1e-3 < sweep.suggestion < 1


def test_data_of_all_kinds():
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)]
    assert len(find_learning_rate(optimizer(), batches, steps=20, max_rate=1e-3).rates) == 20
    o = Optimizer(two_in_two_out(), learning_loss={"price": "square_error", "kind": "cross_entropy"})
    data = {"a": X[:, :3], "b": X[:, 1:]}, {"price": Y, "kind": (Y[:, 0] > 0).astype(int)}
    assert len(find_learning_rate(o, *data, steps=20, max_rate=1e-3).rates) == 20


def test_a_training_begins_as_without_it():
    finder = LearningRateFinder(update=False)
    assert same(optimizer(callbacks=[finder]).fit(X, Y, W), optimizer().fit(X, Y, W))
    finder = LearningRateFinder()
    o = optimizer(callbacks=[finder], learning_rate="Adam").fit(X, Y, W)
    rate = finder.result_.suggestion
    assert o.learning_rate.eta0 == rate
    expected = optimizer(learning_rate="Adam").set_params(learning_rate__eta0=rate).fit(X, Y, W)
    assert same(o, expected)
    assert find_learning_rate(optimizer(learning_rate="Adam"), X, Y, W).suggestion == rate


def test_a_training_that_goes_on_keeps_its_rate():
    finder = LearningRateFinder()
    o = optimizer(warm_start=True).fit(X, Y)
    o.callbacks = [finder]
    o.fit(X, Y)
    assert finder.result_ is None
    assert o.learning_rate.eta0 == 0.05


def test_nothing_to_suggest():
    finder = LearningRateFinder(min_rate=1e6, max_rate=1e8)
    with pytest.warns(ConvergenceWarning, match=r"suggests no step size, as the loss diverged after \d steps; lower"):
        o = optimizer(callbacks=[finder]).fit(X, Y)
    assert o.learning_rate.eta0 == 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"min_rate": 0}, "min_rate and max_rate are numbers above 0"), ({"steps": 3}, "whole number from 10 to"),
     ({"max_rate": 1e-9}, "the first one less"), ({"smoothing": 1}, "smoothing is from 0 on and less than 1, not 1")])
def test_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        find_learning_rate(optimizer(), X, Y, **settings)


@pytest.mark.filterwarnings("ignore:The training reached max_iter")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.sklearn_callbacks
def test_an_estimator_of_ours(is_set):
    """Whose labels are encoded before they are trained."""
    finder = LearningRateFinder()
    model = OnnxClassifier(max_iter=3, callbacks=() if is_set else (finder,))
    model = model.set_callbacks(finder) if is_set else model
    model.fit(X, np.where(Y[:, 0] > 0, "yes", "no"))
    assert model.optimizer_.learning_rate.eta0 == finder.result_.suggestion


@pytest.mark.sklearn_callbacks
def test_what_it_cannot_do():
    with pytest.raises(SettingError, match="OrtGradientForwardBackwardOptimizer; LogisticRegression has none"):
        LogisticRegression().set_callbacks(LearningRateFinder()).fit(X, Y[:, 0] > 0)
    with pytest.raises(SettingError, match="X gives them once"):
        optimizer(max_iter=1, callbacks=[LearningRateFinder()]).fit(iter([(X, Y)]))


def test_display():
    """What is shown is short: no arrays, and in a notebook a card."""
    finder = LearningRateFinder(steps=30)
    assert repr(finder) == "LearningRateFinder(min_rate=1e-07, max_rate=10.0, steps=30, update=True)"
    assert "<th>steps</th><td>30</td>" in finder._repr_html_()
    finder.result_ = LearningRateSweep(10.0 ** np.arange(-9, 3), np.arange(12.0)[::-1], np.arange(12.0))
    assert repr(finder.result_) == "<LearningRateSweep of 12 steps from 1e-09 to 1e+02, suggestion: 1e-06>"
    assert "<td>1e-06</td>" in finder._repr_html_()
    assert "<polyline" in finder._repr_html_()
    empty = LearningRateSweep(np.ones(0), np.ones(0), np.ones(0))
    assert repr(empty) == "<LearningRateSweep of 0 steps, suggestion: none>"
    assert "none" in empty._repr_html_()

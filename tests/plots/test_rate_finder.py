"""Losses by learning rate."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer, find_learning_rate, nn
from ortpartial.exceptions import DataError
from ortpartial.plots import plot_learning_rate_finder

RATES = np.geomspace(1e-5, 1, 6)


def draw(losses, suggestion=None):
    return plot_learning_rate_finder(SimpleNamespace(rates=RATES, losses=losses, suggestion=suggestion))


def test_suggestion_is_marked():
    ax = draw([1.0, 1.0, 0.8, 0.5, 0.7, np.inf], 1e-3)
    assert ax.lines[0].get_xdata().tolist() == RATES[:5].tolist()
    assert ax.lines[1].get_xdata()[0] == 1e-3
    assert ax.get_legend().get_texts()[0].get_text() == "suggestion: 0.001"
    assert draw([1.0, 1.0, 0.8, 0.5, 0.7, 2.0]).get_legend() is None


def sweep(losses):
    """A sweep of 100 steps whose batches differ."""
    noise = np.random.default_rng(0).normal(scale=0.1, size=100)
    losses = np.interp(np.linspace(0, 1, 100), np.linspace(0, 1, len(losses)), losses) + noise
    return SimpleNamespace(rates=np.geomspace(1e-7, 10, 100), losses=losses, raw_losses=losses, suggestion=1e-3)


def test_losses_of_batches():
    """They stand behind their mean, which does not lag behind them."""
    ax = plot_learning_rate_finder(sweep([2.3, 2.3, 2.3, 1.0, 2.3]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["of a batch", "mean of neighbors",
                                                                         "suggestion: 0.001"]
    assert abs(ax.lines[1].get_ydata().argmin() - 75) <= 2


@pytest.mark.parametrize("peak", [9.0, 1e3, 1e9, 1e30])
def test_end_where_losses_diverge(peak):
    """They would flatten the rest."""
    ax = plot_learning_rate_finder(sweep([2.3, 2.3, 2.3, 1.0, peak]))
    assert 0 < ax.get_ylim()[0] < 1.2
    assert 2.3 < ax.get_ylim()[1] < 4
    assert 0.05 < ax.get_xlim()[1] < 10


@pytest.mark.parametrize(("load", "widths", "loss", "rate"), [
    (load_digits, (64, 32, 10), "softmax_cross_entropy", "SGD"), (load_diabetes, (10, 1), "square_error", "Adam"),
    *(pytest.param(load_diabetes, (10, 50, 1), "square_error", rate, marks=pytest.mark.slow)
      for rate in ("SGD", "Adam"))])
def test_defaults_draw_the_curve(load, widths, loss, rate):
    """It fills the frame, and the suggested rate stands within."""
    X, y = load(return_X_y=True)
    X = X.astype(np.float32) / X.std()
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())][:-1]
    model = nn.Sequential(*layers).compile(nn.placeholder(["N", widths[0]]), random_state=0).to_onnx()
    optimizer = OrtGradientForwardBackwardOptimizer(model, learning_loss=loss, learning_rate=rate, random_state=0)
    found = find_learning_rate(optimizer, X, y if loss != "square_error" else y / y.std())
    ax = plot_learning_rate_finder(found)
    (low, high), (start, end) = ax.get_ylim(), ax.get_xlim()
    curve = ax.lines[1].get_ydata()[found.rates < end]
    assert ((low < curve) & (curve <= high)).all()
    assert np.ptp(curve) > 0.5 * (high - low)
    assert start == found.rates[0] < found.suggestion < end <= found.rates[-1]


def test_flat_losses():
    low, high = draw([1.0] * 6).get_ylim()
    assert low < 1 < high


def test_no_finite_loss():
    with pytest.raises(DataError, match="begin with a lower learning rate"):
        draw([np.nan] * 6)

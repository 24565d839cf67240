"""Losses by learning rate."""

from types import SimpleNamespace

import numpy as np
import pytest

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


def test_losses_of_batches():
    """They stand behind the smoothed ones."""
    sweep = SimpleNamespace(rates=RATES, losses=[1.0, 1.0, 0.8, 0.5, 0.7, 2.0], raw_losses=np.ones(6), suggestion=None)
    ax = plot_learning_rate_finder(sweep)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["of each batch", "smoothed"]
    assert ax.lines[1].get_ydata().tolist() == sweep.losses


def test_divergence_does_not_flatten_the_rest():
    low, high = draw([1.0, 0.9, 0.8, 0.5, 30.0, 1e9]).get_ylim()
    assert low < 0.5
    assert 1.0 < high < 2.0


def test_no_finite_loss():
    with pytest.raises(DataError, match="begin with a lower learning rate"):
        draw([np.nan] * 6)

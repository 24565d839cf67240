"""Histograms of weights and gradients."""

import numpy as np
import pytest
from models import mlp

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError
from ortpartial.model import Alias, AliasDict
from ortpartial.plots import plot_histograms


def rows(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def summaries(ax):
    return [text.get_text() for text in ax.texts]


def test_weights_of_an_optimizer():
    ax = plot_histograms(OrtGradientForwardBackwardOptimizer(mlp()))
    assert sorted(rows(ax)) == ["W1", "W2", "b1", "b2"]
    assert ax.get_title(loc="left") == "Weights"
    assert rows(plot_histograms(OrtGradientForwardBackwardOptimizer(mlp()), ["W*", "b2"])) == ["W1", "W2", "b2"]


def test_counts():
    """Every number is in a bin, and the fullest bin is as high as a row."""
    a = np.random.default_rng(0).normal(size=500)
    counts = np.histogram(a, 50)[0]
    heights = plot_histograms({"a": a}).patches[0].get_data().values
    np.testing.assert_allclose(heights, 0.85 * counts / counts.max())


def test_what_is_unusual_is_said():
    ax = plot_histograms({"dead": np.zeros(4), "wild": [1.0, np.nan, 3.0, np.inf], "lost": [np.nan]})
    assert summaries(ax) == ["0 ± 0, 100% zero", "2 ± 1, 2 not finite", "not finite"]


def test_magnitudes():
    ax = plot_histograms({"a": np.array([1e-8, -1e-8, 0.0, 0.0]), "b": np.array([1.0, 10.0])}, log=True, title="G")
    assert summaries(ax) == ["median 5e-09, 50% zero", "median 5.5"]
    assert ax.get_xlim() == (-8, 1)
    assert ax.xaxis.get_major_formatter()(-8, None) == "$10^{-8}$"
    assert ax.get_title(loc="left") == "G"


def test_names_of_the_program():
    """Weights are called as in the program that was exported."""
    weights = AliasDict({"val_9": np.ones(3)}, {"fc.weight": Alias("val_9")})

    class Fitted:
        trained_coef_ = weights

    assert rows(plot_histograms(Fitted())) == ["fc.weight"]


def test_errors():
    with pytest.raises(DataError, match="No array has a name that matches 'V'; there are 'W1'"):
        plot_histograms({"W1": np.ones(2)}, "V")
    with pytest.raises(DataError, match="not of int"):
        plot_histograms(3)

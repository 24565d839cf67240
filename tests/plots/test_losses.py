"""Losses by epoch."""

from types import SimpleNamespace

import numpy as np
import pytest
from models import data, mlp

from ortpartial import LearningRateSGD, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError
from ortpartial.plots import plot_losses


def history(**columns):
    return [{"epoch": i, **dict(zip(columns, row, strict=True))}
            for i, row in enumerate(zip(*columns.values(), strict=True), 1)]


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_training_alone():
    ax = plot_losses(history(loss=[3.0, 1.0, 2.0]))
    assert legend(ax) == ["training", "best: 1 in epoch 2"]
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 3], [2, 1], [3, 2]])
    assert ax.get_yscale() == "linear"


def test_validation_of_some_epochs():
    """The best epoch is that of the validation."""
    ax = plot_losses(history(loss=[3.0, 2.0, 1.0, 0.5], validation_loss=[None, 1.5, None, 1.75]))
    assert legend(ax) == ["training", "validation", "best: 1.5 in epoch 2"]
    np.testing.assert_array_equal(ax.lines[1].get_xydata(), [[2, 1.5], [4, 1.75]])
    np.testing.assert_array_equal(ax.lines[2].get_xydata(), [[2, 1.5]])
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()


def test_learning_rate_that_changes():
    ax = plot_losses(history(loss=[3.0, 2.0], learning_rate=[0.1, 0.05]))
    assert legend(ax)[-1] == "learning rate"
    (right,) = [other for other in ax.figure.axes if other is not ax]
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [0.1, 0.05])
    ax = plot_losses(history(loss=[3.0, 2.0], learning_rate=[0.1, 0.1]))
    assert ax.figure.axes == [ax]


def test_records_of_a_training():
    """Losses, validation and the schedule of a fit."""
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), max_iter=6, validation_every=2, random_state=0,
                                                    learning_rate=LearningRateSGD(0.01, schedule="cosine"))
    ax = plot_losses(optimizer.fit(X, y, X_val=0.2))
    assert ax.lines[1].get_xdata().tolist() == [2, 4, 6]
    assert ax.lines[1].get_ydata().tolist() == optimizer.validation_losses_
    assert legend(ax)[-1] == "learning rate"


def test_one_epoch_has_no_fractions_of_epochs_beside_it():
    ax = plot_losses([2.0])
    assert [t for t in ax.get_xticks() if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]] == [1]


def test_wide_losses_are_logarithmic():
    assert plot_losses([100.0, 1.0]).get_yscale() == "log"
    assert plot_losses([100.0, 1.0], log=False).get_yscale() == "linear"
    assert plot_losses([100.0, -1.0]).get_yscale() == "linear"


def test_sources():
    """An optimizer, an estimator that holds one, and what a former version has."""
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), max_iter=3)
    with pytest.raises(DataError, match="no epoch to draw; call fit first"):
        plot_losses(optimizer)
    optimizer.fit(X, y)
    for source in (optimizer, SimpleNamespace(optimizer_=optimizer), optimizer.train_losses_, optimizer.history_,
                   optimizer.training_view()):
        np.testing.assert_array_equal(plot_losses(source).lines[0].get_ydata(), optimizer.train_losses_)
    with pytest.raises(DataError, match="a list of dicts or of losses, not int"):
        plot_losses(3)

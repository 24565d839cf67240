"""The view of a training: its state at the time of the call, with copies of its weights."""

import numpy as np
import pytest
from models import data, linear

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError

X, Y, _ = data(20)


@pytest.fixture
def optimizer():
    return OrtGradientForwardBackwardOptimizer(linear(), max_iter=3, random_state=0, learning_rate=0.125, batch_size=5)


def test_each_epoch_is_seen(optimizer):
    views = []
    optimizer.set_params(callbacks=[lambda o: views.append(o.training_view())]).fit(X, Y)
    assert [v.epoch for v in views] == [1, 2, 3]
    assert [v.iteration for v in views] == [4, 8, 12]
    assert [v.losses["loss"] for v in views] == optimizer.train_losses_
    assert {(v.max_iter, v.rate) for v in views} == {(3, 0.125)}


def test_weights_are_copies(optimizer):
    view = optimizer.fit(X, Y).training_view()
    view.weights()["coef"][:] = 0
    assert optimizer.trained_coef_["coef"].any()
    assert view.history == optimizer.history_


def test_gradients(optimizer):
    view = optimizer.fit(X, Y).training_view()
    w = optimizer.trained_coef_
    e = X @ w["coef"] + w["intercept"] - Y
    gradients = view.gradients(X, Y)
    np.testing.assert_allclose(gradients["coef"], 2 * X.T @ e / len(X), rtol=1e-4, atol=1e-6)


def test_before_any_rows(optimizer):
    with pytest.raises(DataError, match="There are no rows yet of which gradients could be computed; give X and y"):
        optimizer.training_view().gradients()


def test_columns_are_added_and_not_replaced(optimizer):
    optimizer.fit(X, Y).training_view().record(mine=1.5, loss=-1)
    assert optimizer.history_[-1]["mine"] == 1.5
    assert optimizer.history_[-1]["loss"] == optimizer.train_losses_[-1]

"""One training behind an optimizer: composed of its settings, changed, captured and restored."""

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import SettingError

X, Y, _ = data(20)


@pytest.fixture
def optimizer():
    return OrtGradientForwardBackwardOptimizer(mlp(), learning_rate="Adam", max_iter=2, random_state=0).fit(X, Y)


def test_its_parts(optimizer):
    training = optimizer.training
    assert training.spec.weights == ("W1", "b1", "W2", "b2")
    assert training.engine.iteration == 4
    assert len(training.loop.records) == 2


def test_a_change_keeps_what_was_trained(optimizer):
    before = optimizer.get_state()
    optimizer.set_params(learning_rate=0.1, batch_size=5)
    for a, b in zip(optimizer.get_state(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert optimizer.training.loop.settings.batch_size == 5
    assert optimizer.training.spec.rate.eta0 == 0.1


def test_a_change_that_is_refused_changes_nothing(optimizer):
    before = optimizer.get_params()
    with pytest.raises(SettingError):
        optimizer.set_params(batch_size=0, learning_rate=0.5)
    assert optimizer.get_params() == before


def test_weights_that_are_not_trained_any_more_keep_what_they_learned(optimizer):
    learned = optimizer.trained_coef_["W1"].copy()
    optimizer.set_params(weights_to_train=["W2"]).partial_fit(X, Y)
    np.testing.assert_array_equal(optimizer.training.learned["W1"], learned)
    optimizer.set_params(weights_to_train=["W1", "W2"])
    np.testing.assert_array_equal(optimizer.trained_coef_["W1"], learned)


def test_a_step_and_a_loss_of_one_batch(optimizer):
    loss = optimizer.training.compute_loss((X, Y))
    assert optimizer.losses(X, Y).mean() == pytest.approx(loss, rel=1e-5)
    assert optimizer.training.step((X, Y)) == pytest.approx(loss, rel=1e-5)
    assert optimizer.training.engine.iteration == 5

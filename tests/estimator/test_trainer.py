"""The trainer of an optimizer: its answers to callbacks are the optimizer's."""

import numpy as np
import pytest
from models import data, linear

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.estimator.trainer import OptimizerTrainer

X, Y, _ = data(20)


@pytest.fixture
def trainer():
    return OptimizerTrainer(OrtGradientForwardBackwardOptimizer(linear(), learning_rate=0.125, max_iter=2).fit(X, Y))


def test_rates(trainer):
    assert (trainer.base_rate, trainer.rate, trainer.rate_scale) == (0.125, 0.125, 1)
    trainer.scale_rate(0.5)
    assert (trainer.rate, trainer.rate_scale, trainer.optimizer.learning_rate_) == (0.0625, 0.5, 0.0625)


def test_weights_and_history(trainer):
    assert trainer.loop.history == trainer.optimizer.history_
    assert (trainer.read_weights()["coef"] == trainer.optimizer.trained_coef_["coef"]).all()
    assert trainer.loop is trainer.training.loop


def test_former_weights_are_restored(trainer):
    former = trainer.copy_used()
    before = trainer.read_weights()["coef"].copy()
    trainer.optimizer.partial_fit(X, Y)
    assert (trainer.read_weights()["coef"] != before).any()
    trainer.restore_used(former)
    np.testing.assert_array_equal(trainer.read_weights()["coef"], before)


def test_gradients_on_some_of_the_rows(trainer):
    drawn = trainer.compute_gradients(None, None, None, np.random.default_rng(0))
    assert drawn.keys() == {"coef", "intercept"}
    assert all(np.isfinite(g).all() for g in drawn.values())


def test_captured(trainer):
    with trainer.capture() as state:
        assert isinstance(state, dict)
        assert state

"""The state of optimizers: counters, plans, the step size of the last batch, and averages in place of weights."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.learning.annealing import CosineSchedule
from ortpartial.learning.momentum_rates import LearningRateSGD
from ortpartial.nn.optimized_state import OptimizedState

X = np.ones((4, 3), np.float32)


def test_optimizers_are_looked_for_where_something_has_changed():
    model = nn.Linear(3, 1).set_optimizer("adam").compile(X)
    state = model._program
    assert isinstance(state, OptimizedState)
    assert state.optimizers is state.optimizers
    (first,) = state.optimizers.values()
    model.set_optimizer("SGD")
    assert first not in state.optimizers.values()


def test_updates_are_counted_and_planned():
    rate = LearningRateSGD(0.1, schedule=CosineSchedule())
    model = nn.Linear(3, 1).set_optimizer(rate, accumulate=2).compile(X)
    state, (name,) = model._program, model._program.optimizers
    assert state.count_updates(name) == 0
    state.plan_further(8)
    assert state.optimizers[name].planned_rate.schedule == CosineSchedule(4)
    assert state.find_rate() == pytest.approx(0.1)
    for _ in range(4):
        model.train_one_batch(X, X[:, :1])
    assert state.count_updates(name) == 2
    assert state.find_rate() == pytest.approx(0.1 * np.cos(np.pi / 8) ** 2)


def test_averages_are_used_after_the_first_update():
    model = nn.Linear(3, 1).set_optimizer("SGD", averaging="ema", use_average=True).compile(X, random_state=0)
    state, before = model._program, model.weight.numpy()
    np.testing.assert_array_equal(state.get_used("weight"), before)
    for _ in range(2):
        model.train_one_batch(X, X[:, :1])
    assert sorted(state.averages.values()) == ["bias", "weight"]
    assert (state.get_used("weight") != state.get("weight")).any()

"""State: numbers by name that the runner of the steps holds, or that wait for it."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import SettingError
from ortpartial.nn.held_state import HeldState
from ortpartial.nn.trace import ITERATION, SEED

X = np.ones((4, 3), np.float32)


def test_state_before_a_step_and_in_one():
    model = nn.Linear(3, 1).set_optimizer("adam").compile(X, random_state=0)
    state = model._program
    assert isinstance(state, HeldState)
    assert state.runner is None
    before = {n: state.get(n) for n in ("weight", "bias", SEED, ITERATION)}
    state.set({"bias": before["bias"] + 1})
    model.train_one_batch(X, X[:, :1])
    assert state.runner is not None
    assert (state.iteration, state.get(SEED).tolist()) == (1, before[SEED].tolist())
    assert state.holds("weight")
    assert not state.holds("other")
    assert set(before) < set(state.states())
    state.set({"weight": before["weight"]})
    np.testing.assert_array_equal(state.runner.get("weight"), before["weight"])


def test_numbers_are_drawn_anew():
    model = nn.Linear(3, 1).compile(X, random_state=0)
    first = model.weight.numpy()
    model._program.draw({"weight": model.weight}, 5)
    again = model.weight.numpy()
    model._program.draw({"weight": model.weight}, 5)
    assert (first != again).any()
    np.testing.assert_array_equal(model.weight.numpy(), again)


def test_names_of_the_state_itself():
    model = nn.Linear(3, 1)
    model.seed = nn.Parameter([1])
    with pytest.raises(SettingError, match=r"has a state of its own called 'seed'; rename this attribute of Linear\."):
        model.compile(X)

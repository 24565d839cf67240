"""The state of a training: parameters by name, gradients and momentums, and checkpoints of it."""

import pickle

import numpy as np
import pytest

from ortpartial.artifacts.checkpoint import Checkpoint, OptimizerState
from ortpartial.artifacts.state import CheckpointState, state_name, to_array
from ortpartial.exceptions import CheckpointError, ConvergenceError, DataError, SettingError


@pytest.fixture
def state():
    return CheckpointState(Checkpoint({"w": np.ones((2, 3), np.float32)}, {"running": np.zeros(3, np.float32)},
                                      {}, {"epoch": 4}))


def test_names_of_the_state():
    assert (state_name("w", ""), state_name("w", "momentum0")) == ("w", "w//momentum0")


def test_gradients_and_momentums_begin_with_zeros(state):
    state.open(["w"])
    assert state.parameters["w"].grad.tolist() == [[0, 0, 0], [0, 0, 0]]
    state.open_optimizer(("momentum0",))
    state.write("w//momentum0", np.ones((2, 3), np.float32))
    assert (state.to_checkpoint().optimizers["group0"].momentums["w"]["momentum0"] == 1).all()
    with pytest.raises(CheckpointError, match="trains 'running', which is frozen"):
        state.open(["running"])


def test_parameters(state):
    parameters = state.parameters
    assert (parameters.keys(), len(parameters), "w" in parameters) == (["w", "running"], 2, True)
    assert (parameters["w"].requires_grad, parameters["running"].requires_grad) == (True, False)
    parameters["w"] = np.full((2, 3), 2.0)
    assert parameters["w"].data.dtype == np.float32
    parameters["w"].data[:] = 7  # a copy
    assert (parameters["w"].data == 2).all()
    assert parameters["w"].grad is None
    assert parameters.get("v") is None


def test_errors(state):
    with pytest.raises(DataError, match=r"The parameter 'w' has the shape \(2, 3\), not \(3,\)\."):
        state.parameters["w"] = np.zeros(3)
    with pytest.raises(KeyError, match=r"Parameter v not found\."):
        _ = state.parameters["v"]
    with pytest.raises(TypeError, match="cannot be removed"):
        del state.parameters["w"]
    with pytest.raises(SettingError, match="A CheckpointState is made of a Checkpoint, not a dict"):
        CheckpointState({})
    with pytest.raises(CheckpointError, match=r"The checkpoint has the groups a, b of parameters; one was expected\."):
        CheckpointState(Checkpoint({}, {}, {"a": OptimizerState(), "b": OptimizerState()}))


def test_a_pickle_and_a_file_have_all_of_it(state, tmp_path):
    state.parameters["w"] = np.arange(6).reshape(2, 3)
    CheckpointState.save_checkpoint(state, tmp_path / "checkpoint")
    for again in (pickle.loads(pickle.dumps(state)), CheckpointState.load_checkpoint(tmp_path / "checkpoint")):
        assert again.parameters["w"].data.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert again.properties == {"epoch": 4}
        assert not again.parameters["running"].requires_grad


def test_what_training_has_made_infinite_is_not_written(state, tmp_path):
    state.parameters["w"] = np.full((2, 3), np.inf)
    with pytest.raises(ConvergenceError, match="w"):
        CheckpointState.save_checkpoint(state, tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("data", "message"), [(None, "X is None; an array was expected"),
                                               ([[1], [1, 2]], "X has rows of 1 to 2 elements, where all")])
def test_arrays_of_users(data, message):
    with pytest.raises(DataError, match=message):
        to_array(data, "X")

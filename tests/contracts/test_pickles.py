"""Pickles and copies of all that users hold: a training goes on, bit for bit, in another process as well."""

import copy
import pickle

import cloudpickle
import numpy as np
import pytest
from models import data, mlp
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from ortpartial import (
    BaseLearningLoss,
    LearningRateAdam,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    TrainingSession,
    load,
    op,
    to_training_info,
)

COPIES = pytest.mark.parametrize("copied", [
    lambda v: pickle.loads(pickle.dumps(v)), lambda v: pickle.loads(cloudpickle.dumps(v)), copy.copy, copy.deepcopy,
], ids=["pickle", "cloudpickle", "copy", "deepcopy"])


class LogCosh(BaseLearningLoss):
    """A class of a notebook, whose module is no file."""

    def __call__(self, y, t):
        return op.Log(op.Cosh(y - t))


LogCosh.__module__ = "__main__"


def optimizer(**settings):
    settings = {"learning_rate": LearningRateAdam(0.01), "max_iter": 2, "random_state": 0, **settings}
    return OrtGradientForwardBackwardOptimizer(mlp(), **settings)


@COPIES
@pytest.mark.parametrize("engine", ["step", pytest.param("agent", marks=pytest.mark.agent)])
def test_forward_and_backward(copied, engine):
    X, y, _ = data()
    first = OrtGradientForwardBackward(mlp(), engine=engine)
    first.set_state([2 * w for w in first.get_state()])
    second = copied(first)
    assert repr(second) == repr(first)
    assert second.engine_reason_ == first.engine_reason_

    def gradients(function):
        outputs, state = function.forward(X)
        return [*outputs, *function.backward([outputs[0] - y], state)[0].values()]

    expected = gradients(first)
    for computed in (gradients(second), gradients(first)):
        for a, b in zip(computed, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        second.set_state([0 * w for w in second.get_state()])


@COPIES
def test_a_session_of_a_stored_training(copied):
    """Of three shapes of batches, the first two of which have steps of their own."""
    X, y, _ = data(12)
    first = TrainingSession(to_training_info(optimizer()))

    def train(session):
        for rows in (slice(5), slice(7), slice(12)):
            losses = session.step({"x": X[rows], "y_target": y[rows]})["loss"]
        return [losses, *session.state.values()]

    train(first)
    second = copied(first)
    assert repr(second) == repr(first)
    for a, b in zip(train(second), train(first), strict=True):
        np.testing.assert_array_equal(a, b)
    second.initialize()
    assert all((a != b).any() for a, b in zip(second.state.values(), first.state.values(), strict=True))


@pytest.mark.parametrize("loss", [LogCosh(), lambda y, t: np.square(y - t)], ids=["class", "function"])
def test_losses_of_a_notebook(loss):
    """A training that goes on from what cloudpickle writes, as joblib does."""
    X, y, _ = data()
    first = optimizer(learning_loss=loss).fit(X, y)
    held = cloudpickle.dumps(first)
    second = pickle.loads(held)
    for trained in (first, second):
        trained.partial_fit(X, y)
    for a, b in zip(first.get_state(), second.get_state(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert copy.deepcopy(first).learning_loss == first.learning_loss == clone(first).learning_loss


def test_a_model_is_shared_by_copies():
    model = load(mlp())
    assert clone(OrtGradientForwardBackwardOptimizer(model)).get_params()["model"] is model


def test_processes_of_joblib():
    X, y, _ = data(40)
    scores = [cross_val_score(optimizer(learning_loss=LogCosh()), X, y, cv=2, n_jobs=n) for n in (None, 2)]
    np.testing.assert_array_equal(*scores)
    search = GridSearchCV(OrtGradientForwardBackwardOptimizer(load(mlp()), max_iter=2, random_state=0),
                          {"learning_loss": [lambda y, t: abs(y - t), "huber"], "learning_rate": [0.01, "Adam"]}, cv=2)
    found = [clone(search).set_params(n_jobs=n).fit(X, y).cv_results_["mean_test_score"] for n in (None, 2)]
    np.testing.assert_array_equal(*found)

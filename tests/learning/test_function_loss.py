"""A loss given as a Python function: the loss that a class with the same formula is."""

import copy
import functools
import pickle

import cloudpickle
import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.graph import op, variable
from ortpartial.learning import FunctionLearningLoss, SquareLearningLoss, resolve_loss
from ortpartial.testing import evaluate


def square(y, t):
    return (y - t) ** 2


def test_loss_and_gradient_are_those_of_a_class():
    feeds = dict(zip("yt", np.random.default_rng(0).normal(size=(2, 4, 3)), strict=True))
    pieces = resolve_loss(lambda y, t: np.square(y - t)), SquareLearningLoss()
    models = [piece.build_onnx_function(dtype="float64", shape=["N", 3], weighted=False) for piece in pieces]
    computed, expected = (evaluate(model, feeds) for model in models)
    for name in ("loss", "y_grad"):
        np.testing.assert_allclose(computed[name], expected[name], rtol=1e-14)


def test_equal_by_identity_of_the_function():
    loss = resolve_loss(square)
    assert loss == FunctionLearningLoss(square) == copy.deepcopy(loss) == pickle.loads(pickle.dumps(loss))
    assert hash(loss) == hash(FunctionLearningLoss(square))
    assert loss != FunctionLearningLoss(lambda y, t: square(y, t))
    assert resolve_loss(loss) is loss
    assert repr(loss) == "FunctionLearningLoss(square)"


def test_it_pickles_where_the_function_does():
    loss = FunctionLearningLoss(lambda y, t: op.Abs(y - t))
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(loss)
    again = pickle.loads(cloudpickle.dumps(loss))
    y, t = variable("y", "float32", [2]), variable("t", "float32", [2])
    assert again(y, t).node.op_type == "Abs"


def test_any_callable_of_two():
    class Loss:
        def __call__(self, y, t):
            return y - t

    for function in (functools.partial(square), np.subtract, Loss()):
        y, t = variable("y", "float32", [2]), variable("t", "float32", [2])
        assert resolve_loss(function)(y, t).shape == (2,)


def test_errors():
    with pytest.raises(SettingError, match="learning_loss: <lambda> does not take two arguments, the prediction and"):
        resolve_loss(lambda y: y)
    loss = resolve_loss(lambda y, t: 0.5)
    with pytest.raises(SettingError, match=r"learning_loss: <lambda> returned 0\.5, and not an expression of the pred"):
        loss.build_onnx_function(shape=["N", 1])

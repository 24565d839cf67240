"""The optimizer: fit, predict, score, copies, pickles, and errors of settings and models."""

import copy
import gc
import pickle
import re

import numpy as np
import onnx
import pytest
from models import assert_close, data, linear, mlp, two_in_two_out, weights_of
from sklearn.metrics import accuracy_score, r2_score
from trainings import ENGINES, X_VAL, Y_VAL, W, X, Y, optimizer, same

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError, DeviceError, GraphError, ModelError, NoGradientError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import SquareLearningLoss
from ortpartial.learning.optimizers import BaseLearningRate, LearningRateAdam, LearningRateSGD

# Forward and backward


@pytest.mark.parametrize("engine", ENGINES)
def test_forward_and_backward(engine):
    o = optimizer(linear(), engine=engine)
    with pytest.raises(DataError, match="There is no state to go back from; call forward with training=True"):
        o.backward([Y], None)
    (y,), none = o.fit(X, Y).forward(X)
    assert none is None
    np.testing.assert_allclose(y, o.predict(X), rtol=1e-6)
    before = o.get_state()
    _, state = o.forward([X], training=True)
    weights, inputs = o.backward([np.ones_like(Y)], state)
    np.testing.assert_allclose(weights["coef"], X.sum(0)[:, None], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(inputs["x"], np.tile(o.trained_coef_["coef"].T, (60, 1)), rtol=1e-6)
    assert all((a == b).all() for a, b in zip(before, o.get_state(), strict=True))


# Independence


@pytest.mark.parametrize("engine", ENGINES)
def test_two_optimizers_of_one_model(engine):
    """Trained in turn, batch by batch, they go the ways that they go alone."""
    model, rates = mlp(), [LearningRateAdam(0.01), LearningRateSGD(0.1)]
    pair = [optimizer(model, engine=engine, learning_rate=rate) for rate in rates]
    alone = [optimizer(mlp(), engine=engine, learning_rate=rate) for rate in rates]
    for _ in range(3):
        for o in pair:
            o.partial_fit(X, Y)
    for o, single in zip(pair, alone, strict=True):
        for _ in range(3):
            single.partial_fit(X, Y)
        assert same(o, single)
    del pair[0], o
    gc.collect()
    assert same(pair[0].partial_fit(X, Y), alone[1].partial_fit(X, Y))


def test_what_is_given_is_copied():
    state = [np.zeros((4, 1), np.float32), np.zeros(1, np.float32)]
    o = optimizer(linear())
    o.set_state(state)
    o.fit(X, Y)
    assert not any(a.any() for a in state)
    o.set_state(state)
    state[0][...] = 7
    assert not o.get_state()[0].any()


# Pickles


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_copies_go_on_bit_for_bit(engine, clone):
    a = optimizer(learning_rate=LearningRateAdam(0.01), engine=engine, warm_start=True).fit(X, Y, W, X_VAL, Y_VAL)
    b = clone(a)
    assert same(a, b)
    assert (b.engine_, b.validation_losses_, repr(b)) == (a.engine_, a.validation_losses_, repr(a))
    a.fit(X, Y, W)
    assert not same(a, b)
    assert same(a, b.fit(X, Y, W))
    assert (a.predict(X) == b.predict(X)).all()


def test_a_copy_taken_by_a_callback():
    copies = []
    a = optimizer(callbacks=[lambda o: copies.append(copy.deepcopy(o))]).fit(X, Y)
    b = copies[1]
    b.callbacks = ()
    for _ in range(3):
        b.partial_fit(X, Y)
    assert same(a, b)


def test_a_pickle_holds_nothing_derived():
    state = optimizer(checkpointing="auto").__getstate__()
    held = pickle.dumps(state)
    assert not [name for name in (b"ortpartial.graph", b"ortpartial.training", b"ortpartial.estimator") if name in held]
    o = optimizer()
    o.note = "of the user"
    assert pickle.loads(pickle.dumps(o)).note == "of the user"


def test_a_pickle_of_a_model_from_a_file(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(linear(300), path, save_as_external_data=True, location="weights", size_threshold=100)
    o = optimizer(path)
    (tmp_path / "weights").unlink()
    x = np.ones((20, 300), np.float32) / 300
    assert same(o.fit(x, x[:, :1]), pickle.loads(pickle.dumps(o)))


# Several inputs and outputs


@pytest.mark.parametrize("engine", ENGINES)
def test_several_inputs_and_outputs(engine, rng):
    inputs = {n: rng.normal(size=(40, 3)).astype(np.float32) for n in "abc"}
    read = {n: inputs[n] for n in "ab"}
    y = {"price": (inputs["a"] + inputs["b"])[:, :1], "kind": (inputs["a"][:, 0] > 0).astype(int)}
    losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
    o = optimizer(two_in_two_out(), learning_loss=losses, engine=engine, max_iter=30)
    assert o.weights_to_train == ["w", "v"]
    assert o.learning_loss["price"] == SquareLearningLoss()
    o.fit(read, y)
    assert o.train_losses_[-1] < o.train_losses_[0] / 2
    found = o.predict(read)
    assert list(found) == ["price", "kind"]
    assert all((found[n] == a).all() for n, a in o.predict(inputs).items())
    score = o.score(inputs, y)
    assert np.isclose(score["price"], r2_score(y["price"], found["price"]), rtol=1e-6)
    assert score["kind"] == accuracy_score(y["kind"], found["kind"].argmax(1))
    alone = optimizer(two_in_two_out(), learning_loss={"price": "square_error"}, engine=engine)
    assert (alone.weights_to_train, list(alone.trained_coef_)) == (["w"], ["w"])
    alone.set_state([o.trained_coef_["w"]])
    p = np.exp(found["kind"] - found["kind"].max(1, keepdims=True))
    nll = -np.log((p / p.sum(1, keepdims=True))[np.arange(40), y["kind"]])
    rows = alone.losses(read, {"price": y["price"]})
    np.testing.assert_allclose(rows, alone.losses(read, y["price"]))
    np.testing.assert_allclose(o.losses(read, y), rows + nll, rtol=1e-4)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ({"a": X[:, :3]}, {"price": Y, "kind": Y}, "Missing input: 'b'. Expected 'a', 'b'; got 'a'."),
        (X[:, :3], {"price": Y, "kind": Y}, "The model has the inputs 'a', 'b'; give a dict of arrays by name."),
        ({"a": X[:, :3], "b": X[:, :3], "z": Y}, {"price": Y, "kind": Y}, "Unknown input: 'z'. Expected 'a', 'b'"),
        ({"a": X[:, :3], "b": X[:, :3]}, Y, "The trained outputs are 'price', 'kind'; give y as a dict by name."),
        ({"a": X[:, :3], "b": X[:, :3]}, {"price": Y}, "Missing target: 'kind'. Expected 'price', 'kind'; got"),
        ({"a": X[:, :3], "b": X[:, :3]}, {"price": Y, "kind": Y, "z": Y}, "Unknown target: 'z'. Expected 'price'"),
        ({"a": X[:, :3], "b": X[:, :3]}, {"price": Y, "kind": Y}, "y['kind'] has shape (60, 1), where (60, 2)"),
    ],
)
def test_errors_of_several(X, y, message):
    o = optimizer(two_in_two_out(), learning_loss={"price": "square_error", "kind": "absolute_error"})
    with pytest.raises(DataError, match=re.escape(message)):
        o.fit(X, y)


# Settings and data


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_iter": 0}, SettingError, "max_iter is a whole number of at least 1, not 0."),
        ({"max_iter": 2.5}, SettingError, "max_iter is a whole number of at least 1, not 2.5."),
        ({"batch_size": True}, SettingError, "batch_size is a whole number of at least 1, not True."),
        ({"validation_every": 0}, SettingError, "validation_every is a share of max_iter or a number of epochs, not 0"),
        ({"validation_every": np.nan}, SettingError, "a share of max_iter or a number of epochs, not nan."),
        ({"validation_every": np.inf}, SettingError, "a share of max_iter or a number of epochs, not inf."),
        ({"validation_every": "all"}, SettingError, "a share of max_iter or a number of epochs, not 'all'."),
        ({"callbacks": [3]}, SettingError, "callbacks are functions of the optimizer, or objects with the "
         "hooks setup, on_fit_task_begin, on_fit_task_end and teardown; 3 is neither."),
        ({"callbacks": print}, SettingError,
         "callbacks is a sequence of callbacks, not <built-in function print>; give a list of them."),
        ({"random_state": -1}, SettingError, "random_state is None, a seed from 0 on or a Generator, not -1."),
        ({"random_state": "a"}, SettingError, "random_state is None, a seed from 0 on or a Generator, not 'a'."),
        ({"learning_rate": "Sgdd"}, SettingError, "learning_rate: 'Sgdd' is not known."),
        ({"learning_rate": -1.0}, SettingError, "LearningRateSGD: eta0 is -1.0"),
        ({"learning_loss": "cubic"}, SettingError, "learning_loss: 'cubic' is not known."),
        ({"learning_loss": {}}, SettingError, "learning_loss is an empty dict; name at least one output."),
        ({"learning_loss": {"z": "elastic"}}, SettingError, "names 'z', which is no output of the model: 'y'."),
        ({"learning_penalty": 0.1}, SettingError, "learning_penalty: 0.1 is a number"),
        ({"engine": "fast"}, SettingError, "engine='fast' is not known; leave it at 'auto'"),
        ({"device": "tpu"}, DeviceError, "The device is 'tpu'"),
        ({"weights_to_train": []}, ModelError, "weights_to_train is empty; name at least one weight"),
        ({"weights_to_train": ["W1", "W1"]}, ModelError, "The weight 'W1' is given twice."),
        ({"weights_to_train": ["W9"]}, ModelError,
         "The weight 'W9' is no initializer of the model; its float initializers are 'W1', 'b1', 'W2', 'b2'."),
    ],
)
def test_settings_errors(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        optimizer(**settings)


def model_of(f, *weights, shape=("N", 2)):
    """y = f(x, *weights)."""
    x = variable("x", "float32", shape)
    ws = [constant(np.ones(s, np.float32), hint=f"w{i}") for i, s in enumerate(weights)]
    return build([x], {"y": f(x, *ws)})


@pytest.mark.parametrize(
    ("model", "settings", "error", "message"),
    [
        (model_of(lambda x: x * x), {}, ModelError, "No float initializer of rank one or more leads to"),
        (model_of(lambda x, w: op.Floor(w) * x, (2,)), {"weights_to_train": "w0"}, ModelError,
         "No gradient leads from 'y' to the weight 'w0', so that it would not be trained; leave it out."),
        (model_of(lambda x, w, v: op.Cast(op.Cast(x @ w, to=7), to=1) @ v, (2, 2), (2, 1)),
         {"weights_to_train": ["w0", "w1"]}, ModelError, "No gradient leads from 'y' to the weight 'w0'"),
        (two_in_two_out(), {"learning_loss": {"kind": "log_loss"}, "weights_to_train": "w"}, ModelError,
         "No gradient leads from 'kind' to the weight 'w'"),
        (model_of(lambda x: op.Cast(x, to=7)), {}, SettingError,
         "The model has no output of real numbers that could be trained. The output 'y' is of int64."),
        (two_in_two_out(), {}, SettingError, "the outputs 'price', 'kind', 'unused', 3 of them of real"),
        (model_of(lambda x, w: op.Unique(x @ w, axis=0), (2, 2), shape=("N", 2)), {}, NoGradientError, "Unique has"),
        (model_of(lambda x, w: op.ReduceSum(x * w, keepdims=0), (2,)), {}, GraphError, "is a scalar"),
        (model_of(lambda x, w: x * w, (2,), shape=None), {}, GraphError, "The rank of"),
        (model_of(lambda x, w: w * w, (2,)), {}, ModelError, "The outputs 'y' depend on no input of the model."),
        (model_of(lambda x, w: x * w, (2,), shape=("N",)), {"learning_loss": "cross_entropy"}, GraphError,
         "scores of shape (N, C) or (N, C, d, ...) were expected"),
    ],
)
@pytest.mark.usefixtures("unruled")
def test_models_that_cannot_be_trained(model, settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        optimizer(model, **settings)


def test_float64():
    x, y, w = data(60, dtype="float64")
    o = optimizer(mlp(dtype="float64")).fit(x, y, w, x, y)
    assert {a.dtype for a in [*o.get_state(), o.predict(x), o.losses(x, y)]} == {np.dtype(np.float64)}
    assert_close(optimizer().fit(X, Y, W).trained_coef_, o.trained_coef_, 1e-5)


def test_a_trained_exponent():
    """Nothing that is built counts on the first content of a weight, not even where a square has a shortcut."""
    x = variable("x", "float32", ["N", 1])
    p = constant(np.array(2, np.float32), hint="p")
    o = optimizer(build([x], {"y": op.Pow(x, p)}), weights_to_train=["p"], shuffle=False, max_iter=1, batch_size=60)
    x, t, p = np.abs(X[:, :1].astype(float)) + 0.5, Y.astype(float), 2.0
    for _ in range(3):
        o.partial_fit(x, t)
        p -= 0.05 * (2 * (x**p - t) * x**p * np.log(x)).mean()
    assert np.isclose(o.trained_coef_["p"], p, rtol=1e-5)


def test_the_model_given_is_never_written_to():
    model = mlp()
    before = model.SerializeToString()
    o = optimizer(model, learning_rate=LearningRateSGD(0.1))
    o.fit(X, Y).set_state([a + 1 for a in o.get_state()])
    model.graph.initializer[0].raw_data = b"\0" * len(model.graph.initializer[0].raw_data)
    assert (weights_of(o.fit(X, Y).get_trained_onnx())["W1"] != 0).all()
    model = onnx.load_from_string(before)
    optimizer(model).fit(X, Y).get_trained_onnx().graph.initializer[0].raw_data = b""
    assert model.SerializeToString() == before


class Squared(BaseLearningRate):
    """A rate of the user's own with a mistake in it."""

    def update(self, w, g, *, k):
        return g @ g, ()


def unknown_activation():
    x = variable("X", "float32", ["T", "N", 2])
    w, r = (constant(np.ones((1, 12, n), np.float32), hint=name) for n, name in ((2, "w"), (3, "r")))
    y = op.LSTM(x, w, r, hidden_size=3, activations=["Sigmoid", "Foo", "Tanh"], n_outputs=1)[0]
    return build([x], {"y": y})


@pytest.mark.parametrize(
    ("model", "settings", "error", "message"),
    [
        (unknown_activation, {}, NoGradientError, "has the activation Foo"),
        (lambda: linear(3, 2), {"learning_rate": Squared(0.1)}, GraphError, "MatMul does not accept"),
    ],
)
def test_mistakes_are_errors_of_the_constructor(model, settings, error, message):
    """What a rule refuses, and what a piece of the user's own does wrong, is told before there are data."""
    with pytest.raises(error, match=message):
        OrtGradientForwardBackwardOptimizer(model(), engine="step", **settings)


def test_a_shallow_copy_shares_nothing():
    a = optimizer().fit(X, Y)
    b = copy.copy(a)
    b.partial_fit(X, Y)
    assert (len(a.train_losses_), len(a.history_), a.n_iter_) == (5, 5, 5)
    assert same(a.partial_fit(X, Y), b)

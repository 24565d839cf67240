"""onnxcustom's scripts after a change of the import: settings by position, schedules, states, logs, and cut models."""

import logging
import pickle
import re

import numpy as np
import pytest
from onnx.parser import parse_model
from sklearn.base import clone

from ortpartial.compat import onnxcustom as oc
from ortpartial.exceptions import SettingError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0]], np.float32) + 3).ravel()
INITS = ["coef", "intercept"]


@pytest.fixture
def onx():
    """Two columns to one, with a second output that is cut off, and initializers of both."""
    return parse_model('''<ir_version: 8, opset_import: ["": 15]>
        line (float[N, 2] X) => (float[N, 1] variable)
        <float[2, 1] coef = {0.5, 0.5}, float[1] intercept = {0}, float[1] unread = {0}>
        { y = MatMul (X, coef) variable = Add (y, intercept) }''')


@pytest.mark.parametrize(("name", "last"), [("invscaling", 0.01 / 1000**0.25), ("optimal", 0.01 * 22001 / 23000),
                                            ("constant", 0.01)])
def test_loop(name, last):
    values = list(oc.LearningRateSGD(learning_rate=name).loop())
    assert (len(values), values[0]) == (1000, 0.01)
    assert values[-1] == pytest.approx(last)
    rate = oc.LearningRateSGDNesterov(0.5, learning_rate=name, momentum=0.8)
    assert next(rate.loop()) == 0.5
    assert pickle.loads(pickle.dumps(rate)) == rate


def test_the_steps_are_those_of_the_loop(onx):
    """A training takes the step sizes that `loop` returns."""
    for rate in (oc.LearningRateSGD(0.1), oc.LearningRateSGD(0.1, alpha=0.5, learning_rate="optimal")):
        o = oc.OrtGradientForwardBackwardOptimizer(onx, INITS, "loss", 3, "SGDOptimizer", 20, rate).fit(X, Y)
        assert o.learning_rate_ == pytest.approx(list(rate.loop(10))[9], rel=1e-6)


def test_select():
    assert oc.select_rate("Nesterov", momentum=0.8) == oc.LearningRateSGDNesterov(momentum=0.8)
    assert oc.LearningRateSGD.select(0.5) == oc.select_rate(oc.LearningRateSGD(0.5))
    assert isinstance(oc.select_loss("square_error"), oc.SquareLearningLoss)
    assert isinstance(oc.select_penalty(None), oc.NoLearningPenalty)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: oc.LearningRateSGD(learning_rate="EXC"), "learning_rate is 'EXC'; 'invscaling', 'optimal', 'const"),
    (lambda: oc.select_rate("Adam"), "class_name is 'Adam'; a number, an object or one of 'SGD'"),
    (lambda: oc.NegLogLearningLoss(probability_function="tanh"), "probability_function is 'tanh'; 'sigmoid' was"),
    (lambda: oc.add_loss_output(None, penalty={"coef": {}}), "The penalty is a setting of the optimizer"),
])
def test_refusals(make, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        make()


def test_optimizer(onx, caplog, tmp_path):
    o = oc.OrtGradientForwardBackwardOptimizer(onx, INITS, "loss", 40, learning_rate=0.5, enable_logging=True)
    with pytest.raises(AttributeError, match="Method fit must be called before"):
        o.get_state()
    with caplog.at_level(logging.DEBUG, "onnxcustom"):
        assert o.fit(X, Y, np.ones((60, 1), np.float32), X_val=X, y_val=Y, use_numpy=True) is o
    assert "[OrtGradientForwardBackwardOptimizer._iteration] iteration=39 loss=" in caplog.text
    coef, intercept = o.get_state()
    np.testing.assert_allclose(np.append(coef, intercept), [1, -2, 3], atol=0.05)
    assert repr(o).startswith("OrtGradientForwardBackwardOptimizer(model_onnx='...', weights_to_train=['coef', ")
    assert "learning_rate='invscaling'" in repr(o)
    assert (len(o.train_losses_), len(o.validation_losses_)) == (40, 10)
    again = pickle.loads(pickle.dumps(o))
    np.testing.assert_array_equal(again.get_state()[0], coef)
    assert clone(o).get_params(deep=False).keys() == o.get_params(deep=False).keys()
    trained = o.get_trained_onnx(onx)
    assert [t.name for t in trained.graph.initializer] == [t.name for t in onx.graph.initializer]
    o.save_onnx_graph(tmp_path, prefix="a", suffix="b")
    assert list((tmp_path / "ab").glob("*.onnx"))


def test_momentum(onx):
    o = oc.OrtGradientForwardBackwardOptimizer(onx, INITS, max_iter=2, learning_loss=oc.NegLogLearningLoss(),
                                               learning_rate=oc.LearningRateSGDNesterov(1e-2))
    o.fit(X, (Y > 3).astype(np.int64).reshape(-1, 1))
    assert [len(s) for s in o.get_full_state(["weight", "grad"])] == [2, 3]  # the velocities, and the count of steps
    assert o.learning_loss.eps == 1e-5


def test_loss_in_the_graph(onx):
    model = oc.add_loss_output(onx, "elastic", weight_name="weight", l1_weight=0.1, l2_weight=0.9, output_index=0)
    assert [i.name for i in model.graph.input] == ["X", "variable_target", "weight"]
    o = oc.OrtGradientOptimizer(model, INITS, learning_rate=0.1, max_iter=3, sample_weight_name="weight")
    assert o.fit(X, Y, np.ones(60, np.float32), use_numpy=False).train_losses_[-1] < o.train_losses_[0]


def test_helpers(onx):
    assert list(oc.get_train_initializer(onx)) == INITS
    renamed = oc.onnx_rename_weights(onx)
    assert [t.name for t in renamed.graph.initializer] == ["I0_coef", "I1_intercept", "I2_unread"]
    assert list(oc.get_train_initializer(renamed)) == ["I0_coef", "I1_intercept"]
    changed = oc.replace_initializers_into_onnx(onx, {"coef": np.ones((2, 1), np.float32), "other": np.ones(1)})
    np.testing.assert_array_equal(oc.get_train_initializer(changed)["coef"], 1)


@pytest.mark.parametrize("index", [1, "probabilities"])
def test_log_loss_of_two_columns(index):
    """The probabilities of a classifier, and labels of one column: the mean of -log p of the label."""
    model = parse_model('''<ir_version: 8, opset_import: ["": 15]>
        classifier (float[N, 2] X) => (int64[N] label, float[N, 2] probabilities)
        <float[2, 2] coef = {0.1, 0.2, 0.3, -0.1}>
        { s = MatMul (X, coef) probabilities = Softmax <axis = 1> (s)
          label = ArgMax <axis = 1, keepdims = 0> (probabilities) }''')
    labels = (Y > 3).astype(np.int64)[:, np.newaxis]
    o = oc.OrtGradientOptimizer(oc.add_loss_output(model, "log", output_index=index), ["coef"], max_iter=1,
                                batch_size=60, learning_rate=oc.LearningRateSGD(1e-9)).fit(X, labels)
    z = X @ np.float32([[0.1, 0.2], [0.3, -0.1]])
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert o.train_losses_[0] == pytest.approx(-np.log(np.take_along_axis(p, labels, 1)).mean(), rel=1e-5)


def test_forward_and_backward_of_an_instance(onx):
    layer = oc.OrtGradientForwardBackward(onx, INITS)
    function, other = layer.new_instance(), layer.new_instance()

    class OrtValue:
        def numpy(self):
            return X

    (y,) = function.forward([OrtValue()], training=True)
    np.testing.assert_array_equal(y, function.forward([X])[0])
    dx, coef, intercept = function.backward([np.ones_like(y)])
    np.testing.assert_allclose(dx, np.full_like(X, 0.5))
    np.testing.assert_allclose(coef, X.sum(0)[:, np.newaxis], rtol=1e-5)
    assert intercept == 60
    for one in (function, other):
        with pytest.raises(SettingError, match=r"no forward pass to go back from; call forward\(inputs, training=True"):
            one.backward([np.ones_like(y)])

"""Outputs that cannot be trained, or end in an activation that their loss has in it."""

import re
import warnings

import numpy as np
import pytest
from onnx import TensorProto

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    SoftmaxCrossEntropyLearningLoss,
    build,
    constant,
    load,
    op,
    variable,
)
from ortpartial.exceptions import DataError, ModelError, SettingError


def model(f):
    x, w = variable("x", "float32", ["N", 3]), constant(np.ones((3, 2), np.float32), hint="w")
    return build([x], {"y": f(x @ w)})


@pytest.mark.parametrize(
    ("f", "loss", "operator"),
    [
        (lambda s: op.Softmax(s, axis=1), "softmax_cross_entropy", "Softmax"),
        (lambda s: op.Identity(op.Reshape(op.Softmax(s), [-1, 2])), "softmax_cross_entropy", "Softmax"),
        (lambda s: op.Sigmoid(s), "softmax_cross_entropy", "Sigmoid"),
        (lambda s: op.Sigmoid(s), "log_loss", "Sigmoid"),
        (lambda s: op.Exp(s), "poisson", "Exp"),
    ],
)
def test_an_activation_that_the_loss_has_in_it(f, loss, operator):
    with pytest.warns(UserWarning, match=rf"The output 'y' ends in {operator} .*LearningLoss applies "
                                         rf"{'Softmax' if 'cross' in loss else operator} itself, to raw") as w:
        OrtGradientForwardBackwardOptimizer(model(f), learning_loss=loss)
    assert [one.filename for one in w] == [__file__]
    # What it says to do works, and silences it.
    (code,) = re.findall(r"(ortpartial\.build\(.*\))\.$", str(w[0].message))
    cut = eval(code, {"ortpartial": __import__("ortpartial"), "m": load(model(f))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OrtGradientForwardBackwardOptimizer(cut, learning_loss=loss)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("f", "loss"),
    [
        (lambda s: op.LogSoftmax(s), "softmax_cross_entropy"),  # the same probabilities
        (lambda s: op.Softmax(s), "square_error"),
        (lambda s: op.Sigmoid(s) * 2, "log_loss"),
    ],
)
def test_no_warning(f, loss):
    OrtGradientForwardBackwardOptimizer(model(f), learning_loss=loss)


def test_logarithms_where_the_loss_takes_probabilities():
    loss = SoftmaxCrossEntropyLearningLoss(from_logits=False)
    with pytest.warns(UserWarning, match=r"ends in LogSoftmax .*, and from_logits=False takes probabilities, not "
                                         r"their logarithms: leave from_logits of SoftmaxCrossEntropy") as w:
        OrtGradientForwardBackwardOptimizer(model(op.LogSoftmax), learning_loss=loss)
    assert [one.filename for one in w] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        OrtGradientForwardBackwardOptimizer(model(op.Softmax), learning_loss=loss)


def test_argmax():
    with pytest.raises(SettingError, match=r"no output of real numbers that could be trained\. The output 'y' is an "
                                           r"index that ArgMax .* chooses, which has no gradient: train the scores"):
        OrtGradientForwardBackwardOptimizer(model(lambda s: op.ArgMax(s, axis=1)))
    with pytest.raises(SettingError, match=r"learning_loss names 'y'\. The output 'y' is an index"):
        OrtGradientForwardBackwardOptimizer(model(lambda s: op.ArgMax(s, axis=1)), learning_loss={"y": "log_loss"})
    with pytest.raises(ModelError, match=r"leads to the outputs 'y' differentiably: ArgMax .* has no gradient; train "
                                         r"an output before it\."):
        OrtGradientForwardBackwardOptimizer(model(lambda s: op.Cast(op.ArgMax(s), to=TensorProto.FLOAT)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.1}, "OrtGradientForwardBackwardOptimizer has no setting 'lr'; did you mean 'learning_rate'?"),
        ({"max_iters": 3}, "has no setting 'max_iters'; did you mean 'max_iter'?"),
        ({"loss": "mse"}, "has no setting 'loss'; did you mean 'learning_loss'?"),
        ({"optimizer": "adam"}, "has no setting 'optimizer'; did you mean 'learning_rate'?"),
        ({"n_jobs": 2}, "has no setting 'n_jobs'; its settings are model, weights_to_train, "),
    ],
)
def test_settings_of_other_libraries(settings, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        OrtGradientForwardBackwardOptimizer(model(op.Identity), **settings)
    with pytest.raises(TypeError, match=r"takes model and weights_to_train without a name, and 'mse' is one more; name "
                                        r"its setting, as in learning_loss="):
        OrtGradientForwardBackwardOptimizer(model(op.Identity), ["w"], "mse")


def test_validation_data_by_position():
    o, X, y = OrtGradientForwardBackwardOptimizer(model(op.Identity)), np.ones((9, 3)), np.ones((9, 2))
    with pytest.raises(DataError, match=r"third argument of fit is sample_weight; give validation data by name, as"):
        o.fit(X, y, X, y)
    with pytest.raises(DataError, match=r"sample_weight has shape \(9, 3\) and X has 9 rows, where one weight a row "
                                        r"or \(9, 2\), the shape of the target, was expected; give validation data "
                                        r"by name"):
        o.fit(X, y, X)


def test_sparse_targets():
    """Inputs may be sparse matrices, and nothing else."""
    sparse = pytest.importorskip("scipy.sparse")
    o, X, y = OrtGradientForwardBackwardOptimizer(model(op.Identity)), np.eye(3), np.eye(3)[:, :2]
    for args in ((X, sparse.csr_matrix(y)), (X, y, sparse.csr_matrix(np.ones((3, 1))))):
        with pytest.raises(DataError, match=r"(y|sample_weight) is a sparse matrix, .* expected; give its toarray\(\)"):
            o.fit(*args)

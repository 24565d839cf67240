"""Trainings of outputs that are probabilities, beside those of the graph that is cut before its last activation."""

import numpy as np
import pytest
from once import ON_BOTH
from onnx import TensorProto
from sklearn.metrics import log_loss

from ortpartial import (
    FocalLearningLoss,
    NegLogLearningLoss,
    OrtGradientForwardBackwardOptimizer,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
    build,
    constant,
    op,
    variable,
)
from ortpartial.exceptions import SettingError
from ortpartial.runtime import has_training

pytestmark = pytest.mark.filterwarnings("error")


def model(f, outputs=3, dtype="float32"):
    weights = np.random.default_rng(0).normal(size=(4, outputs)).astype(dtype)
    if f is tied:  # as skl2onnx writes a binary classifier
        weights = np.concatenate([-weights, weights], axis=1)
    x, w = variable("x", dtype, ["N", 4]), constant(weights, hint="w")
    b = constant(np.zeros(weights.shape[1], dtype), hint="b")
    return build([x], {"y": f(x @ w + b)})


def tied(z):
    return op.Identity(op.Sigmoid(z))


def train(graph, loss, X, t, engine="auto", **settings):
    optimizer = OrtGradientForwardBackwardOptimizer(graph, learning_loss=loss, learning_rate="Adam", max_iter=10,
                                                    batch_size=8, random_state=0, engine=engine, **settings)
    return optimizer.fit(X, t)


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(40, 4)).astype(np.float32)
    return X, rng.integers(0, 3, 40)


def soft(z):
    return op.Cast(op.Reshape(op.Softmax(z, axis=-1), [-1, 3]), to=TensorProto.FLOAT)


def normalized(z):
    p = op.Softmax(z, axis=1)
    total = op.ReduceL1(p, [1])
    return p / op.Where(op.Equal(total, 0), 1, total)


CLASSES = [SoftmaxCrossEntropyLearningLoss(), SoftmaxCrossEntropyLearningLoss(ignore_index=1, class_weight=[1, 2, 3]),
           SoftmaxCrossEntropyLearningLoss(label_smoothing=0.1), SoftmaxFocalLearningLoss()]
BINARY = [NegLogLearningLoss(), NegLogLearningLoss(label_smoothing=0.1, class_weight=[1, 2], pos_weight=3),
          FocalLearningLoss()]
ENGINES = ["epoch", "step", *["agent"] * has_training()]


@pytest.mark.parametrize("f", [soft, normalized])
@pytest.mark.parametrize("loss", CLASSES, ids=repr)
def test_softmax_is_trained_as_its_logits(rows, f, loss):
    X, t = rows
    cut, whole = train(model(op.Identity), loss, X, t), train(model(f), of_probabilities(loss), X, t)
    np.testing.assert_allclose(whole.get_state()[0], cut.get_state()[0], atol=1e-6)
    np.testing.assert_allclose(whole.losses(X, t), cut.losses(X, t), atol=1e-5)
    assert whole.score(X, t) == cut.score(X, t)


@pytest.mark.parametrize("loss", BINARY, ids=repr)
def test_sigmoid_is_trained_as_its_logits(rows, loss):
    X, t = rows[0], (rows[1] > 0).astype(np.float32)[:, None]
    cut, whole = train(model(op.Identity, 1), loss, X, t), train(model(op.Sigmoid, 1), of_probabilities(loss), X, t)
    np.testing.assert_allclose(whole.get_state()[0], cut.get_state()[0], atol=1e-6)
    assert whole.score(X, t) == cut.score(X, t)


def of_probabilities(loss):
    return type(loss)(**{**vars(loss), "from_logits": False})


@ON_BOTH
@pytest.mark.parametrize("engine", ENGINES)
def test_two_sigmoids(rows, engine):
    """Both columns go on to sum up to 1, and the weights are those of one-hot labels before Sigmoid."""
    X, t = rows[0], (rows[1] > 0).astype(np.int64)
    loss = SoftmaxCrossEntropyLearningLoss(from_logits=False)
    whole = train(model(tied, 1), loss, X, t, engine)
    p = whole.predict(X)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(whole.losses(X, t).mean(), log_loss(t, p[:, 1]), rtol=1e-5)
    graph = model(tied, 1)
    del graph.graph.node[-2:]
    graph.graph.node[-1].output[0] = "y"
    cut = train(graph, "log_loss", X, np.eye(2, dtype=np.float32)[t], engine)
    for a, b in zip(whole.get_state(), cut.get_state(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@ON_BOTH
@pytest.mark.parametrize("engine", ENGINES)
def test_extreme_logits(engine):
    """Where the probability of the label underflows, its logarithm and the gradient are exact."""
    X, graph = np.full((4, 4), 300, np.float32), model(op.Identity)
    t = OrtGradientForwardBackwardOptimizer(graph, learning_loss="cross_entropy").predict(X).argmin(axis=1)
    cut = train(graph, "cross_entropy", X, t, engine)
    whole = train(model(soft), SoftmaxCrossEntropyLearningLoss(from_logits=False), X, t, engine)
    assert whole.train_losses_[0] > 100
    np.testing.assert_allclose(whole.train_losses_, cut.train_losses_, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_probabilities(rng, dtype):
    """Of an output that shows no activation the loss is that of scikit-learn, and finite."""
    x = variable("x", dtype, ["N", 3])
    w = constant(np.ones(3, dtype), hint="w")
    graph = build([x], {"y": x * w})
    p = rng.dirichlet(np.ones(3), 20).astype(dtype)
    t = rng.integers(0, 3, 20)
    optimizer = OrtGradientForwardBackwardOptimizer(
        graph, learning_loss=SoftmaxCrossEntropyLearningLoss(from_logits=False), batch_size=20, max_iter=1)
    np.testing.assert_allclose(optimizer.losses(p, t).mean(), log_loss(t, p), rtol=1e-6)
    binary = OrtGradientForwardBackwardOptimizer(graph, learning_loss=NegLogLearningLoss(from_logits=False))
    q = (p > 0.4).astype(dtype)
    expected = np.mean([log_loss(a, b, labels=[0, 1]) for a, b in zip(q.T, p.T, strict=True)])
    np.testing.assert_allclose(binary.losses(p, q).mean(), expected, rtol=1e-5)
    zeros = np.eye(3, dtype=dtype)[t]
    assert np.isfinite(optimizer.losses(zeros, (t + 1) % 3)).all()
    assert np.isfinite(binary.losses(zeros, 1 - zeros)).all()
    assert np.isfinite(optimizer.fit(zeros, (t + 1) % 3).get_state()[0]).all()


def test_settings():
    with pytest.raises(SettingError, match="from_logits is True or False, not 'no'"):
        NegLogLearningLoss(from_logits="no")

"""Predictions, losses and scores of a trained model, and data that are refused."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from models import linear, mlp
from sklearn.metrics import accuracy_score, r2_score
from trainings import W, X, Y, linear_engine, optimizer, same

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import OrtGradientOptimizer
from ortpartial.estimator.predictor import Predictor
from ortpartial.estimator.validation import DataAdapter
from ortpartial.exceptions import DataError, SettingError
from ortpartial.execution import interruptible
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.penalties import ElasticLearningPenalty


def test_predict_does_not_disturb_training():
    a, b = optimizer(callbacks=[lambda o: o.predict(X[:1]) is None]), optimizer()
    assert same(a.fit(X, Y), b.fit(X, Y))


@pytest.mark.parametrize("weighted", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_score_is_r2(weighted, outputs):
    o, y = optimizer(mlp(outputs=outputs)), np.hstack([Y] * outputs) + X[:, :outputs]
    assert np.isclose(o.fit(X, y).score(X, y, weighted), r2_score(y, o.predict(X), sample_weight=weighted), rtol=1e-6)


def test_score_of_counts_is_that_of_their_mean():
    counts = np.random.default_rng(0).poisson(np.exp(X[:, :1]))
    o = optimizer(linear(), learning_loss="poisson", learning_rate="Adam", max_iter=30).fit(X, counts)
    assert np.isclose(o.score(X, counts), r2_score(counts, np.exp(o.predict(X))), rtol=1e-6)


@pytest.mark.parametrize("constant_prediction", [2.0, 3.0])
def test_score_of_a_constant(constant_prediction):
    o = optimizer(linear())
    o.set_state([np.zeros((4, 1)), [constant_prediction]])
    y = np.full((60, 1), 2.0)
    assert o.score(X, y) == r2_score(y, o.predict(X))


@pytest.mark.parametrize("weighted", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize(("loss", "outputs"), [("log_loss", 1), ("softmax_cross_entropy", 3)])
def test_score_is_accuracy(weighted, loss, outputs):
    labels = np.digitize(X[:, 0], [-0.5, 0.5]) if outputs > 1 else (X[:, 0] > 0).astype(int)
    o = optimizer(mlp(outputs=outputs), learning_loss=loss, learning_rate=0.3, max_iter=20).fit(X, labels)
    raw = o.predict(X)
    found = raw.argmax(1) if outputs > 1 else raw[:, 0] > 0
    assert np.isclose(o.score(X, labels, weighted), accuracy_score(labels, found, sample_weight=weighted))
    assert o.score(X, labels) > 0.8


def test_losses_are_one_per_row_in_order():
    o = optimizer(mlp(outputs=2), learning_penalty=ElasticLearningPenalty(l2=1))
    y = np.hstack([Y, Y])
    found = o.losses(X, y)
    assert found.shape == (60,)
    np.testing.assert_allclose(found, ((o.predict(X) - y) ** 2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(o.losses(X[::-1], y[::-1]), found[::-1], rtol=1e-5)


@pytest.mark.parametrize(
    ("X", "y", "more", "message"),
    [
        (X[:, :3], Y, {}, "Input 'x' has shape (60, 3), where (N, 4) was expected."),
        (np.where(X[7, 2] == X, np.nan, X), Y, {}, "Input 'x' contains NaN or infinity; impute or drop those rows."),
        (X.astype(str), Y, {}, "Input 'x' has dtype <U32, where float32 was expected; encode it as numbers first."),
        (X[:0], Y[:0], {}, "There are no rows in X."),
        (None, Y, {}, "Input 'x' is None, where an array of float32 was expected."),
        (X, Y[:59], {}, "y has 59 rows and X has 60."),
        (X, np.hstack([Y, Y]), {}, "y has shape (60, 2), where (60, 1) was expected, as the output has."),
        (X, np.where(Y[3] == Y, np.inf, Y), {}, "y contains NaN or infinity; impute or drop those rows."),
        (X, Y, {"sample_weight": W[:59]}, "sample_weight has shape (59,) and X has 60 rows"),
        (X, Y, {"sample_weight": -W}, "sample_weight has negative weights"),
        (X, Y, {"sample_weight": 0 * W}, "All sample weights are zero."),
        (X, Y, {"X_val": X}, "X_val and y_val belong together; y_val is missing."),
        (X, Y, {"X_val": X, "y_val": Y[:3]}, "y has 3 rows and X has 60."),
    ],
)
def test_data_errors(X, y, more, message):
    o = optimizer(linear())
    with pytest.raises(DataError, match=re.escape(message)):
        o.fit(X, y, **more)
    assert (o.n_iter_, o.train_losses_) == (0, [])


def test_labels_without_a_loss_for_them():
    """The default loss is for numbers, and a model of several scores has as many of them a row."""
    with pytest.raises(DataError, match="where these are labels of classes, the loss is 'softmax_cross_entropy'"):
        optimizer(mlp(outputs=3)).fit(X, np.arange(60) % 3)


@pytest.mark.parametrize(("label", "found"), [(3, "0 to 3"), (-1, "-1 to 2")])
def test_labels_out_of_range(label, found):
    labels = np.arange(60) % 3
    labels[5] = label
    o = optimizer(mlp(outputs=3), learning_loss="cross_entropy")
    with pytest.raises(DataError, match=f"y has labels from {found}, where 0 to 2 were expected"):
        o.fit(X, labels)
    with pytest.raises(DataError, match=r"y has numbers from 0.0 to 2.0, where labels of 0 and 1 were expected"):
        optimizer(learning_loss="log_loss").fit(X, np.arange(60) % 3)


def test_targets_of_one_axis():
    assert same(optimizer().fit(X, Y[:, 0]), optimizer().fit(X, Y))
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones(2, np.float32), hint="w")
    flat = build([x], {"y": op.ReduceSum(x * w, [1], keepdims=0)})
    assert same(optimizer(flat).fit(X[:, :2], Y), optimizer(flat).fit(X[:, :2], Y[:, 0]))


def test_sizes_that_the_model_does_not_declare():
    """(N,) against (N, 1) is never broadcast, even where nothing says that the output has one column."""
    x = variable("x", "float32", ["N", 4])
    w, sizes = constant(np.ones((4, 1), np.float32), hint="w"), variable("sizes", "float32", ["N", "M"])
    model = build([x, sizes], {"y": op.Reshape(x @ w, op.Concat(op.Shape(x, end=1), op.Shape(sizes, start=1), axis=0))})
    o = optimizer(model)
    feeds = {"x": X, "sizes": np.zeros((60, 1))}
    assert same(o.fit(feeds, Y), optimizer(linear(4), weights_to_train=["coef"]).fit(X, Y)) is False
    assert same(optimizer(model).fit(feeds, Y[:, 0]), o)
    with pytest.raises(DataError, match=re.escape("y has shape (60, 3), where (60, 1) was expected")):
        o.fit(feeds, np.hstack([Y] * 3))


def test_fixed_batch_dimension():
    o = optimizer(linear(rows=20), batch_size=20).fit(X, Y)
    free = optimizer(linear(), batch_size=20).fit(X, Y)
    assert same(o, free)
    np.testing.assert_allclose(o.predict(X), free.predict(X), rtol=1e-6)
    np.testing.assert_allclose(o.losses(X, Y), free.losses(X, Y), rtol=1e-5)
    with pytest.raises(DataError, match="Input 'x' has a fixed batch dimension of 20 and there are 30 rows"):
        o.predict(X[:30])
    with pytest.raises(DataError, match=r"a fixed batch dimension of 20 and batch_size is 10; .* or use batch_size=20"):
        optimizer(linear(rows=20)).fit(X, Y)


def test_threads_follow_from_the_rows():
    """One thread for a few rows of a small model, all for many; a session for each number, and no more."""
    o = optimizer()
    large = np.zeros((100_000, X.shape[1]), np.float32)
    for rows in (X[:1], X, large, large[:-1]):
        o.predict(rows)
    assert [session.threads for session in o._predictor.sessions.values()] == [1, None]


def test_a_predictor_without_an_optimizer():
    """It predicts with the weights that the engine holds at that time, in the sessions that it has."""
    engine = linear_engine()
    predictor = Predictor(engine.source.spec, engine, DataAdapter(engine.source.spec))
    engine.set("intercept", np.zeros(1))
    for slope in (0.0, 2.0):
        engine.set("coef", np.full((4, 1), slope))
        np.testing.assert_allclose(predictor.predict(X), slope * X.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
        expected = (slope * X.sum(1) - Y[:, 0]) ** 2
        np.testing.assert_allclose(predictor.losses(X, Y), expected, rtol=1e-4, atol=1e-4)
    assert len(predictor.sessions) == 2


def test_a_context_in_another_one_has_its_timeout():
    part = SimpleNamespace(engine=linear_engine())
    with interruptible(part, None):
        assert part.engine.local.options is None
    with interruptible(part, 60.0):
        options = part.engine.local.options
        with interruptible(part, 1e-9, always=True):
            assert part.engine.local.options is options
    assert part.engine.local.options is None


def test_evaluate():
    """The loss over all batches, and metrics by name, those of the setting by default."""
    o = optimizer(metrics=["r2", "train_mae"]).fit(X, Y, W)
    whole, batches = o.evaluate(X, Y, W), o.evaluate([(X[:20], Y[:20], W[:20]), (X[20:], Y[20:], W[20:])])
    assert whole.keys() == batches.keys() == {"loss", "r2", "mae"}
    np.testing.assert_allclose([*whole.values()], [*batches.values()], rtol=1e-6)
    np.testing.assert_allclose([whole["loss"], whole["r2"]], [np.average(o.losses(X, Y), weights=W), o.score(X, Y, W)],
                               rtol=1e-5)
    assert [*o.evaluate(X, Y, metrics=())] == ["loss"]
    with pytest.raises(DataError, match="y is missing; evaluate takes X and y, or batches of them"):
        o.evaluate(X)
    with pytest.raises(SettingError, match="'acc' is no metric; did you mean 'accuracy'"):
        o.evaluate(X, Y, metrics=["acc"])
    several = Optimizer(two_outputs(), learning_loss={"a": "square_error", "b": "square_error"}, metrics=["mse"])
    assert [*several.evaluate(X, {"a": Y, "b": Y})] == ["loss", "a_mse", "b_mse"]


def two_outputs():
    x, w = variable("x", "float32", ["N", 4]), constant(np.ones((4, 1), np.float32), hint="w")
    return build([x], {"a": x @ w, "b": x @ (2 * w)})


def test_probabilities_of_a_graph_with_its_loss():
    """Half of a probability is the threshold, where the graph ends in Sigmoid."""
    x, w = variable("x", "float32", ["N", 4]), constant(np.ones((4, 1), np.float32), hint="w")
    t, p = variable("t", "int64", ["N", 1]), op.Sigmoid(x @ w)
    o = OrtGradientOptimizer(build([x, t], {"p": p, "loss": op.ReduceMean((p - op.Cast(t, to=1)) ** 2, keepdims=0)}))
    labels = (Y > 0).astype(np.int64)
    expected = accuracy_score(labels, o.predict(X) > 0.5)
    assert np.isclose(o.score(X, labels), expected)
    assert np.isclose(o.evaluate(X, labels, metrics=["accuracy"])["accuracy"], expected)
    assert 0.3 < expected < 1

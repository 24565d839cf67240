"""Estimators as ONNX models: labels and probabilities as skl2onnx writes them, alone and in pipelines."""

import importlib
import sys

import numpy as np
import onnx
import pytest

pytest.importorskip("sklearn")
skl2onnx = pytest.importorskip("skl2onnx")

from onnx import numpy_helper  # noqa: E402
from skl2onnx.common.data_types import FloatTensorType  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from ortpartial import (  # noqa: E402
    OnnxClassifier,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    build,
    constant,
    load,
    op,
    variable,
)
from ortpartial.exceptions import ModelError  # noqa: E402
from ortpartial.learning import SquareLearningLoss  # noqa: E402
from ortpartial.runtime import Session  # noqa: E402
from ortpartial.subgraph import cond  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
TWO = (X[:, 0] > 0).astype(int)
THREE = TWO + (X[:, 1] > 0)
LABELS = {"two": TWO, "three": THREE, "words": np.array(["a", "b", "cat"])[THREE],
          "two words": np.array(["a", "b"])[TWO],
          "bools": TWO > 0, "floats": THREE.astype(float), "several": np.c_[TWO, THREE > 1].astype(int)}

pytestmark = pytest.mark.filterwarnings("ignore:The training reached max_iter")


def classifier(y=THREE, **settings):
    return OnnxClassifier(**{"hidden_layer_sizes": 4, "max_iter": 2, "random_state": 0, **settings}).fit(X, y)


def run(model, feed=X):
    """The outputs by name; dicts of a row as a list of numbers."""
    onnx.checker.check_model(model, full_check=True)
    return Session(model).run({model.graph.input[0].name: feed})


def kinds(model):
    return [(o.name, o.type.WhichOneof("value"), o.type.tensor_type.elem_type) for o in model.graph.output]


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions(kind, dtype):
    """The model predicts what the estimator does, in outputs of the names and types of a classifier of scikit-learn."""
    y, feed = LABELS[kind], X.astype(dtype)
    c = OnnxClassifier(max_iter=2, random_state=0).fit(feed, y)
    model = c.to_onnx(zipmap=False)
    outputs = run(model, feed)
    np.testing.assert_array_equal(outputs["label"], c.predict(feed))
    np.testing.assert_allclose(outputs["probabilities"], c.predict_proba(feed), rtol=1e-5, atol=1e-7)
    if kind != "several":
        expected = skl2onnx.to_onnx(LogisticRegression().fit(feed, y), X[:1], options={"zipmap": False})
        assert kinds(c.to_onnx(zipmap=False))[0] == kinds(expected)[0]
        assert [n for n, *_ in kinds(model)] == [n for n, *_ in kinds(expected)]


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("zipmap", [True, False, "columns"])
def test_pipeline(kind, zipmap):
    """skl2onnx writes a pipeline with the estimator as one with a classifier of its own."""
    y = LABELS[kind]
    pipeline = make_pipeline(StandardScaler(), OnnxClassifier(hidden_layer_sizes=4, max_iter=2, random_state=0))
    pipeline.fit(X, y)
    model = skl2onnx.to_onnx(pipeline, X[:1], options={"zipmap": zipmap}, target_opset=21)
    assert [node.op_type for node in model.graph.node][:2] == ["Scaler", "Gemm"]
    assert kinds(model) == kinds(pipeline[-1].to_onnx(zipmap=zipmap))
    outputs = run(model)
    np.testing.assert_array_equal(next(iter(outputs.values())), pipeline.predict(X))
    probabilities = list(outputs.values())[1:]
    if zipmap is True:
        rows = [list(row.values()) for row in probabilities[0]]
        assert list(probabilities[0][0]) == pipeline.classes_.tolist()
    else:
        rows = np.column_stack(probabilities)
    np.testing.assert_allclose(rows, pipeline.predict_proba(X), rtol=1e-5, atol=1e-6)
    if kind != "several":
        logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
        assert kinds(model) == kinds(skl2onnx.to_onnx(logistic, X[:1], options={"zipmap": zipmap}, target_opset=21))


@pytest.mark.parametrize("y", [X[:, 0], X[:, :2]], ids=["one", "two"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_regression(y, dtype):
    pipeline = make_pipeline(StandardScaler(), OnnxRegressor(max_iter=2, random_state=0)).fit(X.astype(dtype), y)
    outputs = run(skl2onnx.to_onnx(pipeline, X[:1], target_opset=21))["variable"]
    assert outputs.shape == (40, y.ndim)
    np.testing.assert_allclose(outputs, pipeline.predict(X).reshape(40, -1), rtol=1e-4, atol=1e-6)
    alone = run(pipeline[-1].to_onnx(), pipeline[0].transform(X.astype(dtype)))["variable"]
    np.testing.assert_allclose(alone, outputs, rtol=1e-4, atol=1e-6)


def test_mean_of_the_loss():
    """Counts are predicted, not their logarithms."""
    r = OnnxRegressor(loss="poisson", max_iter=2, random_state=0).fit(X, TWO)
    np.testing.assert_allclose(run(r.to_onnx())["variable"].ravel(), r.predict(X), rtol=1e-5)


@pytest.mark.parametrize(("y", "loss", "raw_scores"), [(TWO, "log_loss", True), (THREE, "log_loss", True),
                                                       (TWO, "hinge", False)])
def test_scores(y, loss, raw_scores):
    c = classifier(y, loss=loss)
    outputs = run(c.to_onnx(zipmap=False, raw_scores=raw_scores))
    scores = outputs["probabilities"]
    np.testing.assert_allclose(scores[:, 1] if y is TWO else scores, c.decision_function(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs["label"], c.predict(X))
    if raw_scores:
        model = skl2onnx.to_onnx(c, X[:1], options={"raw_scores": True, "zipmap": False}, target_opset=21)
        np.testing.assert_allclose(run(model)["probabilities"], scores, rtol=1e-5, atol=1e-6)


def test_other_options():
    """Numbers in place of labels, and the labels as an output."""
    c = classifier(LABELS["words"])
    model = skl2onnx.to_onnx(c, X[:1], options={"nocl": True, "zipmap": False}, target_opset=21)
    np.testing.assert_array_equal(c.classes_[run(model)["label"]], c.predict(X))
    model = skl2onnx.to_onnx(c, X[:1], options={"output_class_labels": True, "zipmap": False}, target_opset=21)
    assert run(model)["class_labels"].tolist() == ["a", "b", "cat"]


@pytest.mark.parametrize("opset", [15, 18, 20, 21, 22])
def test_target_opset(opset):
    """Older opsets have the operators of a network, too."""
    pipeline = make_pipeline(StandardScaler(), classifier())
    pipeline[0].fit(X)
    if opset > skl2onnx.__max_supported_opset__:
        pytest.skip(f"skl2onnx {skl2onnx.__version__} writes opsets up to {skl2onnx.__max_supported_opset__}")
    model = skl2onnx.to_onnx(pipeline, X[:1], options={"zipmap": False}, target_opset=opset)
    assert max(o.version for o in model.opset_import if not o.domain) <= opset
    np.testing.assert_array_equal(run(model)["label"], pipeline.predict(X))


def test_opset_that_is_too_old():
    r = OnnxRegressor(hidden_layer_sizes=2, activation="gelu", max_iter=1, random_state=0).fit(X, X[:, 0])
    with pytest.raises(ModelError, match="operator Gelu of the estimator is of opset 20, and target_opset is 17; give "
                                         "target_opset=21"):
        skl2onnx.to_onnx(r, X[:1], target_opset=17)


def test_names_of_two_estimators():
    """Weights of equal names get names of their own."""
    from sklearn.ensemble import VotingRegressor

    voting = VotingRegressor([("a", OnnxRegressor(max_iter=1, random_state=0)),
                              ("b", OnnxRegressor(max_iter=1, random_state=1))]).fit(X, X[:, 0])
    model = skl2onnx.to_onnx(voting, X[:1], target_opset=21)
    np.testing.assert_allclose(run(model)["variable"].ravel(), voting.predict(X), rtol=1e-4, atol=1e-6)


def branches(shape, n_outputs):
    """A model whose branches read weights of the graph around them."""
    x = variable("x", "float32", ["N", *shape])
    w, v = (constant(np.full((*shape, n_outputs), a, np.float32), hint=n) for n, a in (("w", 0.1), ("v", 0.2)))
    return build([x], {"y": cond(op.ReduceSum(x, keepdims=0) > 0, lambda: x @ w, lambda: x @ v)})


def images(shape, n_outputs):
    """A model of rows that are matrices."""
    x = variable("x", "float32", ["N", *shape])
    return build([x], {"y": op.Flatten(x) @ constant(np.full((6, n_outputs), 0.1, np.float32), hint="w")})


@pytest.mark.parametrize(("model", "feed"), [(branches, X), (images, X[:, :, None] * np.ones((1, 1, 2), np.float32))],
                         ids=["branches", "matrices"])
def test_models_of_the_user(model, feed):
    r = OnnxRegressor(model=model, max_iter=1, random_state=0).fit(feed, X[:, 0])
    written = skl2onnx.to_onnx(r, initial_types=[("w", FloatTensorType([None, *feed.shape[1:]]))], target_opset=21)
    np.testing.assert_allclose(run(written, feed)["variable"].ravel(), r.predict(feed), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(r.to_onnx(), feed)["variable"].ravel(), r.predict(feed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("zipmap", "output"), [(False, "probabilities"), (True, "output_probability")])
def test_trained_again(zipmap, output):
    """The scaler remains as it is, the weights train on, and the labels of the file remain strings."""
    pipeline = make_pipeline(StandardScaler(), OnnxClassifier(hidden_layer_sizes=8, max_iter=3, random_state=0))
    pipeline.fit(X, LABELS["words"])
    model = skl2onnx.to_onnx(pipeline, X[:1], options={"zipmap": zipmap}, target_opset=21)
    o = OrtGradientForwardBackwardOptimizer(model, learning_loss=SquareLearningLoss(), max_iter=60,
                                            learning_rate="Adam", random_state=0)
    assert o.weights_to_train == ["coef_0", "intercept_0", "coef_1", "intercept_1"]
    np.testing.assert_allclose(o.predict(X), pipeline.predict_proba(X), rtol=1e-5, atol=1e-6)
    before = pipeline.score(X, LABELS["words"])
    o.fit(X, np.eye(3, dtype=np.float32)[THREE])
    trained = o.get_trained_onnx()
    assert [node.op_type for node in trained.graph.node] == [node.op_type for node in model.graph.node]
    assert trained.graph.node[0] == model.graph.node[0]
    labels, probabilities = run(trained).values()
    if zipmap:
        probabilities = [[row[label] for label in ("a", "b", "cat")] for row in probabilities]
    np.testing.assert_allclose(probabilities, o.predict(X), rtol=1e-5, atol=1e-6)
    assert np.mean(labels == LABELS["words"]) > before
    assert list(load(trained).outputs)[1] == output
    changed = {t.name for t, s in zip(trained.graph.initializer, model.graph.initializer, strict=True)
               if not np.array_equal(numpy_helper.to_array(t), numpy_helper.to_array(s))}
    assert changed == set(o.weights_to_train)
    again = OnnxClassifier(model=trained, loss="square_error", max_iter=1).fit(X, LABELS["words"])
    assert load(again.to_onnx(zipmap=False)).outputs.keys() == {"label", "probabilities"}


def test_what_cannot_be_a_label():
    c = classifier(TWO)
    with pytest.raises(ValueError, match="zipmap is True, False or 'columns', not 'rows'"):
        c.to_onnx(zipmap="rows")
    c.classes_ = np.array([0.5, 1.5])
    with pytest.raises(ModelError, match=r"integers or strings, and \[0\.5, 1\.5\] are neither"):
        c.to_onnx()


def test_without_skl2onnx(monkeypatch):
    """The estimators are there, and write themselves."""
    from ortpartial.estimator import sklearn

    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    importlib.reload(sklearn)
    assert classifier().to_onnx().graph.output[0].name == "output_label"

"""Pipelines of scikit-learn: read, run, trained, and written in the operators of their file."""

import pickle
from collections import Counter

import numpy as np
import onnx
import pytest

from ortpartial import OnnxLayer, OrtGradientForwardBackwardOptimizer, load
from ortpartial.cli import main
from ortpartial.exceptions import ModelError
from ortpartial.graph import build
from ortpartial.runtime import Session
from ortpartial.training_info import TrainingSession, to_training_info

pytest.importorskip("sklearn")
skl2onnx = pytest.importorskip("skl2onnx")

from sklearn import (  # noqa: E402
    decomposition,
    ensemble,
    gaussian_process,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.pipeline import make_pipeline  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = (X @ RNG.normal(size=3)).astype(np.float32)
TWO = (Y > 0).astype(int)
THREE = TWO + (X[:, 0] > 0)
WORDS = np.array(["a", "b", "c"])[THREE]

REGRESSORS = {
    "scaler, linear": make_pipeline(preprocessing.StandardScaler(), linear_model.LinearRegression()),
    "imputer, ridge": make_pipeline(impute.SimpleImputer(), linear_model.Ridge()),
    "pca, polynomials, linear": make_pipeline(decomposition.PCA(2), preprocessing.PolynomialFeatures(2),
                                              linear_model.LinearRegression()),
    "svr, rbf": svm.SVR(), "svr, poly": svm.SVR(kernel="poly"), "svr, linear": svm.SVR(kernel="linear"),
    "svr, sigmoid": svm.SVR(kernel="sigmoid", C=0.1),
    "gaussian process": gaussian_process.GaussianProcessRegressor(alpha=1),
    "decision tree": tree.DecisionTreeRegressor(max_depth=4),
    "forest": ensemble.RandomForestRegressor(4, random_state=0),
    "extra trees": ensemble.ExtraTreesRegressor(4, random_state=0),
    "boosting": ensemble.GradientBoostingRegressor(n_estimators=4),
    "adaboost": ensemble.AdaBoostRegressor(n_estimators=3, random_state=0),
    "bagging": ensemble.BaggingRegressor(n_estimators=3, random_state=0),
}
CLASSIFIERS = {
    "scaler, normalizer, logistic": (make_pipeline(preprocessing.MinMaxScaler(), preprocessing.Normalizer(),
                                                   linear_model.LogisticRegression()), THREE),
    "logistic, words": (linear_model.LogisticRegression(), WORDS),
    "svc, 2": (svm.SVC(), TWO), "svc, 3": (svm.SVC(), THREE),
    "svc, probabilities, 2": (svm.SVC(probability=True, random_state=0), TWO),
    "svc, probabilities, words": (svm.SVC(probability=True, random_state=0), WORDS),
    "mlp": (neural_network.MLPClassifier(8, max_iter=5, random_state=0), THREE),
    "forest, 2": (ensemble.RandomForestClassifier(4, max_depth=3, random_state=0), TWO),
    "forest, words": (ensemble.RandomForestClassifier(4, max_depth=3, random_state=0), WORDS),
    "boosting, 2": (ensemble.GradientBoostingClassifier(n_estimators=3), TWO),
    "boosting, 3": (ensemble.GradientBoostingClassifier(n_estimators=3), THREE),
    "naive bayes": (naive_bayes.GaussianNB(), THREE),
    "neighbors": (neighbors.KNeighborsClassifier(), WORDS),
}

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::sklearn.exceptions.ConvergenceWarning"),
              pytest.mark.filterwarnings("ignore:The output '.*' ends in")]


def export(estimator, y, **options):
    return skl2onnx.to_onnx(estimator.fit(X, y), X[:1], target_opset={"": 17, "ai.onnx.ml": 3}, options=options or None)


def assert_close(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        if e.dtype.kind == "f":
            np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * np.abs(e).max())
        else:
            assert a.tolist() == e.tolist()


def check_file(model):
    """Check that a model is read as what its file computes."""
    loaded = load(model)
    runs = (Session(m).run({"X": X}).values() for m in (build(loaded.inputs, loaded.outputs), model))
    assert_close(*runs)


def check_training(model, y, learning_rate=1e-3):
    """Check that a model learns, and that the file of the trained one has its operators and predicts as it does."""
    name = model.graph.output[-1].name
    o = OrtGradientForwardBackwardOptimizer(model, learning_loss={name: "square_error"}, max_iter=10, batch_size=20,
                                            learning_rate=learning_rate, random_state=0).fit(X, y)
    assert o.train_losses_[-1] < o.train_losses_[0]
    trained = o.get_trained_onnx()
    assert Counter(n.op_type for n in trained.graph.node) == Counter(n.op_type for n in model.graph.node)
    assert len(trained.graph.initializer) == len(model.graph.initializer)
    predicted = o.predict(X)
    assert_close([Session(trained).run({"X": X})[name]], [predicted])
    again = OrtGradientForwardBackwardOptimizer(trained, learning_loss={name: "square_error"}, max_iter=1)
    assert_close([again.predict(X)], [predicted])
    return o


@pytest.mark.parametrize("name", REGRESSORS)
def test_regression(name):
    model = export(REGRESSORS[name], Y)
    check_file(model)
    check_training(model, 0.5 * Y[:, None] + 0.3, 1e-4 if name == "gaussian process" else 1e-3)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classification(name):
    estimator, y = CLASSIFIERS[name]
    model = export(estimator, y, zipmap=False)
    check_file(model)
    if name == "neighbors":  # The rows that it has seen lead to its outputs through their order alone.
        with pytest.raises(ModelError, match="No float initializer"):
            OrtGradientForwardBackwardOptimizer(model, learning_loss={"probabilities": "square_error"})
        return
    classes = len(np.unique(y))
    check_training(model, 0.8 * np.eye(classes, dtype=np.float32)[np.unique(y, return_inverse=True)[1]] + 0.05)


@pytest.mark.parametrize("estimator", [svm.OneClassSVM(), ensemble.IsolationForest(n_estimators=3, random_state=0)],
                         ids=["svm", "forest"])
def test_outliers(estimator):
    model = export(estimator, None)
    check_file(model)
    check_training(model, np.full((60, 1), 0.1, np.float32))


def test_decision_function():
    model = skl2onnx.to_onnx(svm.LinearSVC().fit(X, THREE), X[:1], target_opset={"": 17, "ai.onnx.ml": 3})
    check_file(model)
    check_training(model, np.eye(3, dtype=np.float32)[THREE])


@pytest.mark.parametrize(("estimator", "y"), [
    (linear_model.Ridge(), Y), (linear_model.LinearRegression(), Y), (linear_model.LogisticRegression(), TWO),
    (linear_model.LogisticRegression(), THREE), (linear_model.LogisticRegression(), WORDS),
    (neural_network.MLPClassifier(8, max_iter=5, random_state=0), THREE),
], ids=["ridge", "linear", "logistic, 2", "logistic, 3", "logistic, words", "mlp"])
def test_columns_of_several_inputs(estimator, y):
    """Text is encoded and numbers are scaled, each in an input of its own; what follows is trained."""
    compose = pytest.importorskip("sklearn.compose")
    pandas = pytest.importorskip("pandas")
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    table = pandas.DataFrame({"size": X[:, 0], "weight": X[:, 1], "color": WORDS})
    encoder = compose.ColumnTransformer([("numbers", preprocessing.StandardScaler(), ["size", "weight"]),
                                         ("words", preprocessing.OneHotEncoder(), ["color"])])
    pipeline = make_pipeline(encoder, estimator).fit(table, y)
    kinds = [(n, StringTensorType([None, 1]) if n == "color" else FloatTensorType([None, 1])) for n in table]
    options = {"zipmap": False} if y is not Y else None
    model = skl2onnx.to_onnx(pipeline, initial_types=kinds, target_opset={"": 17, "ai.onnx.ml": 3}, options=options)
    feeds = {n: table[[n]].to_numpy() for n in table}
    loaded = load(model)
    runs = [Session(m).run(feeds).values() for m in (build(loaded.inputs, loaded.outputs), model)]
    assert_close(*runs)
    name = model.graph.output[-1].name
    o = OrtGradientForwardBackwardOptimizer(model, learning_loss={name: "square_error"}, max_iter=5, random_state=0)
    predicted = pipeline.predict(table)[:, None] if y is Y else pipeline.predict_proba(table)
    np.testing.assert_allclose(o.predict(table), predicted, rtol=1e-4, atol=1e-5)
    target = 0.5 * Y[:, None] if y is Y else np.eye(len(set(y)), dtype=np.float32)[np.unique(y, return_inverse=True)[1]]
    o.fit(table, 0.8 * target + 0.05)
    assert o.train_losses_[-1] < o.train_losses_[0]
    trained = o.get_trained_onnx()
    assert [n.op_type for n in trained.graph.node] == [n.op_type for n in model.graph.node]
    assert [n for n in trained.graph.node if "Encoder" in n.op_type or n.op_type == "Scaler"] == \
        [n for n in model.graph.node if "Encoder" in n.op_type or n.op_type == "Scaler"]
    assert_close([Session(trained).run(feeds)[name]], [o.predict(feeds)])


def test_the_weights_of_a_pipeline(tmp_path):
    model = export(make_pipeline(preprocessing.StandardScaler(), linear_model.LinearRegression()), Y)
    o = OrtGradientForwardBackwardOptimizer(model, max_iter=2, random_state=0)
    assert o.weights_to_train == ["variable.coefficients", "variable.intercepts"]
    o.fit(X, Y).save(tmp_path / "m.onnx")
    saved = onnx.load(tmp_path / "m.onnx")
    assert [n.op_type for n in saved.graph.node] == ["Scaler", "LinearRegressor"]
    assert not saved.graph.initializer
    np.testing.assert_allclose(Session(saved).run({"X": X})["variable"], o.predict(X), rtol=1e-5, atol=1e-6)
    graphs = o.save_onnx_graph(bytes)
    assert [n.op_type for n in onnx.load_from_string(graphs["predict"]).graph.node] == ["Scaler", "LinearRegressor"]


HOLES = np.where(np.arange(180).reshape(60, 3) % 7 == 0, np.nan, X).astype(np.float32)


@pytest.mark.parametrize(("estimator", "y"), [
    (ensemble.HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5), Y),
    (ensemble.HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5), TWO),
    (ensemble.HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=5), THREE),
    (make_pipeline(preprocessing.StandardScaler(), impute.SimpleImputer(), linear_model.Ridge()), Y),
], ids=["boosting", "boosting, 2", "boosting, 3", "imputer"])
def test_missing_values(estimator, y, monkeypatch):
    # skl2onnx 1.20.0 hands over numbers of numpy and truth values, which onnx 1.23.2 refuses.
    make_node = skl2onnx.common._container.make_node
    monkeypatch.setattr(skl2onnx.common._container, "make_node", lambda *args, **attributes: make_node(
        *args, **{n: (a.astype(int) if a.dtype == bool else a).tolist() if (a := np.asarray(v)).ndim else v
                  for n, v in attributes.items()}))
    is_classifier = y is not Y
    model = skl2onnx.to_onnx(estimator.fit(HOLES, y), X[:1], target_opset={"": 17, "ai.onnx.ml": 3},
                             options={"zipmap": False} if is_classifier else None)
    loaded = load(model)
    runs = (Session(m).run({"X": HOLES}).values() for m in (build(loaded.inputs, loaded.outputs), model))
    assert_close(*runs)
    target = 0.8 * np.eye(len(np.unique(y)), dtype=np.float32)[y] + 0.05 if is_classifier else 0.5 * y[:, None]
    name = model.graph.output[-1].name
    o = OrtGradientForwardBackwardOptimizer(model, learning_loss={name: "square_error"}, max_iter=5,
                                            learning_rate=1e-3, random_state=0).fit(HOLES, target)
    assert o.train_losses_[-1] < o.train_losses_[0]


@pytest.mark.parametrize("name", ["scaler, linear", "svr, rbf", "forest"])
def test_whatever_holds_a_trained_pipeline(name):
    """Pickles, the training in a file, and a layer of torch."""
    torch = pytest.importorskip("torch")
    model, target = export(REGRESSORS[name], Y), 0.5 * Y[:, None] + 0.3
    o = check_training(model, target)
    copy = pickle.loads(pickle.dumps(o))
    assert_close([copy.partial_fit(X, target).predict(X)], [o.partial_fit(X, target).predict(X)])
    stored = TrainingSession(to_training_info(o)).inference_model()
    assert_close(Session(stored).run({"X": X}).values(), [o.predict(X)])
    layer = OnnxLayer(model)
    optimizer, x = torch.optim.SGD(layer.parameters(), 1e-3), torch.tensor(X)
    (layer(x) - torch.tensor(target)).square().sum().backward()
    optimizer.step()
    exported = layer.to_onnx()
    assert [n.op_type for n in exported.graph.node] == [n.op_type for n in model.graph.node]
    assert_close(Session(exported).run({"X": X}).values(), [layer(x).detach().numpy()])
    with pytest.raises(AssertionError):
        assert_close(Session(exported).run({"X": X}).values(), Session(model).run({"X": X}).values())


def test_zipmap(tmp_path, capsys):
    """Its output, a list of dicts in the file, is read and trained as the matrix that it is made of."""
    model = export(linear_model.LogisticRegression(), WORDS)
    target = 0.8 * np.eye(3, dtype=np.float32)[THREE] + 0.05
    o = OrtGradientForwardBackwardOptimizer(model, max_iter=10, learning_rate=1e-2, random_state=0)
    assert list(load(model).outputs) == ["output_label", "output_probability"]
    expected = linear_model.LogisticRegression().fit(X, WORDS).predict_proba(X)
    np.testing.assert_allclose(o.predict(X), expected, rtol=1e-4)
    o.fit(X, target).save(tmp_path / "m.onnx")
    assert o.train_losses_[-1] < o.train_losses_[0]
    trained = onnx.load(tmp_path / "m.onnx")
    assert [n.op_type for n in trained.graph.node] == [n.op_type for n in model.graph.node]
    assert list(trained.graph.output) == list(model.graph.output)
    rows = Session(trained).run({"X": X})["output_probability"]
    assert list(rows[0]) == ["a", "b", "c"]
    np.testing.assert_allclose([list(row.values()) for row in rows], o.predict(X), rtol=1e-4, atol=1e-6)
    assert main(["info", str(tmp_path / "m.onnx")]) == 0
    assert "output_probability  float32" in capsys.readouterr().out
    session = TrainingSession(to_training_info(o))
    before, _, after = (session.step({"X": X, "output_probability_target": target})["loss"] for _ in range(3))
    assert after < before

"""The common part of both estimators: models, settings by name, and their place among scikit-learn's tools."""

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from onnx import ModelProto
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ortpartial
from ortpartial import (
    LearningRateAdam,
    NoLearningPenalty,
    OnnxClassifier,
    OnnxRegressor,
    build,
    constant,
    load,
    op,
    plot_losses,
    variable,
)
from ortpartial.estimator.sklearn.networks import build_network
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, SettingError
from ortpartial.execution import shared_sessions
from ortpartial.runtime import Session

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def make_rows(rows=600):
    """Rows as of the houses of California: eight features, of which some interact, and noise."""
    rng = np.random.RandomState(0)
    A = rng.rand(rows, 8)
    return A, np.sin(5 * A[:, 0]) + A[:, 1] * A[:, 2] + A[:, 3] ** 2 + 0.1 * rng.randn(rows)


@pytest.mark.parametrize("load_rows", [load_diabetes, lambda return_X_y: make_rows(), load_breast_cancer, load_wine,
                                       load_digits], ids=["diabetes", "california", "cancer", "wine", "digits"])
def test_it_is_as_good_as_scikit_learn(load_rows):
    """The score on held-out rows, as the mean of four splits, is at most 0.01 below that of scikit-learn."""
    A, t = load_rows(return_X_y=True)
    A, is_number = StandardScaler().fit_transform(A), t.dtype.kind == "f"
    t = (t - t.mean()) / t.std() if is_number else t
    ours, linear, other = ((OnnxRegressor, SGDRegressor, MLPRegressor) if is_number else
                           (OnnxClassifier, SGDClassifier, MLPClassifier))
    network = {"hidden_layer_sizes": (30,), "max_iter": 40, "learning_rate_init": 0.005}
    scores = []
    for seed in range(4):
        A_train, A_test, t_train, t_test = train_test_split(A, t, random_state=seed)
        models = (linear(**({} if is_number else {"loss": "log_loss"}), random_state=seed), ours(random_state=seed),
                  other(**network, random_state=seed), ours(**network, random_state=seed))
        scores.append([m.fit(A_train, t_train).score(A_test, t_test) for m in models])
    sgd, our_linear, mlp, our_network = np.mean(scores, axis=0)
    assert our_linear > sgd - 0.01
    assert our_network > mlp - 0.01


@pytest.mark.parametrize(("kind", "targets"), [(OnnxRegressor, Y), (OnnxClassifier, NAMES)])
def test_a_diverged_loss_with_early_stopping(kind, targets):
    """The error is the one of the loss, a ValueError as in scikit-learn, and not the one of a score of NaN."""
    model = kind(hidden_layer_sizes=10, activation="identity", learning_rate="SGD", learning_rate_init=1e30,
                 max_iter=50, early_stopping=True, random_state=0)
    with pytest.raises(ValueError, match="Lower the rate, or scale X and y") as caught:
        model.fit(X, targets)
    assert isinstance(caught.value, ConvergenceError)
    with pytest.warns(ConvergenceWarning, match="Lower the rate"):
        model.set_params(settings={"raise_on_divergence": False}).fit(X, targets)


# -- models


def network(shape, n_outputs):
    return build_network([*shape, 6, n_outputs], np.random.RandomState(0))


def test_a_model_is_given_in_any_form(tmp_path):
    proto = network((4,), 3)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    path = tmp_path / "model.onnx"
    forms = [proto, proto.SerializeToString(), str(path), path, load(proto), network]
    fitted = [OnnxClassifier(model, max_iter=3, random_state=0).fit(X, NAMES) for model in forms]
    first = fitted[0].predict_proba(X)
    assert all(np.array_equal(m.predict_proba(X), first) for m in fitted)
    assert all(m.n_outputs_ == 3 for m in fitted)
    assert np.array_equal(fitted[0].fit(X, NAMES).predict_proba(X), first)  # Each fit starts from the model.
    assert fitted[0].model is proto


def test_a_model_of_rows_with_more_axes():
    x = variable("image", "float32", ["N", 1, 8, 8])
    kernel = constant(np.random.RandomState(0).randn(4, 1, 3, 3).astype(np.float32) * 0.3, hint="kernel")
    h = op.Flatten(op.MaxPool(op.Relu(op.Conv(x, kernel)), kernel_shape=[2, 2], strides=[2, 2]))
    model = build([x], {"y": h @ constant(np.zeros((36, 10), np.float32), hint="w")})
    images, digits = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8) / 16
    classifier = OnnxClassifier(model, learning_rate_init=0.01, max_iter=10, random_state=0).fit(images, digits)
    assert classifier.score(images, digits) > 0.9
    frozen = OnnxClassifier(model, weights_to_train="w", max_iter=1).fit(images, digits)
    assert list(frozen.optimizer_.trained_coef_) == ["w"]


def test_layers_belong_to_networks():
    with pytest.raises(AttributeError, match="trained_coef_"):
        _ = OnnxClassifier(network, max_iter=1).fit(X, Y).coefs_
    assert not hasattr(OnnxClassifier(), "coefs_")


def test_settings_of_the_optimizer():
    model = OnnxClassifier(settings={"timeout": 60.0}, engine="step", max_iter=1).fit(X, Y)
    assert (model.optimizer_.timeout, model.optimizer_.engine_) == (60.0, "step")
    seen = []
    OnnxClassifier(callbacks=[lambda o: seen.append(o.n_iter_) or len(seen) == 2]).fit(X, Y)
    assert seen == [1, 2]


def test_a_warm_start_goes_on():
    model = OnnxClassifier(max_iter=3, warm_start=True, random_state=0, tol=0).fit(X, NAMES)
    before, loss = model.optimizer_, model.loss_
    model.set_params(max_iter=2).fit(X, NAMES)
    assert model.optimizer_ is before
    assert (model.n_iter_, len(model.loss_curve_)) == (2, 5)
    assert model.loss_ < loss
    assert model.set_params(warm_start=False).fit(X, NAMES).optimizer_ is not before


# -- settings by name


def test_nested_settings():
    model = OnnxRegressor(learning_rate_init=0.5, loss="huber")
    params = model.get_params()
    assert params["learning_rate"] == "Adam"
    assert params["learning_rate__eta0"] == 0.5
    assert params["loss__delta"] == 1.0
    assert "learning_rate__eta0" not in model.get_params(deep=False)
    model.set_params(learning_rate__eta0=0.1, learning_rate__beta1=0.8, loss__delta=2.0, alpha=0.5)
    assert model.learning_rate == LearningRateAdam(0.1, beta1=0.8)
    assert (model.loss.delta, model.alpha) == (2.0, 0.5)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(SettingError, match="has no setting 'beta3'"):
        model.set_params(learning_rate__beta3=1)
    assert model.set_params(epochs=7).max_iter == 7
    for word, name in {"lr": "learning_rate", "criterion": "loss", "maxiter": "max_iter"}.items():
        with pytest.raises(ValueError, match=f"has no setting '{word}'; did you mean '{name}'"):
            model.set_params(**{word: 1})


@pytest.mark.parametrize(("name", "value"), [
    ("hidden_layer_sizes", (0,)), ("hidden_layer_sizes", -1), ("activation", "sigma"), ("dropout", 1.0), ("alpha", -1),
    ("max_iter", 0), ("batch_size", 0), ("tol", -1.0), ("validation_fraction", 0.0), ("dtype", "float16"),
    ("learning_rate", "Bdam"), ("learning_rate_init", 0.0), ("loss", "los"), ("random_state", "a"), ("model", "x.onnx"),
])
def test_a_wrong_setting_is_named_by_fit(name, value):
    model = OnnxRegressor().set_params(**{name: value})
    with pytest.raises((ValueError, OSError), match=name if name != "model" else "x.onnx"):
        model.fit(X, Y)
    assert isinstance(repr(model), str)


def test_a_number_is_the_step_size_of_the_default_optimizer():
    model = OnnxClassifier(learning_rate=0.003, max_iter=2, random_state=0).fit(X, NAMES)
    assert model.optimizer_.learning_rate == LearningRateAdam(0.003)
    same = OnnxClassifier(learning_rate_init=0.003, max_iter=2, random_state=0).fit(X, NAMES)
    assert model.loss_curve_ == same.loss_curve_
    model.set_params(learning_rate=0.5, warm_start=True).fit(X, NAMES)
    assert model.optimizer_.learning_rate == LearningRateAdam(0.5)


@pytest.mark.parametrize(("settings", "message"), [
    ({"learning_rate_init": 0.1, "learning_rate": LearningRateAdam(0.2)}, "learning_rate_init=0.1 is not read"),
    ({"learning_rate_init": 0.1, "learning_rate": 0.2}, "learning_rate=0.2 has a step size of its own"),
    ({"alpha": 0.1, "penalty": NoLearningPenalty()}, r"alpha=0.1 is not read beside penalty=\.\.\."),
    *(({name: value, "model": lambda shape, n: linear_model(*shape, n)}, f"{name}=.* is not read beside model=")
      for name, value in [("hidden_layer_sizes", 3), ("activation", "tanh"), ("dropout", 0.1), ("dtype", "float64")])])
def test_settings_that_nothing_reads(settings, message):
    with pytest.raises(SettingError, match=message):
        OnnxRegressor(**settings).fit(X, Y)
    model = OnnxRegressor(warm_start=True, max_iter=1, model=settings.get("model"), penalty=settings.get("penalty"),
                          learning_rate=settings.get("learning_rate", "Adam")).fit(X, Y)
    with pytest.raises(ValueError, match=f"{message}|has changed"):
        model.set_params(**settings).fit(X, Y)


def linear_model(n, outputs):
    return build([x := variable("x", "float32", ["N", n])], {"y": x @ constant(np.zeros((n, outputs), "f"), hint="w")})


@pytest.mark.parametrize(("settings", "message"), [
    ({"solver": "adam"}, "has no setting 'solver'; did you mean 'learning_rate'?"),
    ({"lr": 0.1}, "has no setting 'lr'; did you mean 'learning_rate'?"),
])
def test_words_of_others(settings, message):
    with pytest.raises(TypeError) as e:
        OnnxClassifier(**settings)
    assert str(e.value) == f"OnnxClassifier {message}"


@pytest.mark.parametrize("schedule", ["adaptive", "invscaling", "constant"])
def test_words_of_scikit_learn_for_schedules(schedule):
    """The message says what to write, and that trains."""
    with pytest.raises(SettingError, match="Did you mean") as e:
        OnnxClassifier(learning_rate=schedule, max_iter=1).fit(X, NAMES)
    advised = str(e.value).partition("Did you mean ")[2].partition("?")[0]
    rate = eval(advised, {"LearningRateSGD": ortpartial.LearningRateSGD})
    OnnxClassifier(learning_rate=rate, max_iter=1).fit(X, NAMES)


# -- among the tools of scikit-learn


def test_a_grid_search_over_a_pipeline_in_processes():
    pipeline = make_pipeline(StandardScaler(), OnnxClassifier(max_iter=10, random_state=0))
    grid = {"onnxclassifier__learning_rate__eta0": [1e-5, 0.1], "onnxclassifier__hidden_layer_sizes": [(), (5,)]}
    search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2).fit(X, NAMES)
    assert search.best_params_["onnxclassifier__learning_rate__eta0"] == 0.1
    assert search.best_score_ > 0.9
    assert (pickle.loads(pickle.dumps(search)).predict(X) == search.predict(X)).all()
    assert cross_val_score(search.best_estimator_, X, NAMES, cv=2).mean() == search.best_score_


def test_folds_compile_a_graph_once(monkeypatch):
    compiled = []
    monkeypatch.setattr(Session, "_load_supported", lambda self, model, options, make=Session._load_supported:
                        compiled.append(model.graph.name) or make(self, model, options))
    shared_sessions.clear()
    model = OnnxClassifier(hidden_layer_sizes=(6,), max_iter=2, class_weight="balanced")
    scores = cross_val_score(model, X, NAMES, cv=5)
    assert len(scores) == 5
    assert len(compiled) == 2  # the step, and the prediction
    cross_val_score(model.set_params(alpha=1.0), X, NAMES, cv=5)
    assert len(compiled) == 4
    alone = OnnxClassifier(hidden_layer_sizes=(6,), max_iter=2, random_state=0).fit(X, NAMES)
    shared_sessions.clear()
    assert np.array_equal(clone(alone).fit(X, NAMES).predict_proba(X), alone.predict_proba(X))


def test_calibration():
    model = make_pipeline(StandardScaler(), OnnxClassifier(learning_rate_init=0.1, random_state=0))
    calibrated = CalibratedClassifierCV(model, cv=2).fit(X, NAMES)
    assert calibrated.score(X, NAMES) > 0.9
    assert calibrated.predict_proba(X).shape == (150, 3)


@pytest.mark.parametrize("model", [None, network((4,), 3), network], ids=["linear", "proto", "function"])
def test_pickles_go_on(model):
    hidden = (5,) if model is None else ()
    first = OnnxClassifier(model, hidden_layer_sizes=hidden, max_iter=3, random_state=0).fit(X, NAMES)
    again = pickle.loads(pickle.dumps(first))
    assert np.array_equal(again.predict_proba(X), first.predict_proba(X))
    assert np.array_equal(again.partial_fit(X, NAMES).predict_proba(X), first.partial_fit(X, NAMES).predict_proba(X))
    assert type(again.model) is type(model)


@pytest.mark.parametrize("model", [None, network((4,), 3).SerializeToString()], ids=["network", "bytes"])
def test_skops(model):
    skops = pytest.importorskip("skops.io")
    first = make_pipeline(StandardScaler(), OnnxClassifier(model, max_iter=3, random_state=0)).fit(X, NAMES)
    data = skops.dumps(first)
    untrusted = skops.get_untrusted_types(data=data)
    assert all(name.startswith("ortpartial.") for name in untrusted)
    again = skops.loads(data, trusted=untrusted)
    assert np.array_equal(again.predict_proba(X), first.predict_proba(X))
    assert np.array_equal(again[-1].partial_fit(X, NAMES).predict_proba(X),
                          first[-1].partial_fit(X, NAMES).predict_proba(X))


def test_metadata_routing():
    weight = np.where(Y == 0, 10.0, 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        model = OnnxClassifier(max_iter=3, random_state=0).set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = make_pipeline(scaler, model).fit(X, NAMES, sample_weight=weight)
    alone = clone(model).fit(StandardScaler().fit_transform(X), NAMES, sample_weight=weight)
    assert np.array_equal(pipeline[-1].coefs_[0], alone.coefs_[0])


def test_names_of_features():
    table = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    model = OnnxClassifier(max_iter=1).fit(table, NAMES)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert model.n_features_in_ == 4
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["b", "a", "c", "d"]])
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["a", "b", "c"]])


def test_the_card_in_a_notebook():
    model = OnnxClassifier(hidden_layer_sizes=(5,), max_iter=1).fit(X, NAMES)
    html = model._repr_html_()
    assert "hidden_layer_sizes" in html
    shown = ("n_iter_", "loss_", "classes_", "optimizer_") if sklearn.__version__ >= "1.9" else ()
    assert all(name in html for name in shown)


def test_the_model_can_be_exported():
    trained = OnnxRegressor(max_iter=2).fit(X, Y).optimizer_.get_trained_onnx()
    assert isinstance(trained, ModelProto)
    assert [i.name for i in trained.graph.input] == ["X"]


@pytest.mark.parametrize(("settings", "says"), [
    ({"class_weight": "ballanced"}, "The 'class_weight' parameter of OnnxClassifier must be"),
    ({"callbacks": print}, "The 'callbacks' parameter of OnnxClassifier must be"),
    ({"hidden_layer_sizes": (2.5,)}, r"hidden_layer_sizes must be whole numbers > 0, got \[2.5\]"),
    ({"model": lambda shape, n_outputs: build_network([4, 2], np.random.RandomState(0))},
     "y has 3 classes, and the model has scores for 2"),
])
def test_what_is_wrong_is_said_in_terms_of_the_estimator(settings, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        OnnxClassifier(**settings).fit(X, NAMES)


@pytest.mark.skipif(not hasattr(sklearn.base.BaseEstimator, "_get_params_html"), reason="scikit-learn before 1.7")
def test_the_card_marks_the_settings_that_are_not_the_defaults():
    params = OnnxClassifier(alpha=0.5)._get_params_html()
    assert tuple(params.non_default) == ("alpha",)
    assert "learning_rate__eta0" not in params


def column(model, name):
    return [record[name] for record in model.history_ if name in record]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("kind", [OnnxClassifier, OnnxRegressor])
def test_validation_data(kind, stops):
    """They are not trained; early stopping takes them in place of a share of the rows."""
    y = NAMES if kind is OnnxClassifier else Y
    settings = {"max_iter": 5, "random_state": 0, "early_stopping": stops}
    model = kind(**settings).fit(X[::2], y[::2], X_val=X[1::2], y_val=y[1::2])
    plain = kind(**{**settings, "early_stopping": False}).fit(X[::2], y[::2])
    if not stops:
        assert all(np.array_equal(a, b) for a, b in zip(model.coefs_, plain.coefs_, strict=True))
    assert len(column(model, "validation_loss")) == 5
    assert np.isclose(model.evaluate(X[1::2], y[1::2])["loss"], min(
        column(model, "validation_loss")) if stops else column(model, "validation_loss")[-1], rtol=0.2)
    if stops:
        assert model.validation_scores_ == column(model, "val_score")
        assert model.best_validation_score_ == model.score(X[1::2], y[1::2]) == max(model.validation_scores_)


def test_metrics_of_estimators():
    """Labels of a classifier are compared as numbers, and weights count."""
    metrics = ["accuracy", "f1_macro", "train_log_loss"]
    model = OnnxClassifier(max_iter=3, random_state=0, metrics=metrics, early_stopping=True).fit(X, NAMES)
    record = model.history_[-1]
    assert record["val_accuracy"] == record["val_score"] == model.validation_scores_[-1]
    assert {"val_f1_macro", "log_loss"} <= record.keys()
    assert model.evaluate(X, NAMES)["accuracy"] == model.score(X, NAMES)
    assert [*model.evaluate(X, NAMES, np.ones(150), metrics=["roc_auc"])] == ["loss", "roc_auc"]
    assert pickle.loads(pickle.dumps(model)).history_ == model.history_
    assert clone(model).metrics == [*clone(model.optimizer_).metrics] == metrics
    weights = np.arange(150.0)
    model = OnnxRegressor(max_iter=2, random_state=0, metrics=["r2"]).fit(X, Y, weights)
    assert np.isclose(column(model, "r2")[-1], model.score(X, Y, weights))


def test_the_best_epoch_of_early_stopping_is_marked():
    from matplotlib import pyplot as plt

    model = OnnxClassifier(max_iter=6, random_state=0, early_stopping=True).fit(X, NAMES)
    ax = plot_losses(model)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    scores = model.validation_scores_
    assert texts[:2] == ["training", "validation"]
    assert texts[2] == f"best: score {max(scores):.4g} in epoch {scores.index(max(scores)) + 1}"
    plt.close(ax.figure)


@pytest.mark.parametrize("validation", [{"X_val": X}, {"y_val": Y}, {"X_val": 0.2}, {"X_val": 0.2, "y_val": Y}])
def test_validation_data_belong_together(validation):
    with pytest.raises(ValueError, match=r"X_val and y_val are rows and their targets.*validation_fraction"):
        OnnxClassifier().fit(X, Y, **validation)
    with pytest.raises(ValueError, match=r"y has the labels \[7\]"):
        OnnxClassifier().fit(X, Y, X_val=X, y_val=np.full(150, 7))

"""Callbacks of scikit-learn 1.9, which are told of epochs and get estimators that are fitted so far."""

import warnings

import numpy as np
import pytest
from once import ON_BOTH
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ortpartial import OnnxClassifier, OnnxRegressor

callback = pytest.importorskip("sklearn.callback", exc_type=ImportError)
X, Y = load_iris(return_X_y=True)

pytestmark = [ON_BOTH, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]


class Recorder:
    """Keeps what it is told, and the estimators that it gets; stops after some epochs."""

    def __init__(self, epochs=None):
        self.calls, self.fitted, self.epochs = [], [], epochs

    def setup(self, estimator, context):
        self.calls.append(("setup", context.task_name))

    def on_fit_task_begin(self, estimator, context, *, X, y):
        self.calls.append(("begin", context.task_name, context.task_id, len(X), sorted(set(y))))

    def on_fit_task_end(self, estimator, context, *, fitted_estimator, metadata):
        self.calls.append(("end", context.task_name, context.task_id))
        self.fitted.append(fitted_estimator)
        return context.task_id + 1 == self.epochs

    def teardown(self, estimator, context):
        self.calls.append(("teardown", context.task_name))


def test_the_tasks_are_a_fit_and_its_epochs():
    recorder = Recorder(epochs=2)
    model = OnnxClassifier(max_iter=9, random_state=0).set_callbacks(recorder).fit(X, Y)
    assert model.n_iter_ == 2
    data = (150, [0, 1, 2])
    assert recorder.calls == [
        ("setup", "fit"), ("begin", "fit", 0, *data), ("begin", "epoch", 0, *data), ("end", "epoch", 0),
        ("begin", "epoch", 1, *data), ("end", "epoch", 1), ("end", "fit", 0), ("teardown", "fit")]
    # The estimators that it got remain as they were.
    first, second, last = (e.predict_proba(X) for e in recorder.fitted)
    assert not np.allclose(first, second)
    assert np.array_equal(second, last)
    assert np.array_equal(last, model.predict_proba(X))


def test_the_setting_takes_the_same_objects():
    recorder = Recorder()
    model = OnnxRegressor(max_iter=2, callbacks=[recorder]).fit(X, Y)
    assert [c[:2] for c in recorder.calls] == [
        ("setup", "fit"), ("begin", "fit"), *[("begin", "epoch"), ("end", "epoch")] * 2, ("end", "fit"),
        ("teardown", "fit")]
    assert np.array_equal(recorder.fitted[-1].predict(X), model.predict(X))
    assert [record["epoch"] for record in model.history_] == [1, 2]


def test_a_callback_is_torn_down_after_an_error():
    recorder = Recorder()
    with pytest.raises(ValueError, match="hidden_layer_sizes must be whole numbers > 0"):
        OnnxRegressor(hidden_layer_sizes=(0,)).set_callbacks(recorder).fit(X, Y)
    model = OnnxRegressor(learning_rate="SGD", learning_rate_init=1e9, n_iter_no_change=np.inf)
    with pytest.raises(ArithmeticError), np.errstate(all="ignore"):
        model.set_callbacks(recorder).fit(X, Y)
    assert recorder.calls[-1] == ("teardown", "fit")


def test_a_scoring_monitor_alone():
    monitor = callback.ScoringMonitor(scoring="accuracy")
    model = OnnxClassifier(max_iter=3, random_state=0).set_callbacks(monitor).fit(X, Y, sample_weight=np.ones(150))
    scores = [row["accuracy"] for row in monitor.get_logs().data]
    assert len(scores) == 4
    assert scores[0] == model.score(X, Y)


def test_callbacks_inside_a_grid_search(capsys):
    pytest.importorskip("rich")
    monitor = callback.ScoringMonitor(scoring="accuracy")
    pipeline = make_pipeline(StandardScaler(), OnnxClassifier(max_iter=2).set_callbacks(monitor))
    search = GridSearchCV(pipeline, {"onnxclassifier__alpha": [0, 1]}, cv=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", category=UserWarning)
        warnings.simplefilter("ignore", category=RuntimeWarning)
        warnings.filterwarnings("ignore", message=".*reached max_iter")
        search.set_callbacks(callback.ProgressBar(max_propagation_depth=None)).fit(X, Y)
    shown = capsys.readouterr().out
    assert shown.count("OnnxClassifier - fit") >= 5
    assert len(monitor.get_logs().data) == 5 * (1 + 2)  # of each fit the fit and two epochs

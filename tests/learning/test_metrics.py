"""Metrics agree with scikit-learn's, also with weights, missing classes and several columns."""

import numpy as np
import pytest
import sklearn.metrics as theirs

from ortpartial.exceptions import SettingError
from ortpartial.learning import Metric, check_metrics, resolve_metric

AVERAGES = ("binary", "macro", "micro", "weighted")


def compute(name, t, y, w=None):
    return resolve_metric(name)(t, y, np.ones(len(t)) if w is None else w)


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 3)])
@pytest.mark.parametrize("name", ["r2", "mse", "rmse", "mae", "mean_squared_error"])
def test_quantities(rng, name, shape):
    t, w = rng.normal(size=shape), rng.uniform(0.1, 2, 20)
    y = t + 0.3 * rng.normal(size=shape)
    squared = theirs.mean_squared_error(t, y, sample_weight=w, multioutput="raw_values")
    expected = {"r2": theirs.r2_score(t, y, sample_weight=w), "mse": squared.mean(), "rmse": np.sqrt(squared).mean(),
                "mae": theirs.mean_absolute_error(t, y, sample_weight=w), "mean_squared_error": squared.mean()}
    assert np.isclose(compute(name, t, y, w), expected[name], rtol=1e-12)


def test_quantities_of_weighted_elements(rng):
    """A column counts by its own weights, and one without any does not."""
    t, y, w = rng.normal(size=(20, 3)), rng.normal(size=(20, 3)), rng.uniform(0.1, 2, (20, 3))
    w[:, 1] = 0
    each = [theirs.r2_score(t[:, i], y[:, i], sample_weight=w[:, i]) for i in (0, 2)]
    assert np.isclose(compute("r2", t, y, w), np.mean(each))
    assert np.isclose(compute("r2", t.reshape(20, 3, 1), y.reshape(20, 3, 1), w.reshape(20, 3, 1)), np.mean(each))


@pytest.mark.parametrize("prediction", [2.0, 3.0])
def test_r2_of_a_constant(prediction):
    t, y = np.full((5, 1), 2.0), np.full((5, 1), prediction)
    assert compute("r2", t, y) == theirs.r2_score(t, y)


#: Labels and predictions: some classes are never predicted, never true, or neither.
LABELS = {
    "two": lambda rng: (rng.integers(0, 2, 40), rng.integers(0, 2, 40)),
    "many": lambda rng: (rng.integers(0, 5, 40), rng.integers(0, 5, 40)),
    "missing": lambda rng: (rng.choice([0, 2, 3], 40), rng.choice([2, 4, 7], 40)),
    "one": lambda rng: (np.ones(10, int), np.ones(10, int)),
    "columns": lambda rng: (rng.integers(0, 2, (40, 3)), rng.integers(0, 2, (40, 3))),
    "empty column": lambda rng: (rng.integers(0, 2, (40, 2)) * [1, 0], rng.integers(0, 2, (40, 2)) * [1, 0]),
}


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("share", ["precision", "recall", "f1"])
@pytest.mark.parametrize("case", LABELS)
def test_shares(rng, case, share, average):
    t, y = LABELS[case](rng)
    w = rng.uniform(0.1, 2, len(t))
    name = share if average == "binary" else f"{share}_{average}"
    if average == "binary" and case not in ("two", "one"):
        with pytest.raises(SettingError, match=f"{share!r} is that of the label 1 beside 0.*'{share}_macro'"):
            compute(name, t, y, w)
        return
    expected = getattr(theirs, f"{share}_score")(t, y, average=average, sample_weight=w, zero_division=0)
    assert np.isclose(compute(name, t, y, w), expected, rtol=1e-12)


def test_accuracies(rng):
    t, y = LABELS["many"](rng)
    w = rng.uniform(0.1, 2, len(t))
    assert np.isclose(compute("accuracy", t, y, w), theirs.accuracy_score(t, y, sample_weight=w))
    t, y = LABELS["missing"](rng)
    y[:20] = t[:20]
    with pytest.warns(UserWarning, match="y_pred contains classes"):
        expected = theirs.balanced_accuracy_score(t, y, sample_weight=w)
    assert np.isclose(compute("balanced_accuracy", t, y, w), expected)
    t, y = LABELS["columns"](rng)
    assert np.isclose(compute("accuracy", t, y), (t == y).mean())


def test_roc_auc(rng):
    """With equal scores, weights, several classes and several columns; NaN where there is one label."""
    t, w = rng.integers(0, 2, 60), rng.uniform(0.1, 2, 60)
    p = np.round(rng.uniform(size=60) * 0.7 + 0.3 * t, 1)
    expected = theirs.roc_auc_score(t, p, sample_weight=w)
    assert np.isclose(compute("roc_auc", t, p, w), expected)
    assert np.isclose(compute("roc_auc", t, np.column_stack([1 - p, p]), w), expected)
    labels, columns = rng.integers(0, 3, 60), rng.integers(0, 2, (60, 2))
    each = rng.dirichlet(np.ones(3), 60)
    assert np.isclose(compute("roc_auc", labels, each), theirs.roc_auc_score(labels, each, multi_class="ovr"))
    assert np.isclose(compute("roc_auc", columns, each[:, :2], w),
                      theirs.roc_auc_score(columns, each[:, :2], sample_weight=w))
    assert np.isnan(compute("roc_auc", np.ones(4), np.arange(4)))


def test_names():
    assert resolve_metric("train_f1_macro") == Metric(resolve_metric("f1_macro").function, "f1_macro", "labels", True,
                                                      "training")
    assert [resolve_metric(n).larger_is_better for n in ("accuracy", "r2", "mse", "perplexity", "log_loss", "f1")] == [
        True, True, False, False, False, True]
    assert Metric(theirs.mean_absolute_error).larger_is_better is False
    assert Metric(theirs.matthews_corrcoef).name == "matthews_corrcoef"
    assert check_metrics("accuracy") == ("accuracy",)


def test_weights_are_given_where_they_are_taken(rng):
    t, w = np.arange(4.0), np.arange(4.0)
    functions = [lambda t, y: t.sum(), lambda t, y, w: w.sum(), lambda t, y, sample_weight=None: sample_weight.sum(),
                 lambda t, y, k=3: k, theirs.mean_absolute_error]
    assert [Metric(f, "f")(t, t, w) for f in functions] == [6, 6, 6, 3, 0]


@pytest.mark.parametrize(("metrics", "message"), [
    (["acuracy"], "'acuracy' is no metric; did you mean 'accuracy'?"),
    (["AUC"], "did you mean 'roc_auc'"),
    (["top_k_accuracy"], "did you mean 'top_5_accuracy'"),
    (["nothing like it"], "'nothing like it' is no metric. There are accuracy, "),
    ([3], "metrics holds 3; names, functions"),
    ([Metric], "metrics holds <class"),
    (3, "metrics is 3; a list"),
    (["mse", "mse"], "metrics has 'mse' twice"),
    ([Metric(max, "loss")], "'loss' is another column of history_"),
])
def test_unknown(metrics, message):
    with pytest.raises(SettingError) as e:
        check_metrics(metrics)
    assert message in str(e.value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"function": 3}, "function is 3, a function of targets"),
    ({"of": "scores"}, "of is 'prediction', .* or 'output', not 'scores'"),
    ({"rows": "test"}, "rows is 'validation' or 'training', not 'test'"),
])
def test_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        Metric(**{"function": max, **settings})


def test_no_number():
    with pytest.raises(SettingError, match=r"'f' is ndarray of shape \(2,\), one number was expected"):
        Metric(lambda t, y: np.ones(2), "f")(np.ones(2), np.ones(2), np.ones(2))

"""A run of MLflow; a module that records its calls takes the place of the package, which is not installed here."""

import sys
from types import SimpleNamespace

import pytest
from sklearn.linear_model import LogisticRegression
from trainings import X_VAL, Y_VAL, X, Y, optimizer

from ortpartial.callbacks import MLflow
from ortpartial.exceptions import RuntimeMissingError


@pytest.fixture
def calls(monkeypatch):
    """What mlflow is told."""
    calls = []

    def record(name):
        return lambda *arguments, **settings: calls.append((name, *arguments, settings))

    module = SimpleNamespace(active_run=lambda: None, **{
        n: record(n) for n in ("start_run", "log_params", "log_metrics", "end_run")})
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return calls


def test_a_run(calls):
    callback = MLflow("first", tags={"by": "me"})
    o = optimizer(max_iter=2, callbacks=[callback], validation_every=2).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    start, params, first, second, end = calls
    assert start == ("start_run", {"run_name": "first", "tags": {"by": "me"}})
    assert params[0] == "log_params"
    assert params[1]["max_iter"] == "2"
    assert params[1].keys() & {"model", "callbacks"} == set()
    metrics = [{n: v for n, v in r.items() if n != "epoch"} for r in o.history_]
    assert first == ("log_metrics", metrics[0], {"step": 1})
    assert second == ("log_metrics", metrics[1], {"step": 2})
    assert end == ("end_run", "FINISHED", {})


def test_a_run_that_fails(calls):
    with pytest.raises(ZeroDivisionError):
        optimizer(callbacks=[MLflow(), lambda o: 1 / 0]).fit(X, Y)
    assert calls[-1] == ("end_run", "FAILED", {})


def test_a_run_that_is_active_goes_on(calls):
    sys.modules["mlflow"].active_run = lambda: "a run"
    optimizer(max_iter=1, callbacks=[MLflow()]).fit(X, Y)
    assert [c[0] for c in calls] == ["log_params", "log_metrics"]


@pytest.mark.sklearn_callbacks
def test_an_estimator_of_scikit_learn(calls):
    model = LogisticRegression().set_callbacks(MLflow(scoring="accuracy")).fit(X, Y[:, 0] > 0)
    last = [c for c in calls if c[0] == "log_metrics"][-1]
    assert (last[1]["score"], last[2]) == (model.score(X, Y[:, 0] > 0), {"step": model.n_iter_[0]})


def test_without_mlflow():
    with pytest.raises(RuntimeMissingError, match="needs the package mlflow: pip install mlflow"):
        MLflow()

"""A step size that is reduced on a plateau: the rates are those of torch."""

import re

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from trainings import X_VAL, Y_VAL, X, Y, optimizer

from ortpartial.callbacks import ReduceOnPlateau
from ortpartial.exceptions import SettingError

LOSSES = [3, 2, 1, 1, 1, 0.99995, 0.8, 0.8, 0.8, 0.8, -1, -1, -1, -1.00001, -2, -2, -2, -2, -2, -2, -2, -2]


class Fake(ReduceOnPlateau):
    """Monitors values of its own."""

    def _make_record(self, run, *arguments):
        record = super()._make_record(run, *arguments)
        return {**record, "fake": LOSSES[record["epoch"] - 1]}


@pytest.mark.parametrize(
    "settings",
    [{"patience": 0}, {"patience": 1, "factor": 0.5}, {"patience": 1, "cooldown": 2}, {"patience": 1, "min_rate": 0.01},
     {"mode": "max", "patience": 1}, {"threshold_mode": "abs", "threshold": 0.3, "patience": 1},
     {"mode": "max", "threshold_mode": "abs", "threshold": 0.3, "patience": 2}, {"patience": 0, "epsilon": 1e-3}],
    ids=repr)
def test_the_rates_are_those_of_torch(settings):
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.05)
    names = {"min_rate": "min_lr", "epsilon": "eps"}
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, **{names.get(n, n): v for n, v in settings.items()})
    expected = []
    for loss in LOSSES:
        expected.append(sgd.param_groups[0]["lr"])
        sgd.step()
        scheduler.step(loss)
    callback = Fake("fake", **settings)
    o = optimizer(max_iter=len(LOSSES), callbacks=[callback]).fit(X, Y)
    assert [r["learning_rate"] for r in o.history_] == pytest.approx(expected)
    changes = [i for i in range(1, len(LOSSES)) if expected[i] != expected[i - 1]]
    assert callback.reductions_[: len(changes)] == changes


def test_nothing_is_compiled_later(monkeypatch):
    from ortpartial.runtime import Session

    opened = []
    callback = ReduceOnPlateau("loss", patience=0, threshold=0.99)
    o = optimizer(max_iter=6, callbacks=[callback, lambda o: monkeypatch.setattr(
        Session, "_open", lambda *_: opened.append(1)) if o.n_iter_ == 1 else None]).fit(X, Y)
    assert opened == []
    assert len(callback.reductions_) == 5
    assert o.history_[-1]["learning_rate"] == pytest.approx(0.05 * 0.1**4)


def test_a_training_that_is_not_reduced_is_as_without():
    o = optimizer(callbacks=[ReduceOnPlateau()]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    expected = optimizer().fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert o.train_losses_ == pytest.approx(expected.train_losses_, rel=1e-6)


def test_a_score():
    callback = ReduceOnPlateau(scoring="r2", X_val=X_VAL, y_val=Y_VAL, mode="max", patience=0, threshold=10)
    optimizer(callbacks=[callback]).fit(X, Y)
    assert callback.reductions_


@pytest.mark.sklearn_callbacks
def test_errors():
    with pytest.raises(SettingError, match="an optimizer of ortpartial; LogisticRegression has none"):
        LogisticRegression().set_callbacks(ReduceOnPlateau("score")).fit(X, Y[:, 0] > 0)


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"factor": 2}, SettingError, "factor is 2, a finite number more than 0 and less than 1 was expected."),
    ({"mode": "low"}, SettingError, "mode is 'auto', 'min' or 'max', not 'low'."),
    ({"threshold_mode": None}, SettingError, "threshold_mode is 'rel' or 'abs', not None."),
    ({"patience": "3"}, SettingError, "ReduceOnPlateau: patience is '3', a whole number at least 0 was expected."),
    ({"cooldown": -1}, SettingError, "cooldown is -1, a whole number at least 0 was expected."),
    ({"threshold": "a"}, SettingError, "threshold is 'a', a finite number at least 0 was expected."),
    ({"min_lr": 0.1}, TypeError, "ReduceOnPlateau has no setting 'min_lr'; did you mean 'min_rate'?"),
    ({"min_delta": 0.1}, TypeError, "ReduceOnPlateau has no setting 'min_delta'; did you mean 'threshold'?")])
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        ReduceOnPlateau(**settings)


def test_no_validation():
    """It never waits for a loss that does not come."""
    with pytest.raises(SettingError, match=r"ReduceOnPlateau monitors 'validation_loss', and an epoch has .*; give"):
        optimizer(callbacks=[ReduceOnPlateau()]).fit(X, Y)


def test_a_metric_that_grows_is_no_plateau():
    """By default, what is better follows from the metric."""
    settings = {"metrics": ["r2"], "validation_every": 1, "max_iter": 6}
    for mode, reductions in (("auto", []), ("min", [2, 3, 4, 5, 6])):
        callback = ReduceOnPlateau("val_r2", patience=0, mode=mode)
        o = optimizer(callbacks=[callback], **settings).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
        numbers = [record["val_r2"] for record in o.history_[:2]]
        assert numbers[1] > numbers[0]
        assert callback.reductions_ == reductions

"""Early stopping: the end of a fit, and the restored weights, in our estimators and in scikit-learn's."""

import copy
import pickle
import re

import numpy as np
import pytest
from models import images, mlp, net
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale
from trainings import ENGINES, X_VAL, Y_VAL, X, Y, optimizer, same

from ortpartial import callbacks
from ortpartial.callbacks import Checkpoint, EarlyStopping
from ortpartial.exceptions import SettingError

Z, LABELS = load_breast_cancer(return_X_y=True)
Z = scale(Z)


class Fake(EarlyStopping):
    """Monitors values of its own."""

    def __init__(self, values, **settings):
        super().__init__("loss", **settings)
        self.values = values

    def _make_record(self, run, *arguments):
        record = super()._make_record(run, *arguments)
        return {**record, "loss": self.values[record["epoch"] - 1]}


@pytest.mark.parametrize(
    ("values", "settings", "stopped", "best"),
    [
        ([3, 2, 1, 1, 1], {"patience": 2}, 5, 3),
        ([3, 2, 1, 2, 0.5, 1, 1, 1], {"patience": 3}, 8, 5),
        ([3, 2.9, 2.8, 2.7], {"patience": 3, "min_delta": 0.5}, 4, 1),
        ([3, 2.9, 2.8, 2.4, 2], {"patience": 3, "min_delta": 0.25}, None, 5),
        ([1, 2, 3, 3, 3], {"patience": 2, "mode": "max"}, 5, 3),
        ([3, 2, 1, 0.9, 0.8], {"patience": 3, "baseline": 2.5}, None, 5),
        ([3, 2.9, 2.8, 2.7], {"patience": 3, "baseline": 1}, 3, 3),
        ([np.nan, 2, np.nan, np.nan], {"patience": 3}, None, 2),
    ],
)
def test_when_it_stops(values, settings, stopped, best):
    """As Keras' callback with the same settings."""
    stopping = Fake(values, **settings)
    o = optimizer(max_iter=len(values), callbacks=[stopping]).fit(X, Y)
    assert (stopping.stopped_epoch_, stopping.best_epoch_) == (stopped, best)
    assert o.n_iter_ == (stopped or len(values))
    np.testing.assert_equal(stopping.best_, values[best - 1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("settings", [{}, {"averaging": "ema", "use_average": True}], ids=["weights", "averages"])
def test_it_restores_the_best(engine, settings):
    stopping = Fake([3, 2, 1, 2, 3, 4], patience=3)
    o = optimizer(engine=engine, max_iter=6, callbacks=[stopping], **settings).fit(X, Y)
    expected = optimizer(engine=engine, max_iter=3, **settings).fit(X, Y)
    assert o.n_iter_ == 6
    assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))
    np.testing.assert_array_equal(o.predict(X), expected.predict(X))
    stopping = Fake([3, 2, 1, 2, 3, 4], patience=3, restore_best=False)
    assert same(optimizer(engine=engine, max_iter=6, callbacks=[stopping], **settings).fit(X, Y),
                optimizer(engine=engine, max_iter=6, **settings).fit(X, Y))


def test_running_statistics_are_restored():
    stopping, (rows, targets) = Fake([1, 2, 3], patience=2), images(30)
    settings = {"train_mode": True, "engine": "step"}
    o = optimizer(net(), max_iter=3, callbacks=[stopping], **settings).fit(rows, targets)
    expected = optimizer(net(), max_iter=1, **settings).fit(rows, targets)
    np.testing.assert_array_equal(o.predict(rows), expected.predict(rows))


def test_validation_losses_at_some_epochs():
    stopping = EarlyStopping(patience=2, min_delta=10)
    o = optimizer(max_iter=50, validation_every=3, callbacks=[stopping]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert (o.n_iter_, stopping.best_epoch_, stopping.best_) == (6, 3, o.validation_losses_[0])
    expected = optimizer(max_iter=3).fit(X, Y)
    assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))


@pytest.mark.parametrize(("every", "patience", "expected"), [(1, 4, 5), (2, 4, 6), (3, 4, 9), (3, 3, 6), (5, 3, 10)])
def test_patience_is_in_epochs(every, patience, expected):
    """Also where values are rarer: the first value that is so many epochs behind the best one ends the fit."""
    stopping = EarlyStopping(patience=patience, min_delta=10)
    o = optimizer(max_iter=50, validation_every=every, callbacks=[stopping]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert (o.n_iter_, stopping.best_epoch_) == (expected, every)


def test_every_epoch_validates_by_default():
    stopping = EarlyStopping(patience=3, min_delta=10)
    assert optimizer(max_iter=100, callbacks=[stopping]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL).n_iter_ == 4


def test_a_former_pickle_counts_values():
    stopping = EarlyStopping(patience=2, min_delta=10)
    del stopping._counts_epochs
    former = pickle.loads(pickle.dumps(stopping))
    o = optimizer(max_iter=50, validation_every=3, callbacks=[former]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert o.n_iter_ == 9


def test_a_score_of_ours():
    stopping = EarlyStopping(patience=2, min_delta=10, scoring="r2", X_val=X_VAL, y_val=Y_VAL)
    o = optimizer(max_iter=50, callbacks=[stopping]).fit(X, Y)
    assert (o.n_iter_, stopping.best_epoch_) == (3, 1)
    assert stopping.best_ == pytest.approx(optimizer(max_iter=1).fit(X, Y).score(X_VAL, Y_VAL))


def test_what_is_not_there():
    with pytest.raises(SettingError, match=r"EarlyStopping monitors 'validation_loss', and an epoch has 'seconds', "
                                           "'learning_rate', 'loss'; give fit X_val"):
        optimizer(callbacks=[EarlyStopping()]).fit(X, Y)
    with pytest.raises(SettingError, match="monitors 'accuracy', and an epoch has 'seconds', 'learning_rate', 'loss'"):
        optimizer(callbacks=[EarlyStopping("accuracy")]).fit(X, Y)


@pytest.mark.parametrize("callback", [EarlyStopping, callbacks.ReduceOnPlateau])
@pytest.mark.parametrize(("monitor", "end"), [
    ("valid_loss", "'learning_rate', 'loss', 'validation_loss'; did you mean 'validation_loss'?"),
    ("train_loss", "; did you mean 'loss'?"), ("accuracy", "; name it in the setting metrics."),
    ("3", "'validation_loss'.")])
def test_what_is_meant(callback, monitor, end):
    """A column that never comes is an error, for which there are other names."""
    with pytest.raises(SettingError) as error:
        optimizer(callbacks=[callback(monitor)], validation_every=1).fit(X, Y, X_val=0.2)
    assert str(error.value).startswith(f"{callback.__name__} monitors {monitor!r}, and an epoch has 'seconds', ")
    assert str(error.value).endswith(end)


def test_a_column_of_another_callback():
    """A score that another one records is monitored where it is asked for."""
    def record(o):
        o.training_view().record(score=[0, 2, 1, 1, 1][o.n_iter_ - 1])

    stopping = EarlyStopping("loss", patience=2), EarlyStopping("score", patience=2)
    assert optimizer(callbacks=[record, stopping[0]]).fit(X, Y).n_iter_ == 5
    assert optimizer(callbacks=[record, stopping[1]]).fit(X, Y).n_iter_ == 4
    assert stopping[1].best_ == 2


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"mode": "low"}, SettingError, "mode is 'auto', 'min' or 'max', not 'low'."),
    ({"patience": 0}, SettingError, "EarlyStopping: patience is 0, a whole number at least 1 was expected."),
    ({"patience": "3"}, SettingError, "EarlyStopping: patience is '3', a whole number at least 1 was expected."),
    ({"min_delta": "0.1"}, SettingError, "EarlyStopping: min_delta is '0.1', a finite number at least 0 was expected."),
    ({"baseline": np.nan}, SettingError, "EarlyStopping: baseline is nan, a finite number was expected."),
    ({"restore_best": "no"}, SettingError, "restore_best is True or False, not 'no'."),
    ({"restore_best_weights": True}, TypeError, "no setting 'restore_best_weights'; did you mean 'restore_best'?"),
    ({"tol": 0.1}, TypeError, "EarlyStopping has no setting 'tol'; did you mean 'min_delta'?")])
def test_wrong_settings(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        EarlyStopping(**settings)
    assert EarlyStopping(patience=np.int64(3)).patience == 3


@pytest.mark.sklearn_callbacks
def test_logistic_regression():
    """It goes on to its last iteration; the coefficients of the best one are restored."""
    stopping = EarlyStopping(patience=2, X_val=Z[:100], y_val=LABELS[:100], scoring="neg_log_loss")
    model = LogisticRegression(C=100.0, max_iter=200).set_callbacks(stopping).fit(Z[100:], LABELS[100:])
    plain = LogisticRegression(C=100.0, max_iter=200).fit(Z[100:], LABELS[100:])
    assert 0 < stopping.best_epoch_ < stopping.stopped_epoch_ < plain.n_iter_[0]
    at = -stopping.best_

    def loss(estimator):
        p = estimator.predict_proba(Z[:100])[:, 1]
        return -np.mean(np.log(np.where(LABELS[:100] == 1, p, 1 - p)))

    assert loss(model) == pytest.approx(at)
    assert loss(plain) > at
    assert stopping._runs == {}


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.sklearn_callbacks
def test_in_a_search(n_jobs):
    """Clones share their callbacks; each fit has a state of its own."""
    stopping = EarlyStopping(patience=3)
    base = LogisticRegression(max_iter=20).set_callbacks(stopping)
    search = GridSearchCV(base, {"C": [0.1, 1.0]}, cv=2, n_jobs=n_jobs).fit(Z, LABELS)
    assert search.best_score_ > 0.9
    assert stopping.best_ == pytest.approx(search.best_estimator_.score(Z, LABELS))


@pytest.mark.sklearn_callbacks
def test_both_kinds_of_estimators_with_one_callback():
    stopping = EarlyStopping("loss", patience=2, min_delta=1e9)
    assert optimizer(max_iter=9, callbacks=[stopping]).fit(X, Y).n_iter_ == 3
    LogisticRegression().set_callbacks(stopping).fit(Z, LABELS)
    assert stopping.stopped_epoch_ == 3
    assert optimizer(max_iter=9, callbacks=[stopping]).fit(X, Y).n_iter_ == 3


def test_copies():
    stopping = EarlyStopping(patience=2, min_delta=1e9, monitor="loss")
    o = optimizer(callbacks=[stopping], max_iter=9).fit(X, Y)
    for other in (copy.deepcopy(stopping), pickle.loads(pickle.dumps(stopping)), clone(o).callbacks[0],
                  pickle.loads(pickle.dumps(o)).callbacks[0]):
        assert repr(other) == repr(stopping) == ("EarlyStopping(monitor='loss', patience=2, min_delta=1000000000.0, "
                                                 "mode='auto', baseline=None, restore_best=True, scoring=None, "
                                                 "X_val=None, y_val=None)")
    assert clone(o).callbacks[0] is not stopping
    assert callbacks.EarlyStopping is EarlyStopping


@pytest.mark.parametrize("cut", [2, 4, 5])
def test_a_fit_that_is_cut_off_stops_where_an_uncut_one_does(cut, tmp_path):
    def train(*others, **more):
        stopping = Fake([3, 2, 1, 2, 3, 4, 0], patience=3)
        o = optimizer(max_iter=7, callbacks=[stopping, *others, Checkpoint(tmp_path)])
        return o.fit(X, Y, **more), stopping

    def kill(o):
        if o.n_iter_ == cut:
            raise KeyboardInterrupt

    expected = optimizer(max_iter=7, callbacks=[Fake([3, 2, 1, 2, 3, 4, 0], patience=3)]).fit(X, Y)
    with pytest.raises(KeyboardInterrupt):
        train(kill)
    o, stopping = train(resume=tmp_path)
    assert (stopping.stopped_epoch_, stopping.best_epoch_, stopping.best_) == (6, 3, 1)
    assert same(o, expected)


def test_metrics_are_monitored():
    """What is better follows from the metric, and the validation loss has a second name."""
    labels = (Y[:, 0] > 0).astype(int)
    settings = {"learning_loss": "softmax_cross_entropy", "metrics": ["accuracy", "log_loss"], "validation_every": 1}
    for monitor, best in (("val_accuracy", max), ("validation_accuracy", max), ("val_log_loss", min),
                          ("val_loss", min)):
        stopping = EarlyStopping(monitor, patience=3)
        o = optimizer(mlp(outputs=2), callbacks=[stopping], max_iter=12, **settings).fit(X, labels, X_val=0.3)
        column = {"validation_accuracy": "val_accuracy", "val_loss": "validation_loss"}.get(monitor, monitor)
        numbers = [record[column] for record in o.history_]
        assert stopping.best_ == best(numbers)
        assert stopping.best_epoch_ == numbers.index(best(numbers)) + 1


@pytest.mark.parametrize(("metrics", "monitor", "end"), [
    (["r2"], "val_r2", "; give fit X_val."), ([], "val_r2", "; name it in the setting metrics."),
    (["r2"], "val_mae", "; name it in the setting metrics.")])
def test_metrics_that_are_not_there(metrics, monitor, end):
    with pytest.raises(SettingError) as error:
        optimizer(callbacks=[EarlyStopping(monitor)], metrics=metrics, validation_every=1).fit(X, Y)
    assert str(error.value).endswith(end)


def test_scores_of_optimizers_are_metrics():
    """Their predictions are scores, of which scikit-learn's accuracy would make nothing."""
    labels = (Y[:, 0] > 0).astype(int)
    stopping = EarlyStopping(scoring="accuracy", X_val=X_VAL, y_val=(Y_VAL[:, 0] > 0).astype(int), patience=2)
    o = optimizer(mlp(outputs=2), learning_loss="softmax_cross_entropy", callbacks=[stopping]).fit(X, labels)
    assert stopping.best_ == o.score(X_VAL, (Y_VAL[:, 0] > 0).astype(int))
    stopping = EarlyStopping(scoring="mae", X_val=X_VAL, y_val=Y_VAL)
    o = optimizer(callbacks=[stopping]).fit(X, Y)
    assert stopping.best_ == -o.evaluate(X_VAL, Y_VAL, metrics=["mae"])["mae"]

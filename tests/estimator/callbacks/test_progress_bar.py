"""The bar of a training and that of the tasks of scikit-learn, on a terminal; nothing elsewhere."""

import pickle
import re
import time
from functools import partial

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from terminals import Terminal
from trainings import X_VAL, Y_VAL, X, Y, optimizer, same

from ortpartial import OnnxClassifier
from ortpartial.callbacks import ProgressBar
from ortpartial.execution import progress

LABELS = Y[:, 0] > 0


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(progress, "_PERIOD", 0.01)
    terminal = Terminal()
    monkeypatch.setattr(progress, "sys", terminal)  # pytest sets that of `sys` when the test begins.
    return terminal


def wait(o):
    time.sleep(0.03)


def test_it_is_the_bar_of_verbose(terminal):
    o = optimizer(callbacks=[ProgressBar(), wait], validation_every=1).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    states = terminal.states()
    assert any(re.match(r"epoch 3/5, loss=[\d.e-]+, validation=[\d.]+ +\d+%\|.*\| 00:00<00:0\d, +[\d.]+batch/s", s)
               for s in states)
    losses = f"loss={o.train_losses_[-1]:.4g}, validation={o.validation_losses_[-1]:.4g}"
    assert states[-1].startswith(f"epoch 5/5, max_iter reached, {losses} 100%")
    assert same(o, optimizer(validation_every=1).fit(X, Y, X_val=X_VAL, y_val=Y_VAL))


@pytest.mark.parametrize(("act", "error", "ending"), [
    (lambda o: o.n_iter_ == 2, (), "stopped by a callback"), (lambda o: 1 / 0, ZeroDivisionError, "ended by an error")])
def test_how_it_ends(terminal, act, error, ending):
    o = optimizer(callbacks=[ProgressBar(), act])
    if error:
        with pytest.raises(error):
            o.fit(X, Y)
    else:
        o.fit(X, Y)
    assert re.match(rf"epoch [12]/5, {ending}", terminal.states()[-1])


def test_one_bar_is_enough(terminal):
    optimizer(verbose=1, callbacks=[ProgressBar()], max_iter=1).fit(X, Y)
    assert len([s for s in terminal.states() if "max_iter reached" in s]) == 1


@pytest.mark.sklearn_callbacks
def test_nothing_without_a_terminal(capsys):
    optimizer(callbacks=[ProgressBar()]).fit(X, Y)
    LogisticRegression().set_callbacks(ProgressBar()).fit(X, LABELS)
    assert capsys.readouterr() == ("", "")


@pytest.mark.sklearn_callbacks
def test_an_estimator_of_scikit_learn(terminal):
    bar = ProgressBar()
    LogisticRegression(max_iter=50).set_callbacks(bar).fit(X, LABELS)
    states = terminal.states()
    assert states[-1].startswith("LogisticRegression 100%")
    assert bar._listeners == {}


def score_slowly(estimator, X, y, seconds):
    """So that the bar is drawn in between."""
    time.sleep(seconds)
    return estimator.score(X, y)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("estimator", [LogisticRegression(max_iter=10), OnnxClassifier(max_iter=3)],
                         ids=["theirs", "ours"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # both would train longer
@pytest.mark.sklearn_callbacks
def test_a_search(terminal, estimator, n_jobs):
    """It moves, whether the fits run here or in other processes."""
    parameters = {"C": [0.1, 1.0]} if isinstance(estimator, LogisticRegression) else {"alpha": [0.1, 1.0]}
    search = GridSearchCV(estimator, parameters, cv=3, n_jobs=n_jobs,
                          scoring=partial(score_slowly, seconds=0.03 * n_jobs**3))  # processes report now and then
    search.set_callbacks(ProgressBar())
    search.fit(X, LABELS)
    states = terminal.states()
    assert states[-1].startswith("GridSearchCV 100%")
    shares = [int(m[1]) for s in states if (m := re.match(r"GridSearchCV +(\d+)%", s))]
    assert shares == sorted(shares)
    assert len(set(shares) - {0, 100}) > (n_jobs > 1), shares


def test_copies():
    bar = ProgressBar(max_propagation_depth=None)
    assert repr(pickle.loads(pickle.dumps(bar))) == repr(bar) == "ProgressBar(max_propagation_depth=None)"

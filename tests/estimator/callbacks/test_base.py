"""Callbacks of users: hooks that do nothing, ends that are asked for, and monitored values."""

import pytest
from models import data, linear

from ortpartial import Callback, EarlyStopping, OrtGradientForwardBackwardOptimizer
from ortpartial.estimator.callbacks.base import MonitorCallback
from ortpartial.estimator.state import TrainingState
from ortpartial.exceptions import SettingError

X, Y, _ = data(20)


def fit(callback, **data):
    optimizer = OrtGradientForwardBackwardOptimizer(linear(), max_iter=4, random_state=0, callbacks=[callback])
    return optimizer.fit(X, Y, **data)


class Watch(MonitorCallback):
    def __init__(self):
        super().__init__("loss")
        self.events = []

    def _begin_fit(self, run):
        self.events.append("begin")
        run.values["seen"] = 0

    def _end_epoch(self, run, record, fitted_estimator):
        run.values["seen"] += 1
        self.events.append(self._read_monitored(run, record))
        return run.values["seen"] == 2

    def _end_fit(self, run):
        self.events.append("end")

    def _tear_down(self, run):
        self.events.append("down")


def test_a_callback_that_does_nothing():
    assert fit(Callback()).n_iter_ == 4
    assert repr(Callback()) == "Callback()"


def test_an_epoch_callback():
    watch = Watch()
    optimizer = fit(watch)
    assert optimizer.n_iter_ == 2
    assert watch.events == ["begin", *optimizer.train_losses_, "end", "down"]


def test_an_end_by_an_error_is_no_end_of_the_fit():
    class Failing(Watch):
        def _end_epoch(self, run, record, fitted_estimator):
            raise InterruptedError

    failing = Failing()
    with pytest.raises(InterruptedError):
        fit(failing)
    assert failing.events == ["begin", "down"]


def test_a_column_that_never_comes():
    with pytest.raises(SettingError, match=r"EarlyStopping monitors 'validation_loss', and an epoch has .*; give fit"):
        fit(EarlyStopping(monitor="validation_loss"))


@pytest.mark.parametrize("settings", [{"patience": 100}, {"patience": 100, "monitor": "loss"}])
def test_an_epoch_takes_one_view_of_the_training_and_reads_one_record(settings, monkeypatch):
    views, read, sessions, owner = [], [], [], OrtGradientForwardBackwardOptimizer
    take, add = owner.training_view, TrainingState.add_rates
    monkeypatch.setattr(owner, "training_view", lambda self: views.append(0) or take(self))
    monkeypatch.setattr(TrainingState, "add_rates", lambda self, records: read.append(0) or add(self, records))
    monkeypatch.setattr("ortpartial.estimator.state.Session", lambda *graph: sessions.append(graph))
    fit(EarlyStopping(**settings), X_val=0.2)
    assert (len(views), len(read), sessions) == (4 + 1, 4 + 1, []), "with one at the end, to restore the best"


def test_the_view_of_an_epoch_ends_with_its_hook():
    class Look(Watch):
        def _end_epoch(self, run, record, fitted_estimator):
            self.last = run.view
            assert run.view is self.last
            return super()._end_epoch(run, record, fitted_estimator)

        def _end_fit(self, run):
            assert run.view is not self.last

    fit(Look())

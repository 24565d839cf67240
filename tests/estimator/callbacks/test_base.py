"""Callbacks of users: hooks that do nothing, ends that are asked for, and monitored values."""

import pytest
from models import data, linear

from ortpartial import Callback, EarlyStopping, OrtGradientForwardBackwardOptimizer
from ortpartial.estimator.callbacks.base import MonitorCallback
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

"""A timer: the durations of a fit and its epochs, and its end after some time."""

import time
from datetime import timedelta

import pytest
from sklearn.linear_model import LogisticRegression
from trainings import X, Y, optimizer

from ortpartial.callbacks import Timer
from ortpartial.exceptions import SettingError


@pytest.mark.parametrize("duration", [0.1, timedelta(seconds=0.1)])
def test_it_ends_a_fit_in_order(duration):
    timer = Timer(duration)
    o = optimizer(max_iter=1000, callbacks=[timer, lambda o: time.sleep(0.02)]).fit(X, Y)
    assert 0.1 <= timer.seconds_ < 1
    assert len(timer.epoch_seconds_) == o.n_iter_ < 10


def test_within_an_epoch():
    class Slow:
        def __iter__(self):
            for _ in range(1000):
                time.sleep(0.01)
                yield X[:10], Y[:10]

    timer = Timer(0.1, batches_between_calls=2)
    o = optimizer(max_iter=3, callbacks=[timer]).fit(Slow())
    assert o.n_iter_ == 1
    assert o.get_state("optimizer")[-1] < 100


@pytest.mark.sklearn_callbacks
def test_an_estimator_of_scikit_learn():
    timer = Timer()
    model = LogisticRegression().set_callbacks(timer).fit(X, Y[:, 0] > 0)
    assert len(timer.epoch_seconds_) == model.n_iter_[0] + 1, "it tells of one that it does not begin"
    assert 0 < sum(timer.epoch_seconds_) <= timer.seconds_


@pytest.mark.parametrize("duration", [0, -1, "a while"])
def test_durations(duration):
    with pytest.raises(SettingError, match="duration is None, a timedelta or a number of seconds above 0, not "):
        Timer(duration)

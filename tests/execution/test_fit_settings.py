"""Settings of a fit are checked at once, with the name and the expectation."""

import re

import numpy as np
import pytest

from ortpartial.checks import check_count, check_flag
from ortpartial.exceptions import SettingError
from ortpartial.execution.fit_settings import FitSettings


@pytest.mark.parametrize(("settings", "message"), [
    ({"init": "zeros"}, "init is 'model' or 'random', not 'zeros'."),
    ({"validation_every": 0}, "validation_every is a share of max_iter or a number of epochs, not 0."),
    ({"timeout": -1}, "timeout is None or a number of seconds above 0, not -1."),
    ({"shuffle": "yes"}, "shuffle is True or False, not 'yes'."),
    ({"verbose": "all"}, "verbose is 0, 1 or 2, not 'all'."),
    ({"random_state": -1}, "random_state is None, a seed from 0 on or a Generator, not -1."),
    ({"callbacks": 3}, "callbacks is a sequence of callbacks, not 3; give a list of them."),
    ({"max_iter": 0}, "max_iter is a whole number of at least 1, not 0."),
    ({"batch_size": 2.0}, "batch_size is a whole number of at least 1, not 2.0; did you mean 2?")])
def test_errors(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        FitSettings(**settings)


def test_values_of_numpy():
    settings = FitSettings(max_iter=np.int64(3), shuffle=np.bool_(False), callbacks=iter([]))
    assert (type(settings.max_iter), settings.shuffle, settings.callbacks) == (int, False, ())
    assert check_flag("check", 1) is True
    assert check_count("n", np.int32(2)) == 2


@pytest.mark.parametrize(("every", "epochs", "expected"), [(0.1, 100, 10), (0.1, 3, 1), (5, 100, 5), (0.5, 7, 4)])
def test_how_often_is_validated(every, epochs, expected):
    assert FitSettings(validation_every=every, max_iter=epochs).validation_period == expected

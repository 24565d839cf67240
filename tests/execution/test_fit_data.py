"""Data of a fit: shares that are held out, validation data, and refusals."""

import re

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError

X, Y, W = data(20)


def make(**settings):
    return OrtGradientForwardBackwardOptimizer(mlp(), random_state=0, **{"max_iter": 2, **settings})


@pytest.mark.parametrize(("arguments", "message"), [
    ({"X": (X, Y)}, "X is a tuple of 2 arrays; give them as arguments of their own: fit(X, y)."),
    ({"X": iter([(X, Y)])}, "X gives its batches once, and max_iter is 2"),
    ({"X": X, "y": Y, "y_val": Y}, "X_val and y_val belong together; X_val is missing."),
    ({"X": X, "y": Y, "X_val": X}, "X_val and y_val belong together; y_val is missing."),
    ({"X": X, "y": Y, "X_val": 1.5}, "X_val is 1.5; give data and y_val, or alone a share of the rows"),
    ({"X": X[:1], "y": Y[:1], "X_val": 0.5}, "X_val=0.5 of 1 rows leaves none to train on."),
    ({"X": [(X, Y)], "X_val": 0.5}, "X gives batches; X_val cannot be a share of them, give other ones."),
    ({"X": X, "y": Y, "X_val": X[:, :2], "y_val": Y}, "The validation data do not fit"),
])
def test_what_is_refused(arguments, message):
    with pytest.raises(DataError, match=re.escape(message)):
        make().fit(**arguments)


def test_a_share_is_the_same_rows_in_every_call():
    """They do not train: other targets for them change nothing."""
    a, b = make().fit(X, Y, X_val=0.25), make().fit(X, Y, X_val=0.25)
    assert a.validation_losses_ == b.validation_losses_
    assert len(a.validation_losses_) == 2
    for u, v in zip(a.get_state(), b.get_state(), strict=True):
        np.testing.assert_array_equal(u, v)


def test_batches():
    trained = make(max_iter=1).fit(iter([(X[:10], Y[:10]), (X[10:], Y[10:])]))
    assert trained.n_iter_ == 1

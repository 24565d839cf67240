"""Data of a graph that holds its loss: labels and weights of rows are inputs, by their names."""

import re

import numpy as np
import pytest
from models import data, linear, two_in_two_out

from ortpartial import OrtGradientOptimizer, add_loss_output
from ortpartial.exceptions import DataError

X, Y, W = data(10)


def formula(y, t):
    """One that is not recognized, so that the graph is trained as it is."""
    return abs(y - t) * 0.3


def make(weighted=True):
    return OrtGradientOptimizer(add_loss_output(linear(), formula, weighted=weighted), max_iter=1, random_state=0)


def make_two():
    losses = {"price": formula, "kind": formula}
    return OrtGradientOptimizer(add_loss_output(two_in_two_out(), losses), max_iter=1)


def test_labels_and_weights():
    optimizer = make()
    (label,) = optimizer.training.data.labels
    arrays, rows = optimizer.training.loop.to_arrays(X, Y, W)[0], len(X)
    assert rows == 10
    np.testing.assert_array_equal(arrays[label], Y)
    assert any(np.array_equal(a.ravel(), W) for a in arrays.values())


def test_weights_are_ones_by_default():
    optimizer = make()
    name = optimizer.training.data.loss.row_weights
    assert (optimizer.training.loop.to_arrays(X, Y, None)[0][name] == 1).all()


def test_all_in_one_dict():
    """By the names of the model's inputs."""
    a, b = make(), make()
    (label,) = a.training.data.labels
    a.fit(X, Y, W)
    b.fit({"x": X, label: Y, "sample_weight": W})
    assert a.train_losses_ == b.train_losses_


@pytest.mark.parametrize(("optimizer", "arguments", "message"), [
    (make(False), (X, Y, W), "reads no weights of rows, and there is a sample_weight; write them into"),
    (make(), (X, Y, 0 * W), "All sample weights are zero."),
    (make_two(), (dict.fromkeys("ab", X[:, :3]), Y), "give y as a dict by name"),
])
def test_what_is_refused(optimizer, arguments, message):
    with pytest.raises(DataError, match=re.escape(message)):
        optimizer.fit(*arguments)


def test_a_score_compares_a_prediction_with_its_label():
    optimizer = make(False).fit(X, Y)
    e = optimizer.predict(X) - Y
    assert optimizer.score(X, Y) == pytest.approx(1 - (e**2).sum() / ((Y - Y.mean()) ** 2).sum(), rel=1e-5)

"""The history of a training, from an optimizer, an estimator, dicts or numbers."""

from types import SimpleNamespace

import pytest
from models import data, linear

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError
from ortpartial.plots.history import read_history


def test_an_optimizer_and_what_holds_one():
    X, y, _ = data(10)
    optimizer = OrtGradientForwardBackwardOptimizer(linear(), max_iter=2, random_state=0).fit(X, y)
    epochs = read_history(optimizer)
    assert [e["epoch"] for e in epochs] == [1, 2]
    assert [e["loss"] for e in epochs] == optimizer.train_losses_
    assert read_history(SimpleNamespace(optimizer_=optimizer)) == epochs


def test_dicts_and_numbers():
    assert read_history([0.5, 0.25]) == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    assert read_history([{"loss": 1, "epoch": 7}]) == [{"loss": 1, "epoch": 7}]
    assert read_history(SimpleNamespace(train_losses_=[3])) == [{"epoch": 1, "loss": 3.0}]


@pytest.mark.parametrize("source", ["text", 3, {"loss": 1}])
def test_what_has_none(source):
    with pytest.raises(DataError, match="A history is that of an optimizer or an estimator, or a list of dicts"):
        read_history(source)


def test_before_any_epoch():
    with pytest.raises(DataError, match=r"There is no epoch to draw; call fit first\."):
        read_history([])

"""A loss of a user: one line, its mean over rows, weights and gradient; and the methods to override."""

import re

import numpy as np
import pytest

from ortpartial.learning.base_loss import BaseLearningLoss
from ortpartial.runtime import Session


class Quartic(BaseLearningLoss):
    def __call__(self, y, t):
        return (y - t) ** 4


Y, T = np.array([[1.0, 2], [0, -1], [3, 1]]), np.array([[0.0, 2], [1, -1], [1, 0]])


def run(weighted, **arrays):
    model = Quartic().build_onnx_function(dtype="float64", shape=("N", 2), weighted=weighted)
    return Session(model).run({"y": Y, "t": T, **arrays})


def test_the_mean_and_its_gradient():
    outputs = run(False)
    assert outputs["loss"] == pytest.approx(((Y - T) ** 4).mean())
    np.testing.assert_allclose(outputs["y_grad"], 4 * (Y - T) ** 3 / 6)


@pytest.mark.parametrize("weighted", [True, "elements"])
def test_weights(weighted):
    w = np.array([1.0, 0, 3]) if weighted is True else np.array([[1.0, 0], [2, 0], [0, 3]])
    outputs = run(weighted, w=w)
    by_element = np.broadcast_to(w[:, None], (3, 2)) if weighted is True else w
    assert outputs["loss"] == pytest.approx((by_element * (Y - T) ** 4).sum() / by_element.sum())


def test_weights_of_zero_give_a_loss_of_zero():
    outputs = run(True, w=np.zeros(3))
    assert outputs["loss"] == 0
    assert not outputs["y_grad"].any()


def test_defaults():
    loss = Quartic()
    assert loss.target_shape(("N", 2)) == ("N", 2)
    assert loss.count_classes(("N", 2)) is None
    assert loss.find_ignored(T) is None
    assert loss.without_ignored_labels() is loss
    assert loss.mean(Y) is Y
    assert loss.labels(Y) is None
    assert loss == Quartic()


def test_a_target_without_the_last_axis_may_be_labels():
    text = Quartic().explain_shape((5,), ("N", 3))
    assert re.search("where these are labels of classes, the loss is 'softmax_cross_entropy'$", text)
    assert "'next_token'" in Quartic().explain_shape((5, 7), ("N", 7, 3))
    assert Quartic().explain_shape((5, 4), ("N", 3)) == ""

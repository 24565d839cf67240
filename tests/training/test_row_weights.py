"""Counts of a mean: weights of rows and of elements, labels that do not count, and several outputs."""

import numpy as np
import pytest
from models import mlp, two_in_two_out

from ortpartial import OrtGradientForwardBackwardOptimizer, SoftmaxCrossEntropyLearningLoss
from ortpartial.graph import variable
from ortpartial.training.row_weights import count_elements, count_rows, find_weighting, make_weights

X, Y, W = np.ones((4, 4), np.float32), np.zeros((4, 2), np.float32), np.float32([1, 0, 2, 3])


def spec_of(model, **settings):
    return OrtGradientForwardBackwardOptimizer(model, **settings).training.spec


@pytest.fixture
def spec():
    return spec_of(mlp(outputs=2))


def test_all_count_the_same(spec):
    data = {"x": X, "y_target": Y}
    assert count_rows(spec, data) is None
    assert find_weighting(spec, data) is False
    assert count_elements(spec, data)["y"].tolist() == [2] * 4


def test_weights_of_rows(spec):
    data = {"x": X, "y_target": Y, "sample_weight": W}
    assert find_weighting(spec, data) is True
    assert count_rows(spec, data) is W
    assert count_elements(spec, data)["y"].tolist() == [2, 0, 4, 6]


def test_weights_of_elements(spec):
    data = {"x": X, "y_target": Y, "y_weight": np.float32([[1, 0], [1, 1], [0, 0], [2, 1]])}
    assert find_weighting(spec, data) == "elements"
    assert count_rows(spec, data).tolist() == [1, 2, 0, 3]


def test_labels_that_do_not_count():
    spec = spec_of(mlp(outputs=2), learning_loss=SoftmaxCrossEntropyLearningLoss(ignore_index=-1))
    assert count_rows(spec, {"x": X, "y_target": np.array([0, -1, 1, 1])}).tolist() == [1, 0, 1, 1]


def test_variables(spec):
    t = {"y_target": variable("y_target", "float32", ["N", 2])}
    assert make_weights(spec, t, False, "N") == {}
    assert make_weights(spec, t, True, "N")["sample_weight"].shape == ("N",)
    assert make_weights(spec, t, "elements", "N")["y_weight"].shape == ("N", 2)


def test_several_outputs_count_by_their_mean():
    spec = spec_of(two_in_two_out(), learning_loss={"price": "square_error", "kind": "square_error"})
    data = {"price_target": Y[:, :1], "kind_target": Y, "price_weight": np.ones((4, 1)),
            "kind_weight": 3 * np.ones((4, 2))}
    assert count_rows(spec, data).tolist() == [3.5] * 4

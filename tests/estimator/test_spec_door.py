"""The door of a spec: data as a loop reads them, and the count of a batch."""

import numpy as np
import pytest
from models import data, linear

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DataError

X, Y, W = data(10)


@pytest.fixture
def training():
    return OrtGradientForwardBackwardOptimizer(linear(), random_state=0, init="random", max_iter=2).training


def test_data_by_name_and_back(training):
    arrays, rows = training.door.to_arrays(X, Y, W, 5)
    assert (sorted(arrays), rows) == (["sample_weight", "x", "y_target"], 10)
    x, y, w = training.door.to_batch(arrays)
    np.testing.assert_array_equal(x["x"] if isinstance(x, dict) else x, X)
    np.testing.assert_array_equal(y["y"] if isinstance(y, dict) else y, Y)
    np.testing.assert_array_equal(w, W)


def test_how_much_a_batch_counts(training):
    arrays, _ = training.door.to_arrays(X, Y, W, 5)
    assert training.door.weigh(arrays) == pytest.approx(W.sum())
    with pytest.raises(DataError, match=r"All sample weights are zero\."):
        training.door.check_counts(training.door.to_arrays(X, Y, 0 * W, 5)[0])


def test_sizes_of_steps(training):
    assert training.door.choose_size(7) == 7
    fixed = OrtGradientForwardBackwardOptimizer(linear(rows=5)).training.door
    assert fixed.choose_size(7) == 5


def test_first_weights(training):
    """Random ones follow from the generator."""
    weights = []
    for seed in (0, 0, 1):
        training.door.reset(np.random.default_rng(seed), training.loop.settings)
        weights.append(training.engine.get("coef").copy())
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


def test_an_order_is_drawn_by_the_loop(training):
    rng = np.random.default_rng(0)
    assert training.door.draw_from(rng, 5) is rng

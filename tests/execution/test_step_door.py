"""Means of the results of steps over rows."""

import numpy as np
import pytest

from ortpartial.exceptions import ConvergenceError
from ortpartial.execution.step_door import Means, StepDoor, read_numbers


class Sizes(StepDoor):
    """A door whose evaluation returns the number of rows of a batch, and an output that is no number."""

    def to_arrays(self, X, y, sample_weight, batch_size):
        return X, len(X["x"])

    def evaluate(self, arrays):
        return {"rows": np.float32(len(arrays["x"])), "first": arrays["x"][:2], "count": np.int64(1)}

    def describe_divergence(self, loss, iteration, epoch):
        return ""


@pytest.mark.parametrize(("is_fixed", "mean"), [(False, (4 * 4 + 4 * 4 + 2 * 2) / 10), (True, 4)])
def test_batches_of_a_validation_count_by_their_rows(is_fixed, mean):
    door = Sizes(4, is_fixed)
    rows = {"x": np.arange(10.0), "scale": np.array(2.0)}
    assert door.validate([(rows, None, None)]) == door.validate_held(rows) == door.validated == {"rows": mean}


def test_means_of_real_numbers_that_are_finite():
    means = Means()
    assert means.read() == {}
    for loss, rows in ((1.0, 3), (2.0, 1)):
        means.add(read_numbers({"loss": np.array([loss]), "y": np.ones(2), "n": np.array(7)}, "step 1"), rows)
    assert means.read() == {"loss": 1.25}
    with pytest.raises(ConvergenceError, match=r"^The output 'loss' is inf in step 3; lower the learning rate, or sc"):
        read_numbers({"loss": np.array(np.inf)}, "step 3")

"""The place of a fit: kept in a checkpoint and made of it again, and refused for other data."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.execution.fit_position import FitPosition, check_rows
from ortpartial.execution.mean import WeightedMean


def test_kept_and_made_again():
    mean = WeightedMean()
    mean.collect(np.float32([1, 2]), np.ones(2), 5)
    place = FitPosition(epoch=3, batches=2, rows=47, mean=mean)
    again = FitPosition.from_state(place.state)
    assert (again.epoch, again.batches, again.rows) == (3, 2, 47)
    assert again.mean.value == mean.value == 1.5


def test_between_two_epochs_there_is_no_mean():
    assert FitPosition(epoch=3, mean=WeightedMean()).state["mean"] is None
    assert FitPosition.from_state(FitPosition().state) == FitPosition()


@pytest.mark.parametrize(("former", "rows", "message"), [
    (60, 50, "on 60 rows, and this one is on 50 rows; give the same data."),
    (0, 50, "on batches, and this one is on 50"),
    (50, 0, "on 50 rows, and this one is on batches")])
def test_other_data(former, rows, message):
    with pytest.raises(DataError, match=message):
        check_rows(FitPosition(rows=former), rows)
    check_rows(FitPosition(rows=rows), rows)
    check_rows(FitPosition(), rows)

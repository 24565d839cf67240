"""The place of a fit: kept in a checkpoint and made of it again, and refused for other data."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.execution.mean import WeightedMean
from ortpartial.execution.place import Place, check_rows


def test_kept_and_made_again():
    mean = WeightedMean()
    mean.collect(np.float32([1, 2]), np.ones(2), 5)
    place = Place(epoch=3, batches=2, rows=47, mean=mean)
    again = Place.from_state(place.state)
    assert (again.epoch, again.batches, again.rows) == (3, 2, 47)
    assert again.mean.value == mean.value == 1.5


def test_between_two_epochs_there_is_no_mean():
    assert Place(epoch=3, mean=WeightedMean()).state["mean"] is None
    assert Place.from_state(Place().state) == Place()


@pytest.mark.parametrize(("former", "rows", "message"), [
    (60, 50, "on 60 rows, and this one is on 50 rows; give the same data."),
    (0, 50, "on batches, and this one is on 50"),
    (50, 0, "on 50 rows, and this one is on batches")])
def test_other_data(former, rows, message):
    with pytest.raises(DataError, match=message):
        check_rows(Place(rows=former), rows)
    check_rows(Place(rows=rows), rows)
    check_rows(Place(), rows)

"""The order of rows: a shuffle that the runners of all languages draw alike."""

import numpy as np
import pytest

from ortpartial.kits.order import draw_order

ORDER = ([3, 4, 6, 1, 2, 9, 7, 0, 5, 8], [1, 2, 7, 9, 3, 5, 4, 0, 8, 6])


def test_the_very_order_of_the_format():
    """Kits in other languages rely on it: it never changes."""
    assert draw_order(0, 0, 10).tolist() == ORDER[0]
    assert draw_order(7, 3, 10).tolist() == ORDER[1]


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_every_row_once(rows):
    assert sorted(draw_order(1, 2, rows)) == list(range(rows))


def test_epochs_and_seeds_differ():
    orders = {tuple(draw_order(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_places_are_even():
    """Each row is as often at a place as another, within the noise of 4,000 epochs."""
    first = np.bincount([draw_order(0, epoch, 8)[0] for epoch in range(4000)], minlength=8)
    assert abs(first - 500).max() < 110

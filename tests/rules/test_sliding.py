"""Which windows are seen as columns, parts or views, and which are left to the operators that slide them?"""

import pytest
from table import rows

from ortpartial.graph import variable
from ortpartial.rules.sliding import Window, joins, narrow, pairs


def window(*kernel, pads=(0, 0, 0, 0)):
    return Window(kernel, [1, 1], [1, 1], pads)


def image(*shape):
    return variable("x", "float32", shape)


# 8 · 16 · 64 · 64 · 2 · 2 numbers are as many as a cache is said to hold.
NARROW = rows(
    ("as many as fit", image(8, 16, 65, 65), image(8, 2, 64, 64), window(2, 2), True),
    ("one row too many", image(8, 16, 66, 65), image(8, 2, 65, 64), window(2, 2), False),
    ("one image", image(1, 2, 5, 5), image(1, 3, 4, 4), window(2, 2), True),
    ("no image", image(0, 2, 5, 5), image(0, 3, 4, 4), window(2, 2), False),
    ("images of any number", image("N", 2, 5, 5), image("N", 3, 4, 4), window(2, 2), False),
    ("a kernel of many places", image(2, 2, 9, 9), image(2, 3, 5, 5), window(5, 5), False),
)


@pytest.mark.parametrize(("x", "dy", "w", "expected"), NARROW)
def test_columns_for_small_kernels_and_images(x, dy, w, expected):
    assert narrow(x, dy, w) is expected


PAIRS = rows(
    ("two by two", image("N", 2, 6, 6), (5, 5), window(2, 2), True),
    ("four in a row", image("N", 2, 6, 6), (3, 6), window(4, 1), True),
    ("five in a row", image("N", 2, 6, 6), (2, 6), window(5, 1), False),
    ("pads", image("N", 2, 6, 6), (6, 6), window(2, 2, pads=(1, 0, 0, 1)), False),
    ("any number of channels", image("N", None, 6, 6), (5, 5), window(2, 2), False),
    ("places that are not all of the window", image("N", 2, 6, 6), (5, 6), window(2, 2), False),
)


@pytest.mark.parametrize(("x", "m", "w", "expected"), PAIRS)
def test_views_for_pools_that_halve(x, m, w, expected):
    assert pairs(x, m, w) is expected


def test_parts_of_no_images_are_not_joined():
    assert joins(image("N", 2, 6, 6), (5, 5), window(2, 2))
    assert not joins(image(0, 2, 6, 6), (5, 5), window(2, 2))

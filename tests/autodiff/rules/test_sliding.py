"""Sliding windows: which are read as columns, parts or views, and which are left to Conv and pools."""

import numpy as np
import pytest
from table import rows

from ortpartial.autodiff.rules.sliding import Window, extract_views, fits_col2im, has_small_kernel, is_small_pool
from ortpartial.graph.build import build
from ortpartial.graph.ops import variable
from ortpartial.runtime.session import Session


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


@pytest.mark.usual_limits
@pytest.mark.parametrize(("x", "dy", "w", "expected"), NARROW)
def test_columns_for_small_kernels_and_images(x, dy, w, expected):
    assert has_small_kernel(x, dy, w) is expected


PAIRS = rows(
    ("two by two", image("N", 2, 6, 6), (5, 5), window(2, 2), True),
    ("four in a row", image("N", 2, 6, 6), (3, 6), window(4, 1), True),
    ("five in a row", image("N", 2, 6, 6), (2, 6), window(5, 1), False),
    ("pads", image("N", 2, 6, 6), (6, 6), window(2, 2, pads=(1, 0, 0, 1)), False),
    ("any number of channels", image("N", None, 6, 6), (5, 5), window(2, 2), False),
    ("places that are not all of the window", image("N", 2, 6, 6), (5, 6), window(2, 2), False),
)


@pytest.mark.usual_limits
@pytest.mark.parametrize(("x", "m", "w", "expected"), PAIRS)
def test_views_for_pools_that_halve(x, m, w, expected):
    assert is_small_pool(x, m, w) is expected


def test_parts_of_no_images_are_not_joined():
    assert fits_col2im(image("N", 2, 6, 6), (5, 5), window(2, 2))
    assert not fits_col2im(image(0, 2, 6, 6), (5, 5), window(2, 2))


VIEWS = rows(
    ("by two", (2, 3, 6, 6), Window([2, 2], [2, 2], [1, 1], [0, 0, 0, 0])),
    ("a column too many", (2, 3, 5, 5), Window([2, 2], [2, 2], [1, 1], [0, 0, 0, 0])),
    ("over one another, on padding", (2, 3, 6, 6), Window([3, 3], [2, 2], [1, 1], [1, 1, 1, 1])),
    ("by three, with gaps, on uneven padding", (1, 2, 9, 8), Window([2, 3], [1, 3], [2, 2], [0, 2, 1, 0])),
    ("one after the other", (2, 3, 5, 6), Window([2, 2], [1, 1], [1, 2], [0, 1, 0, 1])),
    ("a row", (2, 3, 9), Window([3], [2], [1], [1, 0])),
    ("one place", (2, 3, 6, 6), Window([1, 1], [2, 2], [1, 1], [0, 0, 0, 0])),
)


@pytest.mark.parametrize(("shape", "w"), VIEWS)
def test_views_are_what_each_place_of_a_kernel_sees(shape, w):
    r = len(w.kernel)
    pads = list(zip([0, 0, *w.pads[:r]], [0, 0, *w.pads[r:]], strict=True))
    xs = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    m = [(n + sum(p) - e) // s + 1 for n, p, e, s in zip(shape[2:], pads[2:], w.extent, w.strides, strict=True)]
    x = image("N", *shape[1:])
    found = Session(build([x], {f"y{i}": v for i, v in enumerate(extract_views(x, m, w))})).run({"x": xs})
    for place, y in zip(np.ndindex(*w.kernel), found.values(), strict=True):
        first = [i * d for i, d in zip(place, w.dilations, strict=True)]
        cut = [slice(f, f + (j - 1) * s + 1, s) for f, j, s in zip(first, m, w.strides, strict=True)]
        np.testing.assert_array_equal(y, np.pad(xs, pads)[(..., *cut)])

"""Small curves for HTML."""

from xml.etree import ElementTree

import numpy as np

from ortpartial.plots import draw_curve


def points(svg):
    lines = ElementTree.fromstring(svg)
    return [np.array([p.split(",") for p in line.get("points").split()], float) for line in lines]


def test_two_curves():
    """The smallest loss is at the bottom, and each curve spans the width."""
    first, second = points(draw_curve([3.0, 2.0, 1.0], [2.0, 1.5]))
    assert first.tolist() == [[4, 4], [120, 30], [236, 56]]
    assert second.tolist() == [[4, 30], [236, 43]]


def test_many_epochs_are_averaged():
    (line,) = points(draw_curve(np.arange(10_000.0)))
    assert len(line) == 240


def test_what_cannot_be_drawn():
    assert draw_curve() == draw_curve([]) == draw_curve([1.0]) == draw_curve([1.0, np.nan]) == ""
    (line,) = points(draw_curve([2.0, np.inf, 2.0]))
    assert line[:, 1].tolist() == [30, 30]

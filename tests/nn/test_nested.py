"""Nested outputs: values by name, and back into tuples, lists, dicts and named tuples."""

from typing import NamedTuple

import pytest

from ortpartial.exceptions import GraphError
from ortpartial.nn.nested import flatten, rebuild


class Pair(NamedTuple):
    a: int
    b: int


TREE = {"x": (1, [2, None]), "y": Pair(3, 4)}


def test_flattened():
    assert flatten(TREE, "out") == {"out_x_0": 1, "out_x_1_0": 2, "out_y_0": 3, "out_y_1": 4}
    assert flatten(5, "out") == {"out": 5}
    assert flatten(None, "out") == {}


def test_rebuilt():
    leaves = {n: -v for n, v in flatten(TREE, "out").items()}
    assert rebuild(TREE, "out", leaves) == {"x": (-1, [-2, None]), "y": Pair(-3, -4)}


def test_two_of_one_name():
    with pytest.raises(GraphError, match="Two of the values that are returned would be called 'out_a_0'; rename"):
        flatten({"a": [1], "a_0": 2}, "out")

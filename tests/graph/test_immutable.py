"""Immutable objects are their own copies, and compute their values once."""

import copy

from ortpartial.graph.immutable import Immutable, cached_property


class Counted(Immutable):
    calls = 0

    @cached_property
    def number(self):
        """The number."""
        self.calls += 1
        return [7]


def test_copies():
    counted = Counted()
    assert copy.copy(counted) is counted
    assert copy.deepcopy([counted])[0] is counted


def test_computed_once():
    counted = Counted()
    assert counted.number is counted.number
    assert counted.calls == 1
    assert Counted().number is not counted.number
    assert Counted.number.__doc__ == "The number."

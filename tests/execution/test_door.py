"""The protocol of a door: every door that a loop is given has all of it."""

import inspect

import pytest

from ortpartial.estimator.spec_door import SpecDoor
from ortpartial.execution.door import Door


def list_members(kind):
    return {n for n, f in vars(kind).items() if not n.startswith("_") and (callable(f) or isinstance(f, property))}


@pytest.mark.parametrize("kind", [SpecDoor])
def test_a_door_has_all_of_it(kind):
    assert list_members(Door) <= {n for n in dir(kind) if not n.startswith("_")}


@pytest.mark.parametrize("name", sorted(n for n in list_members(Door) if callable(vars(Door)[n])))
def test_with_the_same_arguments(name):
    ours, asked = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (SpecDoor, Door))
    assert ours == asked


def test_the_documentation_says_what_each_is_for():
    assert all((vars(Door)[n].__doc__ or "").strip() for n in list_members(Door))

"""Traits of operators: the operators of a set are those of ONNX, and have the property."""

import pytest
from onnx import defs

from ortpartial.graph import traits


@pytest.mark.parametrize("name", ["LABEL_LOSSES", "PRODUCTS", "RANDOM", "VIEWS", "WITH_BODIES"])
def test_all_are_operators_of_onnx(name):
    assert [o for o in getattr(traits, name) if not defs.has(o)] == []


def test_bodies_are_attributes_of_graphs():
    """Of all operators of the newest ONNX, these have one."""
    graph = defs.OpSchema.AttrType.GRAPH
    schemas = [s for s in defs.get_all_schemas() if not s.domain]
    assert {s.name for s in schemas if graph in {a.type for a in s.attributes.values()}} == traits.WITH_BODIES


def test_random_operators_are_those_with_a_seed():
    seeded = {s.name for s in defs.get_all_schemas() if not s.domain and "seed" in s.attributes}
    assert seeded == traits.RANDOM


def test_views_keep_the_type():
    for name in traits.VIEWS:
        schema = defs.get_schema(name)
        assert schema.inputs[0].type_str == schema.outputs[0].type_str

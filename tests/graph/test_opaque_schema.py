"""The schema of an operator that ONNX does not know: as much as one node says of it."""

from onnx import AttributeProto, defs

from ortpartial.graph.opaque_schema import OpaqueSchema

SCHEMA = OpaqueSchema("my.domain", "Relu", 3, 2, (True, False), (("alpha", AttributeProto.FLOAT),), (b"", b""))


def test_its_name_is_that_of_no_other_operator():
    assert (SCHEMA.name, SCHEMA.since_version) == ("my.domain.Relu", 3)
    assert SCHEMA.name != defs.get_schema("Relu").name


def test_inputs_and_outputs():
    assert [(i.name, i.option.name) for i in SCHEMA.inputs] == [("input_0", "Optional"), ("input_1", "Optional")]
    assert [o.option.name for o in SCHEMA.outputs] == ["Single", "Optional"]
    assert len({i.type_str for i in SCHEMA.inputs}) == 2
    assert (SCHEMA.min_input, SCHEMA.max_input, SCHEMA.min_output) == (0, 2, 2)


def test_attributes_have_no_defaults():
    (alpha,) = SCHEMA.attributes.values()
    assert (alpha.name, alpha.type, alpha.required) == ("alpha", defs.OpSchema.AttrType.FLOAT, False)


def test_equal_ones():
    same = OpaqueSchema("my.domain", "Relu", 3, 2, (True, False), (("alpha", AttributeProto.FLOAT),), (b"", b""))
    assert (same, hash(same)) == (SCHEMA, hash(SCHEMA))

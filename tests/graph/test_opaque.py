"""Opaque operators: a schema from a node, and the types that its file declares."""

import pytest
from onnx import TensorProto, helper

from ortpartial.exceptions import ModelError
from ortpartial.graph.opaque import describe_opaque
from ortpartial.model import load

NODE = helper.make_node("Relu", ["x", ""], ["y", "", "z"], domain="my.domain", alpha=0.5, axes=[1, 2], raw=b"\xff")


@pytest.fixture
def schema():
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 3])
    return describe_opaque(NODE, 4, [kind, None, kind])


def test_what_a_node_says(schema):
    described, attributes = schema
    assert (described.name, described.since_version) == ("my.domain.Relu", 4)
    assert (described.min_input, described.max_input, described.min_output) == (0, 2, 3)
    assert [o.option.name for o in described.outputs] == ["Single", "Optional", "Single"]
    assert set(described.attributes) == {"alpha", "axes", "raw"}
    assert attributes == {"alpha": 0.5, "axes": (1, 2), "raw": b"\xff"}


def test_declared_types_lose_their_sizes_and_keep_their_rank(schema):
    declared = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, None]).SerializeToString(deterministic=True)
    assert schema[0].declared == (declared, b"", declared)


def test_equal_nodes_have_equal_schemas(schema):
    """Whatever their sizes are."""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["M", 7])
    assert describe_opaque(NODE, 4, [kind, None, kind])[0] == schema[0]
    assert describe_opaque(NODE, 4, [None, None, None])[0] != schema[0]


def make_model(kind):
    nodes = [helper.make_node("Roll", ["x"], ["h"], domain="my.domain"), helper.make_node("Relu", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    declared = [helper.make_value_info("h", kind)] if kind else []
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              value_info=declared)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_type_that_the_file_declares():
    y = load(make_model(helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 3]))).outputs["y"]
    assert (y.dtype, y.rank) == ("float32", 2)


def test_a_type_that_nobody_knows():
    with pytest.raises(ModelError, match=r"Neither ONNX nor the installed onnxruntime has an operator my\.domain"):
        load(make_model(None))

"""Types of operators that ONNX does not know."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from ortpartial.exceptions import GraphError
from ortpartial.graph import Node, Value, constant, describe_opaque, variable
from ortpartial.runtime.type_finder import _read_type, find_types


def node(op_type, *inputs, declared=None, **attributes):
    names = [f"i{i}" for i in range(len(inputs))]
    proto = helper.make_node(op_type, names, ["y"], domain="com.microsoft", **attributes)
    schema, values = describe_opaque(proto, 1, [declared])
    return Node(schema, inputs, values)


@pytest.mark.parametrize(("text", "shape", "expected"), [
    ("tensor(float)", ["N", 3, None], helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", 3, None])),
    ("tensor(string)", [], helper.make_tensor_type_proto(TensorProto.STRING, None)),
    ("seq(tensor(int64))", [], helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, None))),
    ("optional(seq(tensor(bool)))", [], helper.make_optional_type_proto(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.BOOL, None)))),
    ("map(int64,tensor(float))", [], helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))),
])
def test_read_type(text, shape, expected):
    assert _read_type(text, shape) == expected


def test_sizes_follow_the_inputs():
    x = variable("x", "float32", ["N", "M"])
    assert [Value(t).shape for t in find_types(node("QuickGelu", x))] == [("N", "M")]
    x = variable("x", "float32", [5, "M"])
    assert [Value(t).shape for t in find_types(node("QuickGelu", x))] == [(5, "M")]


def test_a_scalar_is_not_taken_for_an_unknown_shape():
    (kind,) = find_types(node("QuickGelu", variable("x", "float32", [])))
    assert Value(kind).shape == ()
    (kind,) = find_types(node("QuickGelu", variable("x", "float32", None)))
    assert Value(kind).shape is None


def test_the_rank_is_that_of_a_result():
    """Where no axis has the size that the operator takes, one of those of its other inputs is tried."""
    x, points = variable("x", "float32", [None, None]), constant(np.ones((3, 5), np.float32))
    (kind,) = find_types(node("CDist", x, points, metric="euclidean"))
    assert Value(kind).shape == (None, None)
    (kind,) = find_types(node("CDist", x, points, metric="nothing"))
    assert Value(kind).shape is None


def test_errors_say_why():
    with pytest.raises(GraphError, match=r"com.microsoft:Nothing.*is not a registered"):
        find_types(node("Nothing", variable("x", "float32", [3])))
    with pytest.raises(GraphError, match=r"Type 'tensor\(int64\)' of input"):
        find_types(node("Inverse", variable("x", "int64", [3, 3])))

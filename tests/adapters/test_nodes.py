"""Inserted nodes: unique names, and operators in the form of the model's opset."""

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from ortpartial.adapters.nodes import Nodes


@pytest.fixture
def nodes():
    return Nodes("layers.0.fc", TensorProto.FLOAT16, 13)


def test_names(nodes):
    names = [nodes.compute("Mul", "a", "b"), nodes.compute("Mul", "c", "d"), nodes.compute("Add", "a", "b")]
    assert names == ["layers.0.fc/adapter/Mul", "layers.0.fc/adapter/Mul_1", "layers.0.fc/adapter/Add"]
    assert [n.name for n in nodes.nodes] == [n.output[0] for n in nodes.nodes] == names


def test_constants_have_the_type_of_the_module(nodes):
    nodes.constant([1.5, 2])
    nodes.constant(3, TensorProto.INT64)
    half, whole = (numpy_helper.to_array(n.attribute[0].t) for n in nodes.nodes)
    assert (half.dtype, half.tolist()) == (np.float16, [1.5, 2])
    assert (whole.dtype, whole.item()) == (np.int64, 3)


def test_what_changes_nothing_is_no_node(nodes):
    assert nodes.scale("x", 1.0) == nodes.drop("x", 0.0) == nodes.cast("x", TensorProto.FLOAT16) == "x"
    assert nodes.nodes == []
    assert nodes.scale("x", 2.0) != "x"
    assert nodes.cast("x", TensorProto.FLOAT) == "layers.0.fc/adapter/Cast"


@pytest.mark.parametrize(("opset", "inputs"), [(12, 1), (13, 2)])
def test_axes_and_sizes_are_attributes_before_opset_13(opset, inputs):
    nodes = Nodes("fc", TensorProto.FLOAT, opset)
    assert nodes.split("x", [1, 2]) == ["fc/adapter/Split:0", "fc/adapter/Split:1"]
    split = nodes.nodes[-1]
    nodes.sum_rows("x")
    assert len(split.input) == len(nodes.nodes[-1].input) == inputs
    assert [a.name for a in split.attribute] == ["axis", "split"][:3 - inputs]


@pytest.mark.parametrize(("opset", "inputs"), [(11, 1), (12, 2)])
def test_the_ratio_of_dropout_is_an_attribute_before_opset_12(opset, inputs):
    nodes = Nodes("fc", TensorProto.FLOAT, opset)
    nodes.drop("x", 0.25)
    assert len(nodes.nodes[-1].input) == inputs

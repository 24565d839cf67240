"""Expansion of ai.onnx.ml: weights that are attributes are read, written back, and the model computes the same."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from ortpartial.exceptions import ModelError
from ortpartial.model import load
from ortpartial.model.ml.expansion import list_ml_outputs, list_preprocessing, read_ml_weights, write_ml_weights
from ortpartial.runtime import Session

X = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


@pytest.fixture
def model():
    """A Scaler and a linear regression."""
    nodes = [helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[1.0, 2.0], scale=[0.5, 2.0]),
             helper.make_node("LinearRegressor", ["s"], ["y"], domain="ai.onnx.ml", coefficients=[3.0, -1.0],
                              intercepts=[0.25], targets=1)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_weights_by_name(model):
    weights = read_ml_weights(model)
    assert {n: a.ravel().tolist() for n, a in weights.items()} == {
        "s.offset": [1, 2], "s.scale": [0.5, 2], "y.coefficients": [3, -1], "y.intercepts": [0.25]}
    assert list_ml_outputs(model) == {"s", "y"}
    assert list_preprocessing(model) == {"s.offset", "s.scale"}


def test_written_and_read(model):
    before = model.graph.node[0].SerializeToString()
    write_ml_weights(model, {"y.coefficients": np.float32([[7], [8]])})
    assert read_ml_weights(model)["y.coefficients"].ravel().tolist() == [7, 8]
    assert model.graph.node[0].SerializeToString() == before


def test_the_same_numbers(model):
    expected = (X - [1, 2]) * [0.5, 2] @ [[3], [-1]] + 0.25
    np.testing.assert_allclose(Session(model).run({"x": X})["y"], expected, rtol=1e-5, atol=1e-5)
    loaded = load(model)
    assert {n.op_type for n in loaded.proto.graph.node} == {"Scaler", "LinearRegressor"}
    assert "y.coefficients" in loaded.arrays


def test_two_tensors_of_one_name(model):
    model.graph.initializer.append(helper.make_tensor("y.coefficients", TensorProto.FLOAT, [1], [0.0]))
    with pytest.raises(ModelError, match=r"Two tensors are called 'y\.coefficients': a weight of node"):
        read_ml_weights(model)

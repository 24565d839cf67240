"""Quantized weights are found in a graph, changed, and quantized again where they stand."""

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from ortpartial.adapters.constants import Constants
from ortpartial.adapters.products import find_products
from ortpartial.adapters.quantized_weights import find_quantized

TEXT = """<ir_version: 8, opset_import: ["": 21]>
g (float[N, 2] x) => (float[N, 3] y)
<int8[2, 3] w = {127, -64, 10, 0, 127, 127}, float[3] s = {0.5, 0.25, 1.0}, int8[3] z = {0, 0, 0},
 float[2, 3] v = {1, 2, 3, 4, 5, 6}> {
    d = DequantizeLinear <axis = 1> (w, s, z)
    h = MatMul (x, d)
    y = Add (h, h)
}"""


@pytest.fixture
def graph():
    return parse_model(TEXT).graph


def dequantize(graph):
    w, s, *_ = (numpy_helper.to_array(t).astype(float) for t in graph.initializer)
    return w * s


def test_a_weight_of_integers(graph):
    (product,) = find_products(graph)
    weight = find_quantized(Constants(graph), product)
    assert weight.is_turned
    assert not weight.is_packed
    np.testing.assert_allclose(weight.quantization.dequantize(slice(0, 3)), dequantize(graph).T)


def test_a_change_is_quantized_within_half_a_step(graph):
    (product,) = find_products(graph)
    before = dequantize(graph)
    change = np.array([[1.0, -1], [0.5, 0.25], [-3, 2]])
    find_quantized(Constants(graph), product).change(lambda rows, chosen: rows + change[chosen])
    after, scales = dequantize(graph), numpy_helper.to_array(graph.initializer[1])
    assert (abs(after - (before + change.T)) <= scales / 2 + 1e-6).all()
    assert abs(after - before).max() > 1


def test_a_weight_of_real_numbers_is_none(graph):
    graph.node[1].input[1] = "v"
    (product,) = find_products(graph)
    assert find_quantized(Constants(graph), product) is None

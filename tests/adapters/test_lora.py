"""LoRA: its first weights, and the nodes that compute y = W(x) + scale · dropout(x) A B."""

import math

import numpy as np
import pytest
from models import stack_layers
from onnx import TensorProto, helper

from ortpartial import add_lora
from ortpartial.adapters.lora import draw
from ortpartial.adapters.products import Part, find_products
from ortpartial.graph import build, constant, op, variable


def list_products(kind):
    x = variable("x", "float32" if kind == "Conv" else "int64", ["N", 4, 9])
    if kind == "Conv":
        y = op.Conv(x, constant(np.ones((5, 4, 3), np.float32)))
    else:
        y = op.Gather(constant(np.ones((7, 4), np.float32)), x)
    return find_products(build([x], [y]).graph)


def test_first_weights_change_nothing():
    (product,) = find_products(stack_layers("fc").graph)
    weights = draw(product, Part("fc", 0, 4), 3, np.random.default_rng(0))
    assert {n: w.shape for n, w in weights.items()} == {"lora_A": (4, 3), "lora_B": (3, 4)}
    assert not weights["lora_B"].any()
    assert 0 < abs(weights["lora_A"]).max() <= 1 / math.sqrt(4)


@pytest.mark.parametrize(("kind", "shapes", "zero"), [
    ("Conv", {"lora_A": (2, 4, 3), "lora_B": (5, 2, 1)}, "lora_B"),
    ("Gather", {"lora_A": (7, 2), "lora_B": (2, 4)}, "lora_A")])
def test_first_weights_of_a_convolution_and_a_table(kind, shapes, zero):
    (product,) = list_products(kind)
    weights = draw(product, product.parts[0], 2, np.random.default_rng(0))
    assert {n: w.shape for n, w in weights.items()} == shapes
    assert [n for n, w in weights.items() if not w.any()] == [zero]


def test_the_nodes_of_a_product():
    """Two products, of which the first has the scale, beside that of the frozen weight."""
    nodes = add_lora(stack_layers("fc"), "fc", rank=2, alpha=6).graph.node
    added = [n.op_type for n in nodes if "/adapter/" in n.name]
    assert added.count("MatMul") == 2
    assert added.count("Mul") == added.count("Add") == 1
    (scale,) = (helper.get_attribute_value(a) for n in nodes for a in n.attribute
                if n.op_type == "Constant" and "/adapter/" in n.name)
    assert scale.data_type == TensorProto.FLOAT
    assert np.frombuffer(scale.raw_data, np.float32) == 3

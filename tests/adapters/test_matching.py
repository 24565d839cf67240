"""The products of an adapter are found by its record, and a record of another model is refused."""

from dataclasses import replace

import pytest
from models import stack_layers, weights_of

from ortpartial import add_lora
from ortpartial.adapters.matching import match_products
from ortpartial.exceptions import ModelError
from ortpartial.model import read_adapter


@pytest.fixture
def adapted():
    model = add_lora(stack_layers("a", "b"), "b", rank=2, random_state=0)
    return model, read_adapter(model), weights_of(model)


def test_products_by_their_nodes(adapted):
    model, adapter, arrays = adapted
    (target,) = adapter.targets
    products = match_products(model.graph, adapter, arrays)
    assert products[target.node].weight == "b.weight"
    assert products["MatMul_node_0"].weight == "a.weight"


@pytest.mark.parametrize("changes", [{"node": "elsewhere"}, {"inputs": 3}, {"outputs": 5}, {"stop": 3}, {"stop": 0},
                                     {"weights": {"lora_A": "a.bias", "lora_B": "a.bias"}}])
def test_a_record_that_does_not_fit(adapted, changes):
    model, adapter, arrays = adapted
    forged = replace(adapter, targets=(replace(adapter.targets[0], **changes),))
    with pytest.raises(ModelError, match=r"record of its adapter does not fit the model: 'b' is at .*, where"):
        match_products(model.graph, forged, arrays)

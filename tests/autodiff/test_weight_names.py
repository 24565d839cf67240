"""Names and patterns of weights, and frozen weights."""

import pytest
from models import stack_layers

from ortpartial.autodiff.trainable import resolve_weights
from ortpartial.autodiff.weight_names import find_frozen, find_named
from ortpartial.exceptions import ModelError
from ortpartial.model.load import load


def stack():
    return load(stack_layers("embeddings", "layer.0", "layer.1", "head"))


@pytest.mark.parametrize(("freeze", "trained"), [
    ("layer.*", ["embeddings.weight", "embeddings.bias", "head.weight", "head.bias"]),
    (("embeddings.*", "layer.[01].*"), ["head.weight", "head.bias"]),
    (["*", "!head.*", "head.bias"], ["head.weight"]),
    (["!head.*", "*.weight"], ["embeddings.bias", "layer.0.bias", "layer.1.bias", "head.bias"]),
])
def test_what_is_frozen_is_not_trained(freeze, trained):
    assert resolve_weights(stack(), None, ["y"], freeze) == trained
    assert resolve_weights(stack(), ["head.*", "*"], ["y"], freeze) == [
        *[n for n in trained if n.startswith("head")], *[n for n in trained if not n.startswith("head")]]


@pytest.mark.parametrize(("freeze", "message"), [
    ("layr.*", "The pattern 'layr.*' matches no weight; its float initializers are 'embeddings.weight'"),
    ("layer.5.*", "The pattern 'layer.5.*' matches no weight; did you mean 'layer.*.*', as in 'layer.1.bias'?"),
    (["*", "!hed.*"], "The pattern 'hed.*' matches no weight; its float initializers are"),
    ("head.wieght", "The weight 'head.wieght' is no initializer of the model; did you mean 'head.weight'"),
    ([3], "freeze has 3, where a name, a string, was expected."),
    ("*", "freeze='*' leaves none of 'embeddings.weight', 'embeddings.bias', "),
])
def test_a_mistake_is_named(freeze, message):
    with pytest.raises(ModelError) as error:
        resolve_weights(stack(), None, ["y"], freeze)
    assert message in str(error.value)


def test_by_which_item_a_weight_is_frozen():
    assert find_frozen(stack(), ["*.bias", "layer.*", "!layer.1.bias"]) == {
        "embeddings.bias": "*.bias", "head.bias": "*.bias", "layer.0.weight": "layer.*", "layer.0.bias": "layer.*",
        "layer.1.weight": "layer.*"}
    assert find_named(stack(), "head.bias") == {"head.bias"}

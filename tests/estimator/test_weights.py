"""How freeze and unfreeze change the settings that choose weights."""

import pytest
from models import stack_layers

from ortpartial.estimator.weights import choose_weights, freeze_less, freeze_more
from ortpartial.exceptions import ModelError
from ortpartial.learning import SquareLearningLoss
from ortpartial.model.load import load

HEAD = ["head.weight", "head.bias"]


def trained(weights, freeze):
    """The modules whose parameters are all trained, and single parameters."""
    settings = {"weights_to_train": weights, "freeze": freeze, "rate_factors": None}
    return choose_weights(load(stack_layers("layer.0", "layer.1", "head")), {"y": SquareLearningLoss()}, settings)[0]


@pytest.mark.parametrize(("weights", "freeze", "patterns", "after"), [
    (None, ("layer.*",), ["layer.1.*"], (None, ("layer.*", "!layer.1.*"))),
    (None, ("layer.*", "!layer.1.*"), ["layer.*"], (None, ())),
    (None, "layer.*", ["layer.0.weight", "layer.1.*"], (None, ("layer.*", "!layer.0.weight", "!layer.1.*"))),
    (None, ("layer.*", "*.bias"), ["layer.*"], (None, ("*.bias", "!layer.*"))),
    (None, (), ["layer.*"], (None, ())),
    ("*.weight", ("layer.*",), ["layer.*"], ("*.weight", ())),
    (HEAD, (), ["layer.1.*"], ([*HEAD, "layer.1.weight", "layer.1.bias"], ())),
    (HEAD, ("layer.*",), ["layer.1.bias"], ([*HEAD, "layer.1.bias"], ("layer.*", "!layer.1.bias"))),
])
def test_unfreezing(weights, freeze, patterns, after):
    """Frozen weights first; where there are none, those that were never chosen."""
    model = load(stack_layers("layer.0", "layer.1", "head"))
    settings = freeze_less(model, ["y"], patterns, {"weights_to_train": weights, "freeze": freeze})
    assert (settings["weights_to_train"], settings["freeze"]) == after
    assert {*trained(weights, freeze)} <= {*trained(*after)}


@pytest.mark.parametrize(("freeze", "patterns", "after"), [
    ((), ["a.*"], ("a.*",)),
    ("a.*", ["b.*", "c"], ("a.*", "b.*", "c")),
    (("a.*", "!a.b", "c"), ["a.b"], ("a.*", "c", "a.b")),
    (("a.*", "b"), ["a.*"], ("b", "a.*")),
])
def test_freezing(freeze, patterns, after):
    assert freeze_more(freeze, patterns) == after


def test_a_weight_that_no_gradient_reaches():
    model = load(stack_layers("layer.0", "head"))
    with pytest.raises(ModelError, match=r"The pattern 'layer\.9\.\*' matches no weight; did you mean 'layer\.\*\.\*'"):
        freeze_less(model, ["y"], ["layer.9.*"], {"weights_to_train": None, "freeze": ()})

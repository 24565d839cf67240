"""Factors of the rate of each weight: names, patterns, the depth of layers; descriptions of weights."""

from dataclasses import replace

import pytest
from models import stack_layers

from ortpartial.exceptions import ModelError, SettingError
from ortpartial.learning import LayerwiseDecay
from ortpartial.model.aliases import Alias
from ortpartial.model.load import load
from ortpartial.training.rate_factors import WeightDescription, describe_weights, resolve_rate_factors


def stack():
    return load(stack_layers("embeddings", "layer.0", "layer.1", "head"))


@pytest.mark.parametrize(("factors", "resolved"), [
    (None, {}),
    ({"layer.*": 0.5, "head.bias": 2, "*": 1}, {"layer.0.weight": 0.5, "layer.0.bias": 0.5, "layer.1.weight": 0.5,
                                               "layer.1.bias": 0.5, "head.bias": 2.0}),
    ({"*": 0.1, "layer.*": 0.5, "layer.1.*": 1.0, "layer.1.bias": 3, "head.*": 1, "embeddings.*": 1},
     {"layer.0.weight": 0.5, "layer.0.bias": 0.5, "layer.1.bias": 3.0}),
    ({"head.[bw]*": 0.2, "head.???*": 0.3}, {"head.weight": 0.2, "head.bias": 0.2}),
    (LayerwiseDecay(0.5), {"embeddings.weight": 0.125, "embeddings.bias": 0.125, "layer.0.weight": 0.25,
                           "layer.0.bias": 0.25, "layer.1.weight": 0.5, "layer.1.bias": 0.5}),
    (LayerwiseDecay(1), {}),
])
def test_the_most_specific_item_counts(factors, resolved):
    assert resolve_rate_factors(stack(), factors, ["y"]) == resolved


@pytest.mark.parametrize(("factors", "error", "message"), [
    ({"layr.*": 0.5}, ModelError, "The pattern 'layr.*' matches no weight; "),
    ({"layer.7.*": 0.5}, ModelError, "did you mean 'layer.*.*', as in 'layer.1.bias'?"),
    ({"layer.*": 0}, SettingError, "The factor of 'layer.*' in rate_factors is a number above 0, not 0; "
                                   "freeze='layer.*' leaves weights as they are."),
    ({"layer.*": float("nan")}, SettingError, "The factor of 'layer.*' in rate_factors is a number above 0, not nan."),
    ({"layer.*": True}, SettingError, "is a number above 0, not True."),
    ({"layer.*": "0.1"}, SettingError, "is a number above 0, not '0.1'."),
    ({3: 0.1}, ModelError, "A weight is named by a string, not by 3."),
    (0.5, SettingError, "rate_factors is a dict of patterns and factors, or a LayerwiseDecay, not 0.5."),
])
def test_a_mistake_is_named(factors, error, message):
    with pytest.raises(error) as raised:
        resolve_rate_factors(stack(), factors, ["y"])
    assert message in str(raised.value)


def test_aliases_are_names():
    model = replace(stack(), aliases={"net.0.weight": Alias("layer.0.weight"), "net.0.bias": Alias("layer.0.bias")})
    assert resolve_rate_factors(model, {"layer.0.*": 0.1, "net.0.weight": 0.5}, ["y"]) == {
        "layer.0.weight": 0.5, "layer.0.bias": 0.1}
    with pytest.raises(ModelError, match=r"did you mean 'net\.\*\.b\*', as in 'net\.0\.bias'\?"):
        resolve_rate_factors(model, {"net.1.b*": 0.5}, ["y"])


def test_a_decay_out_of_range():
    with pytest.raises(SettingError, match="LayerwiseDecay"):
        LayerwiseDecay(1.5)


def test_what_is_said_of_weights():
    described = describe_weights(stack(), ["head.weight", "layer.1.weight"], ["y"], freeze=("layer.0.*", "*.bias"),
                                 rate_factors=LayerwiseDecay(0.5))
    assert described == {
        "embeddings.weight": WeightDescription(0.0, "not among those to train"),
        "embeddings.bias": WeightDescription(0.0, "frozen by '*.bias'"),
        "layer.0.weight": WeightDescription(0.0, "frozen by 'layer.0.*'"),
        "layer.0.bias": WeightDescription(0.0, "frozen by '*.bias'"),
        "layer.1.weight": WeightDescription(0.5), "layer.1.bias": WeightDescription(0.0, "frozen by '*.bias'"),
        "head.weight": WeightDescription(1.0), "head.bias": WeightDescription(0.0, "frozen by '*.bias'")}
    assert [n for n, w in described.items() if w.is_trained] == ["layer.1.weight", "head.weight"]

"""External data: a model whose weights were left out is restored to the bit."""

import numpy as np
import pytest
from models import mlp, weights_of

from ortpartial.model import external_data as weights
from ortpartial.model.external_data import (
    change_weights,
    offload_weights,
    replace_weights,
    restore_weights,
    split_external_data,
)
from ortpartial.model.load import load
from ortpartial.model.specialize import specialize
from ortpartial.runtime.session import Session


def test_replace_weights_changes_nothing_else():
    model = mlp()
    model.doc_string = "kept"
    model.metadata_props.add(key="author", value="kept")
    model.graph.initializer[0].doc_string = "kept"
    model.graph.initializer[1].ClearField("raw_data")
    model.graph.initializer[1].float_data.extend(range(8))
    first, second = (t.name for t in model.graph.initializer[:2])
    before = model.SerializeToString()
    old = weights_of(model)
    new = {first: old[first].T.copy().T * 2, second: old[second] + 1}
    found = replace_weights(model, new)
    assert model.SerializeToString() == before
    assert (weights_of(found)[first] == new[first]).all()
    back = replace_weights(found, old)
    assert back.graph.initializer[0].doc_string == "kept"
    back.graph.initializer[1].CopyFrom(model.graph.initializer[1])
    assert back == model


@pytest.mark.parametrize("in_a_file", [False, True])
def test_what_was_left_out_comes_back(monkeypatch, in_a_file):
    monkeypatch.setattr(weights, "BIG", 64)
    monkeypatch.setattr(weights, "_MANY", 0 if in_a_file else 2**20)
    proto = mlp(hidden=100)
    light = offload_weights(load(proto))
    assert (light.file is not None) is in_a_file
    assert len(light.proto.SerializeToString()) < len(proto.SerializeToString()) / 2
    assert restore_weights(light) == proto
    name, new = next((n, a + 1) for n, a in weights_of(proto).items())
    assert (weights_of(restore_weights(light, {name: new}))[name] == new).all()


def test_what_is_too_big_for_a_message_is_handed_over_apart(monkeypatch):
    proto = mlp(hidden=100)
    (i,) = proto.graph.input
    x = {i.name: np.ones([d.dim_value or 3 for d in i.type.tensor_type.shape.dim], np.float32)}
    expected = Session(proto).run(x)
    assert split_external_data(proto) == (proto, {})
    monkeypatch.setattr(weights, "MESSAGE", 0)
    monkeypatch.setattr(weights, "BIG", 64)
    light, apart = split_external_data(proto)
    assert apart
    assert len(light.SerializeToString()) < len(proto.SerializeToString()) / 2
    found = Session(proto).run(x)
    assert all((found[n] == expected[n]).all() for n in expected)


@pytest.mark.parametrize("big", [64, 2**20])
def test_changed_weights_are_those_of_the_proto_and_of_the_values(monkeypatch, big):
    monkeypatch.setattr(weights, "BIG", big)
    model = offload_weights(load(mlp(hidden=100)))
    new = {n: a + 1 for n, a in model.arrays.items() if n in ("W1", "b2")}
    changed = change_weights(model, new)
    assert (len(changed.proto.SerializeToString()) < 1000) is (big == 64)
    stored, constants = weights_of(restore_weights(changed)), specialize(changed).initializers
    for n, a in weights_of(mlp(hidden=100)).items():
        assert (stored[n] == new.get(n, a)).all()
        assert (constants[n].array == new.get(n, a)).all()

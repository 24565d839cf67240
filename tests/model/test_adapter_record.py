"""The record of an adapter: written and read again, and refused where it is damaged, newer or of another model."""

import json
import re

import pytest
from models import linear

from ortpartial.exceptions import ModelError
from ortpartial.model.adapter_record import Adapter, Target, is_base, note_adapter, read_adapter

TARGET = Target("fc", "node", "Gemm", "coef", 4, 1, 0, 1, 2.0, False, {"lora_A": "coef", "lora_B": "intercept"})
ADAPTER = Adapter("lora", 8, 16.0, 0.1, (TARGET,))


@pytest.fixture
def model():
    proto = linear()
    proto.metadata_props.add(key="mine", value="1")
    note_adapter(proto, ADAPTER)
    return proto


def test_written_and_read(model):
    assert read_adapter(model) == ADAPTER
    assert ADAPTER.weights == ["coef", "intercept"]
    assert not is_base(model, ADAPTER)
    note_adapter(model, None)
    assert read_adapter(model) is None
    assert [p.key for p in model.metadata_props] == ["mine"]


def test_written_twice_is_there_once(model):
    note_adapter(model, ADAPTER)
    assert len(model.metadata_props) == 2


@pytest.mark.parametrize(("change", "message"), [
    ({"rank": "8"}, "is damaged (rank is '8'); add the adapter to the base again."),
    ({"dropout": 1.5}, "is damaged (dropout is 1.5)"), ({"targets": {}}, "is damaged (format is 1)"),
    ({"unheard": 1}, "is damaged ("),
    ({"format": 2}, "is recorded in format 2, and this version of ortpartial reads formats up to 1; update it."),
])
def test_a_record_that_is_refused(model, change, message):
    record = next(p for p in model.metadata_props if p.key != "mine")
    record.value = json.dumps({**json.loads(record.value), **change})
    with pytest.raises(ModelError, match=re.escape(message)):
        read_adapter(model)


def test_a_weight_that_is_not_there(model):
    del model.graph.initializer[1]
    with pytest.raises(ModelError, match=r"names the weight 'intercept', which the model does not have; add"):
        read_adapter(model)

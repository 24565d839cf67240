"""The record of a torch module: written, read again, replaced, and refused where it is damaged."""

import json

import pytest
from onnx import ModelProto

from ortpartial.exceptions import ModelError
from ortpartial.model import TorchRecord, note_torch, read_torch

RECORD = TorchRecord(("w",), ("v",), ("b",), ("onnx::Mul_1",), {"head.weight": "w"}, True, ("m",), ("c",))


def noted(record=RECORD):
    proto = ModelProto()
    proto.metadata_props.add(key="other", value="kept")
    note_torch(proto, record)
    return proto


def test_there_and_back():
    proto = noted()
    assert read_torch(ModelProto.FromString(proto.SerializeToString())) == RECORD
    note_torch(proto, TorchRecord())
    assert read_torch(proto) == TorchRecord()
    assert [p.key for p in proto.metadata_props] == ["other", "ortpartial.torch"]
    assert read_torch(ModelProto()) is None


def test_untrained():
    assert list(RECORD.untrained) == ["v", "b", "onnx::Mul_1"]
    assert RECORD.untrained["v"] == "requires_grad is False in torch"


@pytest.mark.parametrize("changes", [{"parameters": "w"}, {"frozen": [1]}, {"ties": {"a": 1}}, {"training": "yes"},
                                     {"unknown": []}, {"format": "x"}])
def test_damaged(changes):
    proto = noted()
    entry = next(p for p in proto.metadata_props if p.key == "ortpartial.torch")
    entry.value = json.dumps({**json.loads(entry.value), **changes})
    with pytest.raises(ModelError, match=r"record of its torch module, 'ortpartial.torch' in its metadata, is damaged"):
        read_torch(proto)
    entry.value = "["
    with pytest.raises(ModelError, match=r"is damaged .*; export the module again, or delete the entry"):
        read_torch(proto)


def test_newer():
    proto = noted()
    entry = next(p for p in proto.metadata_props if p.key == "ortpartial.torch")
    entry.value = json.dumps({**json.loads(entry.value), "format": 2})
    with pytest.raises(ModelError, match=r"recorded in format 2, .* reads formats up to 1; update it"):
        read_torch(proto)

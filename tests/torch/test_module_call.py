"""Calls of a module: names of nested inputs, axes of any size, and the call by position."""

import re

import pytest
import torch

from ortpartial.exceptions import SettingError
from ortpartial.torch.module_call import read_axes, read_call

A, B = torch.ones(2, 3), torch.zeros(4)


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x, pair=None, factor=2.0, **others):
        return x * factor + pair["b"].sum() + others.get("scale", 0)


@pytest.fixture
def call():
    return read_call(Nested(), (A, {"pair": {"b": B, "n": 3}, "scale": torch.ones(())}))


def test_inputs_by_name(call):
    """A name that the module's own state has gets a suffix."""
    assert list(call.inputs) == ["x", "pair_b", "scale_input"]
    assert call.run(Nested()).tolist() == (A * 2 + 1).tolist()


def test_a_longer_call(call):
    longer = call.lengthen({"x": {0: "N", 1: "M"}})
    assert [tuple(t.shape) for t in longer.tensors] == [(4, 6), (4,), ()]
    assert tuple(call.inputs["x"].shape) == (2, 3)


def test_what_is_no_tensor():
    with pytest.raises(TypeError, match=r"The example 'x' is object; give a tensor for each input\."):
        read_call(Nested(), (object(),))


def test_axes(call):
    assert read_axes(call, None) == {"x": {0: "N"}, "pair_b": {0: "N"}}
    assert read_axes(call, {"x": [0, -1], "pair_b": {0: "len"}}) == {"x": {0: "N", 1: "x_1"}, "pair_b": {0: "len"}}
    for axes, message in (({"y": [0]}, "dynamic_axes names 'y', which is no input; the inputs are 'x', 'pair_b'"),
                          ({"x": [2]}, "dynamic_axes names the axis 2 of 'x', which has 2 axes.")):
        with pytest.raises(SettingError, match=re.escape(message)):
            read_axes(call, axes)


def test_all_inputs_by_position(call):
    module = Nested()
    with call.taking_positions(module):
        (y,) = module(*call.tensors)
        assert torch.equal(y, call.run(Nested()))
    assert "forward" not in vars(module)

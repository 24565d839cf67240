"""Sessions between tensors: memory that is shared, tensors of every kind, and outputs that are inputs."""

import pytest
import torch

from ortpartial.graph import build, op, variable
from ortpartial.runtime import Device
from ortpartial.torch.tensor_session import Placement, TensorSession, to_ortvalue, to_tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.float16])
def test_memory_is_shared(dtype):
    t = torch.arange(6).reshape(2, 3).to(dtype)
    shared = to_tensor(to_ortvalue(t), dtype is torch.bool)
    assert shared.data_ptr() == t.data_ptr()
    assert torch.equal(shared, t)


def test_strided_and_empty_tensors():
    t = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(to_tensor(to_ortvalue(t)), t)
    assert to_tensor(to_ortvalue(torch.zeros(0, 3))).shape == (0, 3)


def test_a_session_finds_its_inputs_among_tensors():
    x = variable("x", "float32", ["N"])
    graph = build([x], {"y": op.Exp(x), "same": x, "positive": x > 0})
    run = TensorSession(graph, ["other", "x"], Placement(Device.parse("cpu")))
    t = torch.tensor([0.0, -1.0])
    y, same, positive = run([torch.ones(3), t])
    assert torch.equal(y, t.exp())
    assert positive.tolist() == [False, False]
    assert torch.equal(same, t)
    assert same.data_ptr() != t.data_ptr(), "an output is no memory of the caller's"

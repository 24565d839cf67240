"""The state of a module: dotted names, names that are taken, ties, and state_dicts that a graph does not read."""

import ml_dtypes
import numpy as np
import torch
from models import mlp
from onnx import TensorProto

from ortpartial.torch.module_state import as_array, as_tensor, find_owner, match_state, register, register_unread


def test_dotted_names():
    module = torch.nn.Module()
    assert register(module, "a.b.weight", torch.ones(2), True) == "a.b.weight"
    assert register(module, "a.count", torch.ones(()), False) == "a.count"
    assert [n for n, _ in module.named_parameters()] == ["a.b.weight"]
    assert [n for n, _ in module.named_buffers()] == ["a.count"]
    owner, kind, last = find_owner(module, "a.count")
    assert (owner is module.a, kind, last) == (True, "_buffers", "count")


def test_names_that_are_taken():
    """Those of torch's modules, those of other tensors, and empty ones."""
    module = torch.nn.Module()
    assert register(module, "forward", torch.ones(1), True) == "forward_"
    assert register(module, "forward", torch.ones(1), True) == "forward__"
    assert register(module, "train.w", torch.ones(1), True) == "train_.w"
    assert register(module, "a..b", torch.ones(1), True) == "a._.b"


def test_what_a_graph_does_not_hold():
    module, shared = torch.nn.Module(), torch.ones(2)
    register(module, "w", shared, True)
    unused = torch.nn.Parameter(torch.ones(1))
    state = {"w": shared, "tied": shared, "counter": torch.tensor(3), "unused": unused, "again": unused}
    assert register_unread(module, state, True) == ["counter", "unused"]
    assert {n for n, _ in module.named_parameters(remove_duplicate=False)} == {"w", "tied", "unused", "again"}
    assert module.again is module.unused
    other = torch.nn.Module()
    assert register_unread(other, {"unused": unused}, False) == ["unused"]
    assert not list(other.parameters())
    assert module.tied is module.w
    assert module.counter.item() == 3


def test_a_state_dict_with_a_constant_of_the_graph():
    model, module, errors = mlp(), torch.nn.Module(), []
    register(module, "W1", torch.zeros(4, 8), True)
    b = torch.tensor(np.frombuffer(model.graph.initializer[1].raw_data, np.float32).copy())
    name = model.graph.initializer[1].name
    state = {"net.W1": torch.ones(4, 8), f"net.{name}": b.clone()}
    match_state(state, "net.", module, model, [], errors)
    assert (list(state), errors) == (["net.W1"], [])
    state = {f"net.{name}": b + 1}
    match_state(state, "net.", module, model, [], errors)
    assert "is a constant of the graph, which holds another content" in errors[0]


def test_bfloat16():
    a = np.array([1.5, -2], ml_dtypes.bfloat16)
    t = as_tensor(a)
    assert t.dtype is torch.bfloat16
    assert as_array(t, TensorProto.BFLOAT16).tolist() == a.tolist()
    assert as_array(t, TensorProto.FLOAT).dtype == np.float32

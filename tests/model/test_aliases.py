"""Aliases of initializers: from the scopes of nodes, and from the parameters of a module."""

import pickle
import re

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.model.aliases import (
    Alias,
    AliasDict,
    find_aliases,
    find_module_names,
    find_names_by_scope,
    is_generated_name,
)
from ortpartial.model.load import load


def graph(nodes, **initializers):
    """A graph of nodes such as "/fc/MatMul: y = MatMul(x, W)", with arrays as initializers."""
    tensors = [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in initializers.items()]
    written = []
    for node in nodes.split("; "):
        name, output, operator, inputs = re.fullmatch(r"(?:(\S+): )?(\S+) = (\w+)\((.*)\)", node).groups()
        written.append(helper.make_node(operator, inputs.split(", "), [output], name=name))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in "xy")
    return helper.make_graph(written, "g", [x], [y], tensors)


W, B = np.array([[1, 2], [3, 4]], np.float32), np.array([1, 2], np.float32)


@pytest.mark.parametrize(("name", "generated"), [
    ("onnx::MatMul_516", True), ("onnx::Conv_27", True), ("val_206", True), ("1234", True), ("_val_3", True),
    ("encoder.weight", False), ("W1", False), ("val", False), ("intervals_3", False), ("Ad_Addcst", False),
])
def test_generated_names(name, generated):
    assert is_generated_name(name) is generated


@pytest.mark.parametrize(("nodes", "aliases"), [
    ("/a/fc/MatMul: y = MatMul(x, val_1)", {"a.fc.weight": "val_1"}),
    ("/MatMul: y = MatMul(x, val_1)", {"weight": "val_1"}),
    ("/fc/MatMul: y = MatMul(x, W1)", {}),
    ("MatMul: y = MatMul(x, val_1)", {}),
    ("/fc/Gemm: y = Gemm(x, val_1, val_2)", {"fc.weight": "val_1", "fc.bias": "val_2"}),
    ("/fc/MatMul: h = MatMul(x, W1); /fc/Add: y = Add(val_2, h)", {"fc.bias": "val_2"}),
    ("/fc/MatMul: h = MatMul(x, W1); /Add: y = Add(h, val_2)", {}),
    ("/fc/Add: y = Add(x, val_2)", {}),
    ("/fc/Mul: y = Mul(x, val_2)", {}),
    ("/ln/LayerNormalization: y = LayerNormalization(x, val_2, val_3)", {"ln.weight": "val_2", "ln.bias": "val_3"}),
    # A module that is called twice has one weight; two weights of a scope have none of their own.
    ("/a/MatMul: h = MatMul(x, val_1); /a/MatMul_1: y = MatMul(h, val_1)", {"a.weight": "val_1"}),
    ("/a/MatMul: h = MatMul(x, val_1); /b/MatMul: y = MatMul(h, val_1)", {}),
    ("/a/MatMul: h = MatMul(x, val_1); /a/MatMul_1: y = MatMul(h, val_4)", {}),
    ("/a/MatMul: h = MatMul(x, val_1); m = Identity(val_1); /b/MatMul: y = MatMul(h, m)", {}),
    # The name of another tensor.
    ("/fc/MatMul: fc.weight = MatMul(x, val_1); y = Exp(fc.weight)", {}),
])
def test_aliases_from_scopes(nodes, aliases):
    g = graph(nodes, W1=W, val_1=W, val_2=B, val_3=B, val_4=W)
    assert find_aliases(g) == {alias: Alias(name) for alias, name in aliases.items()}


R, S = (np.random.default_rng(i).normal(size=(3, 2)).astype(np.float32) for i in range(2))


@pytest.mark.parametrize(("arrays", "state", "aliases"), [
    ({"val_1": R}, {"fc.weight": R}, {"fc.weight": Alias("val_1")}),
    ({"val_1": R.T}, {"fc.weight": R}, {"fc.weight": Alias("val_1", transposed=True)}),
    ({"W1": R, "val_2": S}, {"a": S, "b": R}, {"a": Alias("val_2"), "b": Alias("W1")}),
    ({"fc.weight": R, "val_2": S}, {"fc.weight": R, "b": S}, {"b": Alias("val_2")}),
    # Ambiguous: two parameters of the same content, two initializers, or one that has the name of the content.
    ({"val_1": R}, {"a": R, "b": R}, {}),
    ({"val_1": R}, {"a": R, "b": R.T}, {}),
    ({"val_1": R, "val_2": R}, {"a": R}, {}),
    ({"a": R, "val_2": R.T}, {"a": R, "b": R}, {}),
    ({"val_1": np.zeros(3, np.int64)}, {"a": np.zeros(3, np.int64)}, {}),
    ({"val_1": R.astype(np.float16)}, {"a": R.astype(np.float16)}, {"a": Alias("val_1")}),
    ({"val_1": R + 1}, {"a": R}, {}),
    ({"val_1": np.zeros((0, 2), np.float32)}, {"a": np.zeros((0, 2), np.float32)}, {"a": Alias("val_1")}),
])
def test_names_of_a_module(arrays, state, aliases):
    assert find_module_names(arrays, state) == aliases


def test_names_of_a_torch_module():
    module = torch.nn.Module()
    module.embedding, module.head = torch.nn.Embedding(3, 2), torch.nn.Linear(2, 3)
    module.head.weight = module.embedding.weight  # tied
    w, b = (t.detach().numpy() for t in (module.embedding.weight, module.head.bias))
    assert find_module_names({"val_1": w.T, "val_2": b}, module) == {
        "embedding.weight": Alias("val_1", transposed=True), "head.bias": Alias("val_2")}
    half = torch.nn.Linear(2, 3).to(torch.bfloat16)
    assert find_module_names({"val_1": half.weight.detach().float().numpy()}, half) == {"weight": Alias("val_1")}
    with pytest.raises(ModelError, match=r"names_from is a torch module or its state_dict, not int\."):
        find_module_names({}, 3)


def test_a_model_knows_its_aliases(caplog):
    model = load(proto("/a/fc/MatMul: h = MatMul(x, val_1); /b/MatMul: y = MatMul(h, val_4)", val_1=W, val_4=2 * W))
    assert model.aliases == {"a.fc.weight": Alias("val_1"), "b.weight": Alias("val_4")}
    assert model.main_names == {"val_1": "a.fc.weight", "val_4": "b.weight"}
    assert [model.find_initializer(n) for n in ("a.fc.weight", "val_4", "nothing")] == ["val_1", "val_4", "nothing"]
    with caplog.at_level("INFO", "ortpartial"):
        named = load(model, names_from={"inner.weight": W.T})
    assert "1 of 2 initializers have names of the module, 1 of them transposed" in caplog.text
    assert named.aliases == {"inner.weight": Alias("val_1", transposed=True), "b.weight": Alias("val_4")}
    assert load(named, batch=3).aliases == named.aliases


def proto(nodes, **initializers):
    return helper.make_model(graph(nodes, **initializers), opset_imports=[helper.make_opsetid("", 21)], ir_version=9)


def test_dicts_by_alias():
    weights = AliasDict({"val_1": 1}, {"fc.weight": Alias("val_1"), "fc.bias": Alias("val_2")})
    for d in (weights, pickle.loads(pickle.dumps(weights))):
        assert d == {"val_1": 1}
        assert (d["fc.weight"], d.get("fc.weight"), d.get("fc.bias", 7), "fc.weight" in d) == (1, 1, 7, True)
        assert "fc.bias" not in d
        with pytest.raises(KeyError, match=r"fc\.bias"):
            d["fc.bias"]


def test_names_of_fresh_weights_by_their_modules():
    """Weights of one number are told apart by the modules that read them, in another shape maybe."""
    ones, zeros = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    nodes = ("/a/Mul: g = Mul(x, val_1); /a/Add: h = Add(g, val_2); /net/b/Mul: i = Mul(h, val_3); "
             "/net/b/Add: y = Add(i, val_4)")
    g = graph(nodes, val_1=ones, val_2=zeros, val_3=ones, val_4=zeros)
    state = {f"{m}.{n}": np.full(2, c, np.float32) for m in "ab" for n, c in (("weight", 1), ("bias", 0))}
    arrays = {t.name: numpy_helper.to_array(t) for t in g.initializer}
    named = find_names_by_scope(g, arrays, state)
    assert {n: a.initializer for n, a in named.items()} == {
        "a.weight": "val_1", "a.bias": "val_2", "b.weight": "val_3", "b.bias": "val_4"}
    assert find_names_by_scope(g, arrays, {"a.weight": ones, "a.scale": ones}) == {}
    named = load(proto(nodes, val_1=ones, val_2=zeros, val_3=ones, val_4=zeros), names_from=state)
    assert named.main_names == {"val_1": "a.weight", "val_2": "a.bias", "val_3": "b.weight", "val_4": "b.bias"}

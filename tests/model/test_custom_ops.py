"""Operators that ONNX does not know, and the libraries of a model's domains."""

import pytest
from models import mlp
from onnx import TensorProto, helper

from ortpartial.exceptions import ModelError
from ortpartial.model import custom_ops
from ortpartial.model.custom_ops import find_libraries, is_opaque, register_libraries, resolve_libraries


@pytest.fixture(autouse=True)
def no_libraries(monkeypatch):
    monkeypatch.setattr(custom_ops, "_LIBRARIES", {})


def make_model(*domains):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])
    nodes = [helper.make_node("Roll", ["x"], [f"y{i}"], domain=d) for i, d in enumerate(domains)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], []),
                             opset_imports=[helper.make_opsetid(d, 1) for d in domains])


@pytest.mark.parametrize(("node", "expected"), [
    (helper.make_node("Relu", ["x"], ["y"]), False), (helper.make_node("Unheard", ["x"], ["y"]), False),
    (helper.make_node("Relu", ["x"], ["y"], domain="my.domain"), True),
    (helper.make_node("FusedMatMul", ["a", "b"], ["y"], domain="com.microsoft"), False),
    (helper.make_node("FusedMatMul", ["a", "b", "c"], ["y"], domain="com.microsoft"), True)])
def test_opaque_nodes(node, expected):
    assert is_opaque(node) == expected


def test_the_libraries_of_a_model():
    register_libraries(make_model("a.b", "com.microsoft"), ["/lib/one.so"])
    assert find_libraries(make_model("a.b")) == ("/lib/one.so",)
    assert find_libraries(make_model("c.d").SerializeToString()) == ()
    assert find_libraries(make_model("com.microsoft")) == ()
    assert find_libraries(mlp()) == ()


def test_a_function_of_the_model_needs_none():
    model = make_model("a.b")
    model.functions.append(helper.make_function("a.b", "Roll", ["x"], ["y"], [], []))
    register_libraries(model, ["/lib/one.so"])
    assert find_libraries(make_model("a.b")) == ()


def test_paths(tmp_path):
    (tmp_path / "a.so").touch()
    assert resolve_libraries(tmp_path / "a.so") == resolve_libraries([str(tmp_path / "a.so")])
    with pytest.raises(ModelError, match=r"There is no library of custom operators '.*b\.so'\."):
        resolve_libraries([tmp_path / "a.so", tmp_path / "b.so"])

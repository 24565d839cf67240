"""Adapters are added to graphs as they come: nodes without names or with equal ones, old opsets, tied weights."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial.adapters import add_dora, add_ia3, add_lora, merge, remove_adapter
from ortpartial.exceptions import SettingError
from ortpartial.model import read_adapter
from ortpartial.runtime.session import Session

DRAW = np.random.default_rng(0)
WIDTHS = {"w": (4, 4), "v": (4, 3), "b": (4,), "c": (3,), "rows": (2, 3), "kernel": (3, 4, 3), "fc.weight": (4, 3)}
X = DRAW.normal(size=(2, 4)).astype(np.float32)


def make(*nodes, x=(2, 4), outputs=("y",), opset=17, ir_version=8):
    """A model of some nodes; what they read and none computes are initializers, and inputs as well where they must."""
    nodes = [helper.make_node(op, inputs.split(), outputs.split(), name, **attributes)
             for op, inputs, outputs, name, attributes in (((*node, {})[:5]) for node in nodes)]
    weights = dict.fromkeys(n for node in nodes for n in node.input if n in WIDTHS)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x))]
    if ir_version < 4:
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, WIDTHS[n]) for n in weights]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(x)) for n in outputs]
    tensors = [numpy_helper.from_array(DRAW.normal(size=WIDTHS[n]).astype(np.float32), n) for n in weights]
    graph = helper.make_graph(nodes, "g", inputs, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def randomize(proto):
    """The model with an adapter whose weights are drawn around what they were."""
    weights, copy = set(read_adapter(proto).weights), onnx.ModelProto()
    copy.CopyFrom(proto)
    for t in copy.graph.initializer:
        if t.name in weights:
            array = numpy_helper.to_array(t) + DRAW.normal(size=t.dims).astype(np.float32) / 4
            t.CopyFrom(numpy_helper.from_array(array, t.name))
    return copy


def run(model, x=X):
    """What a model computes; onnxruntime has no place for two nodes of one name."""
    nameless = onnx.ModelProto()
    nameless.CopyFrom(model)
    for node in nameless.graph.node:
        node.ClearField("name")
    return Session(nameless).run({"x": x})


OLD = [("Gemm", "x w b", "h", "", {"transB": 1}), ("MatMul", "h v", "z", ""), ("Add", "z c", "y", "")]
GRAPHS = {
    "equal names": make(("MatMul", "x w", "h", "n"), ("MatMul", "h v", "y", "n")),
    "the name of an output": make(("MatMul", "x w", "h", "y"), ("MatMul", "h v", "y", "")),
    "one weight twice": make(("MatMul", "x w", "h", ""), ("MatMul", "h w", "y", "")),
    "names of another adapter": make(("MatMul", "x fc.weight", "fc.lora_A.weight", ""),
                                     ("Relu", "fc.lora_A.weight", "fc/adapter/base", "fc/adapter/Relu"),
                                     ("Neg", "fc/adapter/base", "y", "")),
    "a bias and an output": make(("MatMul", "x v", "h", ""), ("Add", "h c", "y", ""), outputs=("h", "y")),
    "a bias by another name": make(("Identity", "c", "d", ""), ("Gemm", "x v d", "y", "")),
    "IR 3 and opset 7": make(*OLD, opset=7, ir_version=3),
    "opset 9": make(*OLD, opset=9, ir_version=4),
}


@pytest.mark.parametrize("add", [add_lora, add_dora, add_ia3])
@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs_as_they_come(kind, add):
    model = GRAPHS[kind]
    adapted = add(model, "*")
    onnx.checker.check_model(adapted, full_check=True)
    for got, expected in zip(run(adapted).values(), run(model).values(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5 if add is add_dora else 0, atol=1e-6)
    assert remove_adapter(adapted).SerializeToString() == model.SerializeToString()
    trained = randomize(adapted)
    got, expected = run(trained), run(merge(trained))
    assert abs(got["y"] - run(model)["y"]).max() > 0.01
    for name in got:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-4)


def test_what_is_added_along_another_axis_is_no_bias():
    model = make(("Conv", "x kernel", "h", ""), ("Add", "h b", "y", ""), x=(2, 4, 6))
    x = DRAW.normal(size=(2, 4, 6)).astype(np.float32)
    trained = randomize(add_ia3(model, "*"))
    np.testing.assert_allclose(run(merge(trained), x)["y"], run(trained, x)["y"], rtol=1e-4)


@pytest.mark.parametrize("bias", ["rows", "computed"])
def test_a_bias_that_dora_does_not_read_is_refused(bias):
    nodes = [("Relu", "c", "computed", "")] if bias == "computed" else []
    model = make(*nodes, ("Gemm", f"x v {bias}", "y", ""))
    with pytest.raises(SettingError, match=f"the bias of a product, and '{bias}' of 'v' is computed, or has several"):
        add_dora(model, "v")


def test_a_weight_of_no_numbers_has_no_adapter():
    model = make(("MatMul", "x w", "y", ""))
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((0, 3), np.float32), "w"))
    with pytest.raises(SettingError, match="The model has no product for an adapter to be added to"):
        add_lora(model)


def test_a_node_without_outputs_stays():
    model = make(("MatMul", "x w", "y", ""), ("Print", "y", "", "", {"domain": "my"}))
    assert [node.op_type for node in add_lora(model, "w").graph.node][-1] == "Print"
    assert remove_adapter(add_lora(model, "w")) == model


@pytest.mark.parametrize("names", [("embedding", "linear"), ("/model/embed_tokens/Gather", "/lm_head/MatMul")])
def test_a_tied_table_has_the_name_of_its_own_module(names):
    """Torch 2.13's dynamo exporter, and the builder for Gemma 2, name the weight of both for the head."""
    model = make(("Gather", "lm_head.weight x", "h", names[0]), ("MatMul", "h val_1", "y", names[1]))
    for node, scope in zip(model.graph.node, ("model.embed_tokens", "lm_head"), strict=True):
        if not names[0].startswith("/"):
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{scope}', 'aten']")
    table = DRAW.normal(size=(9, 4)).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(a, n)
                                   for n, a in {"lm_head.weight": table, "val_1": table.T}.items())
    assert [t.name for t in read_adapter(add_lora(model, "*")).targets] == ["model.embed_tokens", "lm_head"]
    with pytest.raises(SettingError, match="The target 'linear' matches none of 'model\\.embed_tokens', 'lm_head'"):
        add_lora(model)

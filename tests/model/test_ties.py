"""Initializers that exporters have merged, and tied weights that they have written twice, as they are read."""

import logging

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ortpartial.exceptions import SettingError
from ortpartial.model.aliases import Alias
from ortpartial.model.load import load
from ortpartial.model.ties import Ties, infer_ties, list_folded_norms

ONES, ZEROS, HALF = (np.full(4, c, np.float32) for c in (1, 0, 0.5))
W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
E = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def model(nodes, producer="pytorch", inputs=("x",), ir_version=10, **arrays):
    """A model of nodes (name, operator, inputs, output), whose initializers are arrays."""
    written = [helper.make_node(operator, read, [output], name=name) for name, operator, read, output in nodes]
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in inputs]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_model(helper.make_graph(written, "g", values, [y], tensors), producer_name=producer,
                             opset_imports=[helper.make_opsetid("", 21)], ir_version=ir_version)


def norms(*names, weight="w", bias="b"):
    """Layer norms in a row, each a name and the weight that it reads."""
    values = ["x", *(f"h{k}" for k in range(len(names) - 1)), "y"]
    return [(n, "LayerNormalization", [values[k], weight, bias], values[k + 1]) for k, n in enumerate(names)]


def names(proto):
    return [t.name for t in proto.graph.initializer]


@pytest.mark.parametrize(("nodes", "separated"), [
    # By the scopes of nodes, in which the older exporter numbers calls of one module.
    (norms("/a/LayerNormalization", "/b/LayerNormalization"), ["b.weight", "b.bias"]),
    (norms("/a/LayerNormalization", "/a_1/LayerNormalization"), []),
    (norms("/a/LayerNormalization", "/a_1/LayerNormalization", "/b/LayerNormalization"), ["b.weight", "b.bias"]),
    (norms("/s/s.0/LayerNormalization", "/s/s.0_1/LayerNormalization"), []),
    # Without scopes, by the names of nodes; nodes without names say nothing.
    (norms("first", "last"), ["last.weight", "last.bias"]),
    (norms("", ""), []),
    # Arithmetic reads no parameter of a layer.
    ([("/a/Mul", "Mul", ["x", "w"], "h"), ("/b/Mul", "Mul", ["h", "w"], "y")], []),
])
def test_weights_of_one_number_are_separated(nodes, separated):
    proto = model(nodes, w=ONES, b=ZEROS)
    before = proto.SerializeToString()
    new, ties = infer_ties(proto)
    assert proto.SerializeToString() == before
    assert list(ties.separated) == separated
    assert infer_ties(new) == (new, Ties())
    if not separated:
        assert new is proto


def test_identity_nodes_name_the_weights():
    nodes = [("Identity_0", "Identity", ["w"], "b.running_var"), ("Identity_1", "Identity", ["w"], "b.weight"),
             ("Identity_2", "Identity", ["b.running_var"], "c.weight"),
             ("/a/LayerNormalization", "LayerNormalization", ["x", "w", "z"], "h"),
             ("/b/BatchNormalization", "BatchNormalization", ["h", "b.weight", "z", "z", "b.running_var"], "k"),
             ("/c/LayerNormalization", "LayerNormalization", ["k", "c.weight", "z"], "y")]
    new, ties = infer_ties(model(nodes, w=ONES, z=ZEROS))
    assert ties.separated == {"b.weight": "w", "b.running_var": "w", "c.weight": "w", "z.running_mean": "z"}
    assert [n.op_type for n in new.graph.node] == ["LayerNormalization", "BatchNormalization", "LayerNormalization"]
    assert all(np.array_equal(numpy_helper.to_array(t), ONES if "z" not in t.name else ZEROS)
               for t in new.graph.initializer)


@pytest.mark.parametrize("producer", ["pytorch", "other"])
def test_statistics_are_no_alias_of_a_weight(producer):
    nodes = [("", "BatchNormalization", ["x", "w", "b", "b", "w"], "y")]
    ties = infer_ties(model(nodes, producer, w=ONES, b=ZEROS))[1]
    assert ties.separated == {"w.running_var": "w", "b.running_mean": "b"}


def test_copies_of_a_layer_are_separated_and_shared_ones_are_not():
    def products(a, b):
        return model([("Identity_0", "Identity", ["onnx::MatMul_1"], "onnx::MatMul_2"),
                      (a, "MatMul", ["x", "onnx::MatMul_1"], "h"), (b, "MatMul", ["h", "onnx::MatMul_2"], "y")],
                     **{"onnx::MatMul_1": W})

    assert infer_ties(products("/layers.0/MatMul", "/layers.1/MatMul"))[1].separated == {
        "onnx::MatMul_2": "onnx::MatMul_1"}
    assert not infer_ties(products("/layer/MatMul", "/layer_1/MatMul"))[1]
    assert not infer_ties(products("/a/MatMul", "/b/MatMul"))[1]
    loaded = load(products("/layers.0/MatMul", "/layers.1/MatMul"))
    assert loaded.main_names == {"onnx::MatMul_1": "layers.0.weight", "onnx::MatMul_2": "layers.1.weight"}


@pytest.mark.parametrize("a", [W, np.eye(4, dtype=np.float32), np.arange(16).reshape(4, 4)])
def test_other_tensors_stay(a):
    """A tie of random numbers, one of few numbers and one of whole numbers are what the file says."""
    nodes = [("/a/MatMul", "MatMul", ["x", "a.weight"], "h"), ("/b/MatMul", "MatMul", ["h", "a.weight"], "y")]
    proto = model(nodes, **{"a.weight": a})
    assert infer_ties(proto)[0] is proto


@pytest.mark.parametrize(("producer", "kept", "name", "table", "array", "joined"), [
    ("pytorch", "embedding.weight", "onnx::MatMul_9", E, E.T, True),
    ("other", "embedding", "head", E, E.T, True),
    ("other", "embedding", "onnx::MatMul_9", E, E.T, True),
    # Two names of a module are two parameters, which may be equal at first.
    ("pytorch", "embedding.weight", "head.weight", E, E.T, False),
    ("pytorch", "embedding.weight", "onnx::MatMul_9", E, E.T + np.float32(1e-6), False),
    ("pytorch", "embedding.weight", "onnx::MatMul_9", np.ones_like(E), np.ones_like(E.T), False),
    ("pytorch", "embedding.weight", "onnx::MatMul_9", np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32), False),
    ("ortpartial", "embedding.weight", "onnx::MatMul_9", E, E.T, False),
])
def test_a_tied_embedding_is_one_weight(producer, kept, name, table, array, joined):
    nodes = [("/cast", "Cast", ["x"], "i"), ("/embedding/Gather", "Gather", [kept, "i"], "h"),
             ("/head/MatMul", "MatMul", ["h", name], "y")]
    proto = model(nodes, producer, **{kept: table, name: array})
    proto.graph.node[0].attribute.append(helper.make_attribute("to", TensorProto.INT64))
    new, ties = infer_ties(proto)
    assert (names(new), ties.joined) == (
        ([kept], {name: Alias(kept, transposed=True)}) if joined else ([kept, name], {}))
    loaded = load(proto)
    assert loaded.find_initializer(name) == (kept if joined else name)
    assert loaded.main_names[kept] == kept
    assert infer_ties(new)[0] is new
    np.testing.assert_array_equal(loaded.arrays[kept], table)


def test_a_setting_turns_it_off(caplog):
    proto = model(norms("/a/LayerNormalization", "/b/LayerNormalization"), w=ONES, b=ZEROS)
    as_written = load(proto, ties="file")
    assert (list(as_written.initializers), as_written.ties, as_written.proto) == (["w", "b"], Ties(), proto)
    assert list(load(as_written).initializers) == ["w", "b"]
    with caplog.at_level(logging.INFO, "ortpartial"):
        loaded = load(proto)
    assert "2 weights that an exporter had merged were separated, 0 tied ones joined, 0 biases restored" in caplog.text
    assert loaded.ties.describe() == ["w was one with b.weight", "b was one with b.bias"]
    with pytest.raises(SettingError, match=r"ties is 'infer' or 'file', not 'none'\."):
        load(proto, ties="none")


def test_inputs_with_defaults_of_old_models():
    proto = model(norms("/a/LayerNormalization", "/b/LayerNormalization"), inputs=("x", "w"), ir_version=3,
                  w=ONES, b=ZEROS)
    proto.graph.input[1].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, [4]))
    new = infer_ties(proto)[0]
    assert [i.name for i in new.graph.input] == ["x", "w", "b.weight"]
    assert list(load(new).inputs) == ["x"]


def test_a_training_in_the_file_keeps_its_names():
    proto = model(norms("/a/LayerNormalization", "/b/LayerNormalization"), w=ONES, b=ZEROS)
    proto.training_info.add()
    assert infer_ties(proto)[0] is proto


def test_folded_norms():
    nodes = [("/c/Conv", "Conv", ["x", "onnx::Conv_1", "onnx::Conv_2"], "h"),
             ("/d/Conv", "Conv", ["h", "d.weight"], "y")]
    arrays = {"onnx::Conv_1": W[..., None], "onnx::Conv_2": HALF, "d.weight": W[..., None]}
    assert list_folded_norms(model(nodes, **arrays)) == ["onnx::Conv_1"]
    assert list_folded_norms(model(nodes, "other", **arrays)) == []
    assert list_folded_norms(ModelProto()) == []


def test_layers_without_scopes_are_told_by_their_weights():
    """A layer of random weights that is used twice has one bias; the zeros of a product are what the file says."""
    nodes = [("one", "Gemm", ["x", "w", "b"], "h"), ("two", "Gemm", ["h", "w", "b"], "k"),
             ("three", "Gemm", ["k", "v", "b"], "y")]
    ties = infer_ties(model(nodes, "other", w=W, v=-W, b=ZEROS))[1]
    assert ties.separated == {"v.bias": "b"}
    nodes = [("one", "MatMul", ["x", "w"], "h"), ("two", "MatMul", ["h", "w"], "y")]
    assert not infer_ties(model(nodes, "other", w=np.zeros((4, 4), np.float32)))[1]


def scanned():
    """A product by w, and one in the body of a Scan, as torch's newer exporter writes them."""
    product = helper.make_node("MatMul", ["x", "w"], ["h"], name="product")
    inner = helper.make_node("MatMul", ["r", "w"], ["s"], name="inner")
    row = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "rs"]
    body = helper.make_graph([inner], "body", row[:1], row[1:])
    scan = helper.make_node("Scan", ["h"], ["y"], name="scan", body=body, num_scan_inputs=1)
    proto = model([], w=W)
    proto.graph.node.extend([product, scan])
    return proto


def note_program(node, target, arguments):
    node.metadata_props.add(key="pkg.torch.onnx.fx_node",
                            value=f"%{node.name} : call_function[target=torch.ops.aten.{target}](args = ({arguments}))")


def test_a_weight_that_a_body_reads_is_one(rng):
    """The nodes of a body name what their node passes to it, and no parameter."""
    from ortpartial import OrtGradientForwardBackward

    proto = scanned()
    proto.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature",
                                   value="p_w: PARAMETER target='w'")
    note_program(proto.graph.node[0], "matmul.default", "%x, %p_w")
    body = next(a.g for a in proto.graph.node[1].attribute if a.name == "body")
    note_program(body.node[0], "matmul.default", "%arg0_1, %arg1_1")
    note_program(proto.graph.node[1], "scan", "%scan_combine_graph_0, [], [%h], [%p_w]")
    new, ties = infer_ties(proto)
    assert new is proto
    assert ties == Ties()
    X = rng.normal(size=(3, 4)).astype(np.float32)
    both = OrtGradientForwardBackward(proto, ["w"], engine="step")
    (y,), state = both.forward(X)
    weights, _ = both.backward([np.ones_like(y)], state)
    dy = np.ones_like(y)
    np.testing.assert_allclose(y, X @ W @ W, rtol=1e-4)
    np.testing.assert_allclose(weights["w"], X.T @ dy @ W.T + (X @ W).T @ dy, rtol=1e-4)

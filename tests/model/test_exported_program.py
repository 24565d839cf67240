"""Records of torch's newer exporter: parameters, buffers, calls, and numbers that are no parameters."""

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, load
from ortpartial.model.exported_program import list_program_constants, read_program
from ortpartial.model.ties import infer_ties, list_folded_norms

SIGNATURE = """
# inputs
p_fc_weight: PARAMETER target='fc.weight'
p_fc_bias: PARAMETER target='fc.bias'
p_norm_weight: PARAMETER target='norm.weight'
p_last_weight: PARAMETER target='last.weight'
b_shift: BUFFER target='shift' persistent=True
x: USER_INPUT
"""
CALL = "%{} : [num_users=1] = call_function[target=torch.ops.aten.{}.default](args = ({}), kwargs = {{}})"
W = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


def node(operator, inputs, output, call=None, arguments="", **attributes):
    made = helper.make_node(operator, inputs, [output], name=f"node_{output}", **attributes)
    if call is not None:
        made.metadata_props.add(key="pkg.torch.onnx.fx_node", value=CALL.format(output, call, arguments))
    return made


def program(nodes, folded=None, **arrays):
    """A model of the exporter; `folded` are the tensors that initializers were computed from."""
    x, y = (helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy")
    graph = helper.make_graph(nodes, "main_graph", [x], [y],
                              [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=SIGNATURE)
    for name, origins in (folded or {}).items():
        v = graph.value_info.add(name=name)
        v.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=str(origins))
    return helper.make_model(graph, producer_name="pytorch", ir_version=9,
                             opset_imports=[helper.make_opsetid("", 20)])


def test_a_program_is_read():
    model = program([node("MatMul", ["x", "val_0"], "y", "linear", "%x, %p_fc_weight, %p_fc_bias")],
                    {"val_0": ["fc.weight", "val_9"], "val_1": "no list"}, val_0=W)
    read = read_program(model.graph)
    assert read.kinds == {"fc.weight": "PARAMETER", "fc.bias": "PARAMETER", "norm.weight": "PARAMETER",
                          "last.weight": "PARAMETER", "shift": "BUFFER"}
    assert read.origins == {"val_0": ("fc.weight",)}
    assert read.read_call(model.graph.node[0]) == ("torch.ops.aten.linear.default", ["fc.weight", "fc.bias"])
    assert read.read_call(NodeProto()) is None
    assert read_program(helper.make_graph([], "g", [], [])) is None


def test_numbers_and_buffers_are_not_trained():
    """A shift that is a buffer and ones of the program, beside a weight; by name they are trained all the same."""
    nodes = [node("MatMul", ["x", "val_0"], "a", "linear", "%x, %p_fc_weight"),
             node("Mul", ["a", "val_1"], "b", "mul", "%a, %ones"),
             node("Add", ["b", "shift"], "c", "add", "%b, %b_shift"),
             node("LayerNormalization", ["c", "val_2"], "y", "layer_norm", "%c")]
    model = program(nodes, {"val_0": ["fc.weight"], "val_1": ["val_7"], "val_2": ["val_8"]}, val_0=W, val_1=ONES * 2,
                    shift=ONES, val_2=ONES)
    assert list_program_constants(model) == {"val_1", "val_2", "shift"}
    assert OrtGradientForwardBackwardOptimizer(model).weights_to_train == ["val_0"]
    assert OrtGradientForwardBackwardOptimizer(model, ["shift"]).weights_to_train == ["shift"]


def test_the_calls_tell_weights_apart():
    """Norms of one tensor of ones, of which a node that reads a number of the program is none, and equal products."""
    nodes = [node("LayerNormalization", ["x", "norm.weight"], "a", "layer_norm", "%x, [4], %p_norm_weight"),
             node("LayerNormalization", ["a", "norm.weight"], "b", "layer_norm", "%a, [4], %p_last_weight"),
             node("LayerNormalization", ["b", "norm.weight"], "c", "layer_norm", "%b, [4], %p_norm_weight"),
             node("Mul", ["c", "norm.weight"], "y", "mul", "%c, %ones")]
    model = program(nodes, **{"norm.weight": ONES})
    new, ties = infer_ties(model)
    assert ties.separated == {"last.weight": "norm.weight"}
    assert [n.input[1] for n in new.graph.node[1:]] == ["norm.weight", "last.weight", "norm.weight",
                                                        "norm.weight_constant"]
    assert infer_ties(new)[0] is new
    assert OrtGradientForwardBackwardOptimizer(model).weights_to_train == ["norm.weight", "last.weight"]


@pytest.mark.parametrize(("operator", "weight", "attributes"), [
    ("Gemm", W[:3], {"transB": 1}), ("Gemm", W[:, :3], {}), ("Conv", W[:3, :, None], {}),
    ("ConvTranspose", W[:, :3, None], {})])
def test_a_bias_that_was_left_out_is_restored(operator, weight, attributes):
    call = "linear" if operator == "Gemm" else "convolution"
    model = program([node(operator, ["x", "fc.weight"], "y", call, "%x, %p_fc_weight, %p_fc_bias", **attributes)],
                    **{"fc.weight": weight})
    if operator != "Gemm":
        for v in (model.graph.input[0], model.graph.output[0]):
            v.type.CopyFrom(helper.make_tensor_type_proto(1, ["N", "C", 5]))
    loaded = load(model)
    assert loaded.ties.restored == ("fc.bias",)
    assert loaded.arrays["fc.bias"].tolist() == [0, 0, 0]
    assert loaded.ties.describe() == ["fc.bias of zeros was left out"]
    assert infer_ties(loaded.proto)[0] is loaded.proto
    assert load(model, ties="file").arrays.keys() == {"fc.weight"}


def test_folded_norms():
    arguments = "%conv2d, %p_norm_weight, %p_fc_bias"
    nodes = [node("Gemm", ["x", "fc.weight"], "h", "_native_batch_norm_legit_no_training", arguments),
             node("Gemm", ["h", "last.weight"], "y", "linear", "%h, %p_last_weight")]
    model = program(nodes, **{"fc.weight": W, "last.weight": -W})
    assert list_folded_norms(model) == ["fc.weight"]
    assert not load(model).ties

"""Preparing a graph for the TrainingAgent, and refusing operators that it differentiates wrongly."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortpartial.exceptions import ModelError
from ortpartial.graph.build import build
from ortpartial.graph.gradient_stop import stop_gradient
from ortpartial.graph.ops import op, variable
from ortpartial.runtime.agent_support import find_active, find_untrusted, prepare_for_agent
from ortpartial.runtime.session import Session


def values(*shapes):
    return [variable(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]


def graph(f, *shapes):
    x = values(*shapes)
    y = f(*x)
    return build(x, {f"y{i}": v for i, v in enumerate(y if isinstance(y, (tuple, list)) else [y])})


def operators(model):
    return [n.op_type for n in model.graph.node]


# Preparation


@pytest.mark.parametrize(
    ("f", "shapes", "expected"),
    [
        (lambda x: op.Transpose(x), [(2, 3, 4)], ["Transpose"]),
        (lambda x: op.Transpose(x), [("N", "M")], ["Transpose"]),
        (lambda x: x * x, [("N",)], ["Identity", "Mul"]),
        (lambda x: op.Max(x, x, x), [("N",)], ["Identity", "Identity", "Max"]),
        (lambda x, s, b: op.LayerNormalization(x, s, b), [("N", 4), (4,), (4,)], ["LayerNormalization"]),
        (lambda x, s: op.LayerNormalization(x, s), [("N", 4), (4,)], ["LayerNormalization"]),
        (lambda x: op.Dropout(x), [("N",)], ["Identity"]),
        (lambda x: op.Dropout(x, np.float32(0.5)), [("N",)], ["Identity"]),
        (lambda x: op.Dropout(x, np.float32(0.5), np.array(False)), [("N",)], ["Identity"]),
        (lambda x: op.Dropout(x, np.float32(0), np.array(True)), [("N",)], ["Identity"]),
        (lambda x: op.Cast(x, to=1) + 1, [("N",)], ["Identity", "Add"]),
        (lambda x: op.Cast(x, to=11), [("N",)], ["Cast"]),
    ],
)
def test_prepared_models_compute_the_same(f, shapes, expected):
    model = graph(f, *shapes)
    before = model.SerializeToString()
    prepared = prepare_for_agent(model)
    assert model.SerializeToString() == before, "the argument must not change"
    onnx.checker.check_model(prepared)
    assert operators(prepared) == expected
    rng = np.random.default_rng(0)
    feeds = {f"x{i}": rng.normal(size=[5 if isinstance(d, str) else d for d in s]).astype(np.float32)
             for i, s in enumerate(shapes)}
    a, b = Session(model).run(feeds), Session(prepared).run(feeds)
    assert a.keys() == b.keys()
    for n in a:
        np.testing.assert_array_equal(a[n], b[n])
    again = prepare_for_agent(prepared)
    assert operators(again) == expected


def test_prepare_adds_outputs_and_attributes():
    (node,) = prepare_for_agent(graph(op.LayerNormalization, ("N", 4), (4,))).graph.node
    assert (len(node.input), len(node.output)) == (3, 3)
    x, label = variable("x", "float32", ["N", 4]), variable("label", "int64", ["N"])
    (node,) = prepare_for_agent(build([x, label], {"y": op.SoftmaxCrossEntropyLoss(x, label)})).graph.node
    assert len(node.output) == 2
    (node,) = prepare_for_agent(graph(op.Transpose, (2, 3, 4))).graph.node
    assert helper.get_attribute_value(node.attribute[0]) == [2, 1, 0]


def test_prepare_inlines_functions_and_drops_initializers_from_inputs():
    body = helper.make_function(
        "own", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 21)]
    )
    value = helper.make_tensor_value_info
    w = helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2])
    nodes = [helper.make_node("Twice", ["x"], ["t"], domain="own"), helper.make_node("Mul", ["t", "w"], ["y"])]
    g = helper.make_graph(nodes, "g", [value("x", 1, [2]), value("w", 1, [2])], [value("y", 1, [2])], [w])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    model = helper.make_model(g, functions=[body], opset_imports=opsets, ir_version=10)
    prepared = prepare_for_agent(model)
    assert operators(prepared) == ["Identity", "Add", "Mul"]
    assert [i.name for i in prepared.graph.input] == ["x"]
    assert find_untrusted(model) == []
    x = np.array([3, 4], np.float32)
    assert Session(prepared).run({"x": x})["y"].tolist() == [6, 16]


def test_prepare_refuses_versions():
    model = graph(op.Relu, ("N",))
    for opset, ir in ((22, 10), (11, 7), (21, 11)):
        model.opset_import[0].version, model.ir_version = opset, ir
        message = rf"takes opsets 12 to 21 and IR versions up to 10, .* has opset {opset} and IR version {ir}\."
        with pytest.raises(ModelError, match=message):
            prepare_for_agent(model)
        assert find_untrusted(model) != []
    model.opset_import[0].version, model.ir_version = 12, 7
    prepare_for_agent(model)
    assert find_untrusted(model) == ["The tests cover opsets 18 to 21 alone."]


def test_prepare_separates_outputs():
    x, w = values(("N",), ("N",))
    model = build([x, w], {"y": x * w})
    model.graph.output.append(model.graph.input[1])
    prepared = prepare_for_agent(model).graph
    assert [o.name for o in prepared.output] == ["y", "x1_output"]
    assert [(n.op_type, *n.input, *n.output) for n in prepared.node[1:]] == [("Identity", "x1", "x1_output")]


def test_prepare_refuses_names():
    x, w = values(("N",), ("N",))
    model = build([x, w], {"x1_grad": x * w})
    with pytest.raises(ModelError, match="would name a gradient 'x1_grad', which is a tensor of the model"):
        prepare_for_agent(model)
    model = build([x, w], {"y": x * w})
    model.graph.node[0].domain = "ai.onnx"
    with pytest.raises(ModelError, match="The model is not valid"):
        prepare_for_agent(model)


# Refused nodes


def dropout_in_training(x):
    return op.Dropout(x, np.float32(0.5), np.array(True))


def recurrent(name, gates):
    def f(x, w, r):
        return getattr(op, name)(x, w, r, hidden_size=4)[0]

    return f, [(3, 2, 5), (1, gates * 4, 5), (1, gates * 4, 4)]


def batch_normalization(x, s, b, m, v):
    return op.BatchNormalization(x, s, b, m, v, n_outputs=1)[0]


ONES = np.ones((1, 3), np.int64)
ROW = np.zeros((1, 1), np.int64)
IMAGE, VOLUME = (2, 3, 8, 8), (2, 3, 4, 4, 4)
COND = np.array([[True, False, True], [False, False, True]])

REFUSED = [
    (lambda x: op.AveragePool(x, kernel_shape=[2] * 3), [VOLUME], r"AveragePool .*wrong in three dimensions of space"),
    (lambda x: op.AveragePool(x, kernel_shape=[2, 2], dilations=[2, 2]), [IMAGE], "AveragePool .*dilations"),
    (lambda x: op.AveragePool(x, kernel_shape=[2, 2], auto_pad="SAME_LOWER"), [IMAGE], "AveragePool .*auto_pad SAME"),
    (lambda x: op.AveragePool(x, kernel_shape=[2, 2]), [("N", 3, 8, 8)], r"is \[N, 3, 8, 8\], .* even the batch"),
    (lambda x: op.MaxPool(x, kernel_shape=[2, 2]), [("N", 3, "H", 8)], r"is \[N, 3, H, 8\], .* ends the process"),
    (lambda x: op.MaxPool(x, kernel_shape=[2, 2], storage_order=1), [IMAGE], "MaxPool .*storage_order=1"),
    (lambda x, w: op.Conv(x, w, auto_pad="SAME_UPPER"), [IMAGE, (4, 3, 2, 2)], "Conv .*auto_pad SAME"),
    (dropout_in_training, [("N",)], "Dropout .*random numbers"),
    (lambda x: op.Dropout(x).node.outputs[:2], [("N",)], "Dropout .*its mask"),
    (lambda x, u: op.ScatterND(x, ROW, u, reduction="add"), [(3, 3), (1, 3)], "ScatterND .*a reduction"),
    (lambda x, u: op.ScatterElements(x, ONES, u, reduction="max"), [(3, 3), (1, 3)], "ScatterElements .*a reduction"),
    (batch_normalization, [IMAGE, (3,), (3,), (3,), (3,)], "BatchNormalization .*as if training_mode were 1"),
    (lambda x, w: x @ w, [("N", 3), (3,)], "MatMul .*operands with one axis"),
    (lambda x, w: x @ w, [(3,), (3, 2)], "MatMul .*operands with one axis"),
    (*recurrent("LSTM", 4), "LSTM .*ends the process"),
    (*recurrent("GRU", 3), "GRU .*ends the process"),
    (lambda x, s, b: op.LayerNormalization(x, s, b).node.outputs[:2], [(2, 4), (4,), (4,)], "outputs after the first"),
    (lambda x, s: op.LayerNormalization(x, s), [("N", "M"), ("M",)], "LayerNormalization .*it has no bias"),
    (lambda x: op.Gelu(x, approximate="tanh"), [("N",)], "Gelu .*approximate='tanh' is given the gradient of 'none'"),
    (lambda x: op.Split(x, [1, 2], n_outputs=2)[0], [(3, 3)], "Split .*an output that is not used"),
    (lambda x: op.ReduceL2(x, keepdims=0), [(2, 3)], "ReduceL2 .*keepdims=0 over several axes"),
    (lambda x: op.ReduceL2(x, [0, 1], keepdims=0), [(2, 3)], "ReduceL2 .*keepdims=0 over several axes"),
    (lambda a, b, c: op.Gemm(a, b, c), [(2, 3), (3, 4), ()], "Gemm .*a scalar C"),
    (lambda a, b: op.Where(COND, a, b), [(2, 3), (3,)], r"Where .*a branch \[3\] is broadcast to \[2, 3\]"),
    (lambda a, b: op.Where(COND, a, b), [(2, 1), (2, 3)], r"Where .*a branch \[2, 1\] is broadcast to \[2, 3\]"),
    (lambda a, c: op.Where(COND, a, op.Where(COND[:, :1], a, c)), [(2, 3), ()], r"Where .*a branch \[\] is broadcast"),
    (op.Transpose, [None], "Transpose .*it has no perm"),
]


@pytest.mark.parametrize(("f", "shapes", "message"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_wrong_gradients_are_refused(f, shapes, message):
    model = prepare_for_agent(graph(f, *shapes))
    names = [f"x{i}" for i in range(len(shapes))]
    with pytest.raises(ModelError, match=rf"The agent cannot differentiate .*{message}.* Use engine='step'") as e:
        find_active(model, names)
    reason = str(e.value).removeprefix("The agent cannot differentiate ").removesuffix(" Use engine='step' instead.")
    assert reason in find_untrusted(model, (), input_grads=names)


def branching():
    """y = x + w if c else x * w, as graphs inside a node."""
    value = helper.make_tensor_value_info

    def branch(name):
        return helper.make_graph([helper.make_node(name, ["x", "w"], [name])], name, [], [value(name, 1, ["N"])])

    node = helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch("Add"), else_branch=branch("Mul"))
    inputs = [value("c", TensorProto.BOOL, []), value("x", 1, ["N"]), value("w", 1, ["N"])]
    g = helper.make_graph([node], "g", inputs, [value("y", 1, ["N"])])
    return helper.make_model(g, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_graphs_inside_nodes_are_refused():
    with pytest.raises(ModelError, match=r"If \(node 'choice'\): graphs inside nodes have no gradient"):
        find_active(branching(), ["w"])
    assert find_untrusted(branching()) == ["If (node 'choice'): graphs inside nodes have no gradient."]


def test_inactive_nodes_are_not_checked():
    x, w = values((2, 3, 4, 4, 4), (3,))
    y = op.Flatten(op.AveragePool(op.Elu(x), kernel_shape=[2] * 3))
    model = prepare_for_agent(build([x, w], {"y": op.ReduceSum(y) * w}))
    assert {"x1", "y"} <= find_active(model, ["x1"])
    assert "x0" not in find_active(model, ["x1"])
    assert find_untrusted(model, ["x1"], input_grads=()) == []
    assert len(find_untrusted(model, ["x1"])) == 2, "by default all inputs count"
    for name in ("Shape", "ArgMax"):  # An operator without a gradient makes its inputs inactive.
        unprepared = graph(lambda x, w, name=name: op.Cast(getattr(op, name)(op.Elu(x)), to=1) * w, ("N",), (1,))
        model = prepare_for_agent(unprepared)
        assert find_untrusted(model) == []
        assert "x0" not in find_active(model, ["x0", "x1"])


# Untested nodes


@pytest.mark.parametrize(
    ("f", "shapes", "message"),
    [
        (op.Elu, [("N",)], "no test covers its gradient"),
        (lambda x: op.Sigmoid(op.Cast(x, to=11)), [("N",)], "the tests cover float32 alone"),
        (lambda a, b: a + b, [("N", 3), ("M", 3)], r"may broadcast \[N, 3\] to \[M, 3\] in a dimension without"),
        (lambda a, b: a * b, [("N", 3), (4, 3)], r"may broadcast \[N, 3\] to \[4, 3\]"),
        (lambda a, b: a * b, [("N", 3), None], "the rank of an input is not known"),
        (lambda a, b: a @ b, [("B", 2, 3), ("C", 3, 4)], r"may broadcast \[B\] to \[C\]"),
        (lambda a, b, c: op.Gemm(a, b, c), [("N", 3), (3, 4), ("M", 4)], r"may broadcast \[M, 4\] to \[N, 4\]"),
        (lambda a, b: op.Where(a > 0, a, b), [("N",), ("M",)], r"may broadcast \[N\] to \[M\]"),
        (op.Pow, [("N",), ("N",)], "the gradient of its first input alone"),
        (lambda x: op.Pow(x, np.array(2)), [("N",)], "its exponent is not of the type of its base"),
        (lambda x, low: op.Clip(x, low), [("N",), ()], "the gradient of its first input alone"),
        (lambda x: op.Slice(x, [-1], [-9], [0], [-1]), [(3,)], "its steps may be negative"),
        (lambda x: op.Pad(x, [1, 1], mode="edge"), [(3,)], "the tests cover mode='constant' without axes alone"),
        (lambda x: op.Pad(x, [1, 1], None, [0]), [(3, 2)], "the tests cover mode='constant' without axes alone"),
        (lambda x: op.AveragePool(x, kernel_shape=[2, 2], ceil_mode=1, count_include_pad=1), [IMAGE], "ceil_mode"),
        (lambda x: op.ReduceSum(x, noop_with_empty_axes=1), [("N",)], "the tests cover axes that are given alone"),
        (lambda x: op.ReduceLogSumExp(x), [("N",)], "the tests cover axes that are given alone"),
        (lambda x: op.Expand(x, [2, 3]), [("N",)], "it adds axes to a shape that is not declared"),
    ],
    ids=lambda v: v[:40] if isinstance(v, str) else "",
)
def test_untested_nodes_are_not_trusted(f, shapes, message):
    assert re.search(message, find_untrusted(graph(f, *shapes))[0])


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (lambda x, w, b: op.Relu(x @ w + b), [("N", 3), (3, 4), (4,)]),
        (lambda x, w, b: op.Gemm(x, w, b), [("N", 3), (3, 4), (4,)]),
        (lambda x, w: x @ w, [("B", "T", 3), (3, 4)]),
        (lambda q, k: op.Softmax(q @ op.Transpose(k, perm=[0, 2, 1])), [("B", "T", 3), ("B", "S", 3)]),
        (lambda x, w: op.MaxPool(op.Conv(x, w), kernel_shape=[2, 2]), [("N", 3, 8, 8), (4, 3, 3, 3)]),
        (lambda a, b: a + b, [("N", "K"), (1, "K")]),
    ],
)
def test_a_batch_of_any_size_is_trusted(f, shapes):
    assert find_untrusted(graph(f, *shapes)) == []


def test_scalar_initializers_are_constants_by_default():
    model = graph(lambda x: op.Pow(x, 2.0) * 0.5, ("N",))
    assert find_untrusted(model) == []
    exponent = model.graph.node[0].input[1]
    assert "the gradient of its first input alone" in find_untrusted(model, [exponent])[0]


def test_a_stopped_gradient_is_refused():
    model = graph(lambda x: op.Exp(x) * stop_gradient(op.Sin(x)), ("N",))
    with pytest.raises(ModelError, match=r"Identity .*stops the gradient, and the agent lets it through"):
        find_active(prepare_for_agent(model), ["x0"])
    (reason,) = find_untrusted(model)
    assert "stops the gradient" in reason
    assert find_untrusted(graph(lambda x: op.Exp(x) * op.Identity(op.Sin(x)), ("N",))) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_refused(dtype):
    """MaxPool of float16 ends the process, and most operators fail."""
    x = variable("x", dtype, [1, 1, 4, 4])
    model = build([x], {"y": op.Exp(x * x)})
    with pytest.raises(ModelError, match=r"fails in half precision.* Use engine='step'"):
        find_active(prepare_for_agent(model), ["x"])

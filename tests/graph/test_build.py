"""Building: nothing is emitted twice, nothing that is not needed, and names are unique."""

import numpy as np
import onnx
import pytest
from table import rows

from ortpartial.exceptions import GraphError
from ortpartial.graph import OPSET, Operators, constant, op, variable
from ortpartial.graph.build import build
from ortpartial.testing import evaluate


def x_(shape=("N", 3), name="x", dtype="float32"):
    return variable(name, dtype, shape)


def types(model):
    return [node.op_type for node in model.graph.node]


def test_what_is_not_reached_is_not_emitted():
    x = x_()
    op.Sin(x)
    assert types(build([x], [op.Exp(x)])) == ["Exp"]


def test_the_same_expression_is_one_node():
    x = x_()
    assert types(build([x], [op.Exp(x) * 2 + op.Exp(x) * 2])) == ["Exp", "Mul", "Add"]
    model = build([x], {"a": op.Exp(x), "b": op.Exp(x)})
    assert types(model) == ["Exp", "Identity"]


def test_different_attributes_are_different_nodes():
    x = x_()
    assert types(build([x], [op.Softmax(x, axis=0) + op.Softmax(x, axis=1)])) == ["Softmax", "Softmax", "Add"]


@pytest.mark.parametrize(
    ("draw", "n"),
    rows(
        ("RandomNormalLike", op.RandomNormalLike, 2),
        ("RandomUniformLike", op.RandomUniformLike, 2),
        ("Bernoulli", op.Bernoulli, 2),
        ("Dropout", op.Dropout, 2),
        ("and one that draws nothing", op.Exp, 1),
    ),
)
def test_random_operators_are_never_merged(draw, n):
    x = x_()
    assert types(build([x], [draw(x) + draw(x)])).count(draw(x).node.op_type) == n


def test_a_random_value_used_twice_is_drawn_once():
    x = x_()
    y = op.RandomNormalLike(x)
    assert types(build([x], [y * y])) == ["RandomNormalLike", "Mul"]


def test_equal_constants_are_stored_once():
    x = x_()
    model = build([x], [(x + 1.0) * (x - 1.0) + constant(np.ones((), np.float32))])
    assert len(model.graph.initializer) == 1
    # The same numbers in another shape or dtype are another constant.
    assert len(build([x], [x + 1.0 + constant(np.ones(1, np.float32))]).graph.initializer) == 2


def test_equal_constants_with_names_of_their_own_stay_apart():
    # Two biases that start from zero are two weights.
    b1, b2 = (constant(np.zeros(3, np.float32), hint=name) for name in ("b1", "b2"))
    x = x_()
    model = build([x], {"y": op.Tanh(x + b1) * op.Tanh(x + b2)})
    assert {t.name for t in model.graph.initializer} == {"b1", "b2"}
    assert types(model) == ["Add", "Tanh", "Add", "Tanh", "Mul"]


def test_a_graph_is_cut_at_computed_inputs():
    x = x_()
    h = op.Exp(x)
    model = build({"h": h}, {"y": op.Sin(h) + h})
    assert types(model) == ["Sin", "Add"]
    assert [i.name for i in model.graph.input] == ["h"]
    both = build({"x": x, "h": h}, {"y": h * x})
    assert types(both) == ["Mul"]


def test_a_constant_can_be_an_input():
    w = constant(np.array([2, 3], np.float32), hint="w")
    x = x_([2])
    model = build([x, w], {"y": x * w})
    assert [i.name for i in model.graph.input] == ["x", "w"]
    assert len(model.graph.initializer) == 0
    assert len(build([x], {"y": x * w}).graph.initializer) == 1


def test_an_input_or_a_constant_can_be_an_output():
    x = x_([2])
    model = build([x], {"y": x, "c": constant([1, 2])})
    found = evaluate(model, {"x": np.ones(2, np.float32)})
    assert found["y"].tolist() == [1, 1]
    assert found["c"].tolist() == [1, 2]


def test_outputs_of_one_value_under_two_names():
    x = x_([2])
    y = op.Exp(x)
    found = evaluate(build([x], {"a": y, "b": y}), {"x": np.zeros(2, np.float32)})
    assert found["a"].tolist() == found["b"].tolist() == [1, 1]


def test_names_are_kept_where_they_are_unique():
    a, b = x_(name="input"), x_(name="weight")
    model = build([a, b], {"loss": op.ReduceSum(a * b, keepdims=0)})
    assert [i.name for i in model.graph.input] == ["input", "weight"]
    assert [o.name for o in model.graph.output] == ["loss"]
    assert model.graph.node[-1].output[0] == "loss"


def test_names_never_clash():
    x = x_(name="Exp_0")
    w1, w2 = constant([1.0], hint="w"), constant([2.0], hint="w")
    model = build([x], {"constant_0": op.Exp(x) * w1 + w2 + 3.0})
    names = [*(i.name for i in model.graph.input), *(t.name for t in model.graph.initializer),
             *(name for node in model.graph.node for name in node.output)]
    assert len(set(names)) == len(names)
    onnx.checker.check_model(model, full_check=True)


def test_two_inputs_of_one_name_are_an_error():
    with pytest.raises(GraphError, match="Two inputs are called 'x'; give them names by a dict"):
        build([x_(), x_()], [])


def test_a_variable_that_is_no_input_is_an_error():
    x, y = x_(), x_(name="y")
    with pytest.raises(GraphError, match=r"The outputs need <Value y float32\[Nx3\]>, which is not among the inputs"):
        build([x], [x + y])


def test_outputs_that_nobody_reads_are_not_emitted():
    x = x_([1, 1, 4])
    y = op.MaxPool(x, kernel_shape=[2])
    (node,) = build([x], [y]).graph.node
    assert len(node.output) == 1
    (node,) = build([x], [y, y.node.outputs[1]]).graph.node
    assert len(node.output) == 2
    x, scale = x_(), constant(np.ones(3, np.float32))
    r = op.LayerNormalization(x, scale).node.outputs[2]
    (node,) = build([x], {"r": r}).graph.node
    assert list(node.output)[1:] == ["", "r"]


def test_batch_normalization_in_training_has_all_of_its_outputs():
    x, *statistics = x_(), *(constant(np.ones(3, np.float32)) for _ in range(4))
    y = op.BatchNormalization(x, *statistics, training_mode=1).node.outputs[0]
    model = build([x], [y])
    assert len(model.graph.node[0].output) == 3
    onnx.checker.check_model(model, full_check=True)


def test_optional_inputs_are_left_out():
    x = x_()
    model = build([x], [op.Clip(x, None, 1.0)])
    assert list(model.graph.node[0].input)[:2] == ["x", ""]


def test_the_opset_is_the_smallest_that_the_nodes_allow():
    x = x_()
    assert build([x], [op.Exp(x)]).opset_import[0].version == OPSET
    young = Operators(opset=23)
    model = build([x], [young.RMSNormalization(x, constant(np.ones(3, np.float32)))])
    assert model.opset_import[0].version == 23
    onnx.checker.check_model(model, full_check=True)


def test_the_ir_version_is_one_that_old_runtimes_read():
    x = x_()
    assert build([x], [op.Exp(x)]).ir_version <= 10


def test_other_domains():
    ml = Operators("ai.onnx.ml")
    x = x_([2, 3])
    model = build([x], [ml.Normalizer(x, norm="L2")])
    assert model.graph.node[0].domain == "ai.onnx.ml"
    assert {o.domain for o in model.opset_import} == {"", "ai.onnx.ml"}


def test_large_graphs_are_walked_without_recursion():
    x = y = x_([2])
    for _ in range(5000):
        y = op.Neg(y)
    assert len(build([x], [y]).graph.node) == 5000


def test_nodes_come_in_the_order_in_which_they_were_written():
    x = x_()
    a = op.Exp(x)
    b = op.Sin(a)
    c = op.Cos(a)
    assert types(build([x], [b + c])) == ["Exp", "Sin", "Cos", "Add"]


def test_what_is_built_is_valid():
    x, w = x_(), variable("w", "float32", [3, 2])
    y = op.Softmax(op.LayerNormalization(x @ w, constant(np.ones(2, np.float32))), axis=1)
    onnx.checker.check_model(build([x, w], {"y": y}), full_check=True)


def test_attention_that_reads_a_cache_writes_it():
    """onnxruntime 1.31.1 refuses to read past keys without the present ones."""
    x, past = variable("x", "float32", [1, 1, 2, 2]), variable("past", "float32", [1, 1, 3, 2])
    attention = Operators(opset=23).Attention
    y, *_ = attention(x, x, x, None, past, past, n_outputs=3)
    assert [len(n.output) for n in build([x, past], [y]).graph.node] == [3]
    assert [len(n.output) for n in build([x], [attention(x, x, x)]).graph.node] == [1]

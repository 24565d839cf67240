"""Do expressions become the graphs that they are?"""

import numpy as np
import onnx
import pytest
from table import rows

from ortpartial.builder import build
from ortpartial.exceptions import GraphError
from ortpartial.graph import OPSET, Operators, Value, constant, op, variable
from ortpartial.testing import evaluate


def x_(shape=("N", 3), name="x", dtype="float32"):
    return variable(name, dtype, shape)


def types(model):
    return [node.op_type for node in model.graph.node]


# Values.


def test_a_value_knows_its_type():
    x = x_()
    assert (x.dtype, x.shape, x.rank, x.is_static, x.is_float) == (np.float32, ("N", 3), 2, False, True)
    y = op.Shape(x)
    assert (y.dtype, y.shape, y.is_static, y.is_float) == (np.int64, (2,), True, False)


@pytest.mark.parametrize(
    ("f", "expected"),
    rows(
        ("x + y", lambda x, y: x + y, [6, 10]),
        ("x - y", lambda x, y: x - y, [2, 6]),
        ("x * y", lambda x, y: x * y, [8, 16]),
        ("x / y", lambda x, y: x / y, [2, 4]),
        ("x ** y", lambda x, y: x**y, [16, 64]),
        ("x @ y", lambda x, y: x @ y, 24),
        ("-x", lambda x, y: -x, [-4, -8]),
        ("abs(-x)", lambda x, y: abs(-x), [4, 8]),
        ("1 + x", lambda x, y: 1 + x, [5, 9]),
        ("1 - x", lambda x, y: 1 - x, [-3, -7]),
        ("2 * x", lambda x, y: 2 * x, [8, 16]),
        ("8 / x", lambda x, y: 8 / x, [2, 1]),
        ("list @ x", lambda x, y: [1.0, 1.0] @ x, 12),
        ("x > 4", lambda x, y: x > 4, [False, True]),
        ("x >= 4", lambda x, y: x >= 4, [True, True]),
        ("x < 8", lambda x, y: x < 8, [True, False]),
        ("x <= 4", lambda x, y: x <= 4, [True, False]),
        ("numpy array on the left", lambda x, y: np.array([1, 2], np.float32) * x, [4, 16]),
    ),
)
def test_arithmetic(f, expected):
    x, y = x_([2]), x_([2], "y")
    feeds = {"x": np.array([4, 8], np.float32), "y": np.array([2, 2], np.float32)}
    (found,) = evaluate(build([x, y], [f(x, y)]), feeds).values()
    assert found.tolist() == expected


def test_equality_is_identity():
    x = x_()
    y = op.Exp(x)
    assert y == y.node.outputs[0]
    assert y != op.Exp(x)
    assert x != x_()
    assert len({y, y.node.outputs[0]}) == 1


def test_a_value_has_no_truth_value():
    with pytest.raises(TypeError, match=r"<Value Greater bool\[Nx3\]> has no truth value before .*; use op.Where"):
        bool(x_() > 0)


def test_what_is_known_of_a_shape_is_stated():
    x = x_((None, 3))
    assert x.stated(("N", 3)).shape == ("N", 3)
    assert x.stated(("N", 3)).stated(("M", 3)).shape == ("N", 3)
    assert x_(None).stated((2,)).shape == (2,)
    assert x.stated(None) is x
    y = op.Exp(x)
    assert y.stated(("N", 3)) == y


@pytest.mark.parametrize(
    ("value", "expected"),
    rows(
        ("input", x_(), "<Value x float32[Nx3]>"),
        ("constant", constant([1, 2]), "<Value constant int64[2]>"),
        ("node", op.Exp(x_((None, 3))), "<Value Exp float32[?x3]>"),
        ("without a rank", op.Exp(x_(None)), "<Value Exp float32[?]>"),
        ("without a type", Value(onnx.TypeProto()), "<Value input ?[?]>"),
    ),
)
def test_repr(value, expected):
    assert repr(value) == expected


@pytest.mark.parametrize(
    ("argument", "dtype", "expected"),
    rows(
        ("float", 1.5, None, np.float32),
        ("integer", 2, None, np.int64),
        ("list of floats", [1.0, 2.0], None, np.float32),
        ("nothing", [], None, np.int64),
        ("truth", True, None, np.bool_),
        ("array", np.zeros(2), None, np.float64),
        ("array, cast", np.zeros(2), "float32", np.float32),
        ("asked for", 1, "float16", np.float16),
    ),
)
def test_dtypes_of_constants(argument, dtype, expected):
    assert constant(argument, dtype).dtype == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    rows(
        ("the other argument", op.Mul(x_(dtype="float64"), 2), np.float64),
        ("half", op.Mul(2, x_(dtype="float16")), np.float16),
        ("of the type variable, not of the first input", op.Where(x_() > 0, x_(dtype="float64"), 0.0), np.float64),
        ("integers", op.Add(x_(dtype="int32"), 2), np.int32),
        ("axes are int64", op.ReduceSum(x_(dtype="float64"), [1]), np.float64),
        ("exponent of an integer", op.Pow(x_(dtype="float64"), 2), np.float64),
    ),
)
def test_numbers_take_the_dtype_of_the_values_beside_them(value, expected):
    assert value.dtype == expected


# Nodes.


@pytest.mark.parametrize(
    ("make", "parts"),
    rows(
        ("no such operator", lambda: op.Sofmax(x_()), ["ONNX has no operator Sofmax at opset 21"]),
        ("too few inputs", lambda: op.Add(x_()), ["Add takes 2 to 2 inputs, 1 given"]),
        ("too many inputs", lambda: op.Exp(x_(), x_()), ["Exp takes 1 to 1 inputs, 2 given"]),
        ("no such attribute", lambda: op.Softmax(x_(), axes=1),
         ["Softmax has no attribute 'axes'; its attributes are: axis"]),
        ("no attributes at all", lambda: op.Exp(x_(), axis=1), ["Exp has no attribute 'axis'", "are: none"]),
        ("dtypes", lambda: x_() + x_(dtype="float64"), ["Add: input 'B' is float64 where float32 was", "cast"]),
        ("shapes", lambda: x_([2, 3]) @ x_([2, 3]), ["MatMul does not accept", "<Value x float32[2x3]>"]),
        ("broadcasting", lambda: x_([2, 3]) + x_([2, 4]), ["Add does not accept", "float32[2x4]"]),
        ("rank", lambda: op.Exp(x_(None)).rank, ["The rank of <Value Exp float32[?]> is not known", "declare"]),
    ),
)  # fmt: skip
def test_errors(make, parts):
    with pytest.raises(GraphError) as e:
        make()
    for part in parts:
        assert part in str(e.value)


def test_attributes_have_the_defaults_of_the_specification():
    node = op.LayerNormalization(x_(), constant(np.ones(3, np.float32)), axis=1).node
    assert (node.attribute("axis"), node.attribute("stash_type")) == (1, 1)
    assert node.attribute("epsilon") == pytest.approx(1e-5)
    assert op.Transpose(x_()).node.attribute("perm") is None


def test_several_outputs():
    values, indices = op.TopK(x_(), [2])
    assert (values.shape, indices.dtype) == (("N", 2), np.int64)
    assert [v.shape for v in op.Split(x_([4, 3]), num_outputs=2)] == [(2, 3), (2, 3)]
    assert [v.shape for v in op.Split(x_([4, 3]), [1, 3], n_outputs=2)] == [(1, 3), (3, 3)]
    assert op.MaxPool(x_([1, 1, 4]), kernel_shape=[2]).node.outputs[1].dtype == np.int64


def test_shapes_follow_constants():
    assert op.Reshape(x_([2, 3]), [3, -1]).shape == (3, 2)
    assert op.Slice(x_([5, 3]), [1], [4], [0]).shape == (3, 3)


# Graphs.


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
    assert types(build([x], [draw(x) + draw(x)])) == [draw(x).node.op_type] * n + ["Add"]


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
             *(name for node in model.graph.node for name in node.output)]  # fmt: skip
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


def test_an_operator_younger_than_the_opset_is_taken_as_it_first_appeared():
    assert op.RMSNormalization(x_(), constant(np.ones(3, np.float32))).node.schema.since_version == 23


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

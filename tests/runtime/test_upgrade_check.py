"""An upgraded model is compared with its file, and a difference of meaning is an error."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortpartial
from ortpartial.exceptions import ModelError
from ortpartial.graph import OPSET, op, schema_of
from ortpartial.model import load
from ortpartial.model.upgrade import WRITERS
from ortpartial.runtime import upgrade_check
from ortpartial.runtime.upgrade_check import compare_with_file, largest_difference
from ortpartial.testing import check_upgrade

X = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)


def file_of(*nodes, opset=11, x=X, y=TensorProto.FLOAT, **initializers):
    """A model from x to y."""
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes, "file", [helper.make_tensor_value_info("x", kind, ["N", *x.shape[1:]])],
        [helper.make_tensor_value_info("y", y, None)], [numpy_helper.from_array(a, n) for n, a in initializers.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(("a", "b", "expected"), [
    ([1.0, np.nan, np.inf], [1.5, np.nan, np.inf], 0.5), ([1.0], [np.nan], np.inf), ([1.0], [[1.0]], np.inf),
    (["a"], ["a"], 0), (["a"], ["b"], np.inf), ([], [], 0), ([True], [False], 1)])
def test_the_largest_difference(a, b, expected):
    assert largest_difference(a, b) == expected


HARDMAX = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Hardmax", ["a"], ["b"], name="choice", axis=1),
           helper.make_node("Mul", ["b", "b"], ["y"])]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "ortpartial")
    return lambda: [r.getMessage() for r in caplog.records if "upgrade" in r.getMessage()]


@pytest.mark.parametrize("read", [load, ortpartial.load, ortpartial.OrtGradientForwardBackwardOptimizer])
def test_another_meaning(monkeypatch, read):
    monkeypatch.delitem(WRITERS, "Hardmax")  # as onnx's converter upgrades it
    with pytest.raises(ModelError, match=r"Node choice \(Hardmax, output 'b'\) computes something else at opset 21 "
                                         r"than at opset 11, that of the file: its output differs by 1\. Export"):
        read(file_of(*HARDMAX))


def test_another_meaning_inside_of_a_node(monkeypatch):
    monkeypatch.delitem(WRITERS, "Softmax")
    body = helper.make_graph([helper.make_node("Softmax", ["a"], ["b"], axis=0)], "branch", [],
                             [helper.make_tensor_value_info("b", TensorProto.FLOAT, X.shape)])
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("ReduceMin", ["a"], ["m"], keepdims=0),
             helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
             helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)]
    with pytest.raises(ModelError, match=r"\(If, output 'y'\) computes something else"):
        load(file_of(*nodes))


def test_the_same_meaning(log):
    load(file_of(*HARDMAX))
    assert [m.startswith("checked the upgrade of 'file' in") for m in log()] == [True]


@pytest.mark.parametrize(("opset", "inputs", "weights"), [(21, 1, 3), (11, 1, 2**21), (11, 2**21, 3)])
def test_no_check(log, opset, inputs, weights):
    """Neither of what was not upgraded, nor of what takes long."""
    model = file_of(helper.make_node("Gather", ["x", "i"], ["z"], axis=1),
                    helper.make_node("ReduceMax", ["w"], ["m"]), helper.make_node("Mul", ["z", "m"], ["y"]),
                    opset=opset, x=np.zeros((1, inputs), np.float32), i=np.array([0]),
                    w=np.zeros(weights, np.float32))
    load(model)
    assert log() == []


def test_no_check_where_no_operator_has_changed(log):
    load(file_of(helper.make_node("Neg", ["x"], ["y"]), opset=13))
    assert log() == []


@pytest.mark.parametrize("op_type", sorted(upgrade_check._FURTHER_TYPES))
def test_no_check_of_operators_that_take_further_types_alone(op_type, log):
    """Whose inputs, outputs and attributes are those of now, but for an attribute of float8."""
    latest = schema_of(op_type, "", OPSET)
    for version in range(upgrade_check._LEAST, OPSET):
        schema = schema_of(op_type, "", version)
        assert [(p.name, p.option) for p in schema.inputs] == [(p.name, p.option) for p in latest.inputs]
        assert latest.attributes.keys() - schema.attributes.keys() <= {"saturate"}
        assert all(latest.attributes[n].default_value == a.default_value for n, a in schema.attributes.items())
    assert WRITERS.get(op_type, (0,))[0] < upgrade_check._LEAST, "the last opset of which a node is written anew"
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 2, 1])
    for opset in (upgrade_check._LEAST, 13):
        load(file_of(node, opset=opset))
        assert bool(log()) == (opset == 13)


def test_no_check_of_numbers_beyond_32_bits(log, caplog):
    """onnxruntime 1.19.2 reads foreign memory for the first of two Trilus, which no guard bounds in the file."""
    nodes = [helper.make_node("Trilu", [a, k], [b]) for a, k, b in (("x", "least", "h"), ("h", "k", "z"))]
    nodes = [helper.make_node("Neg", ["most"], ["k"]), *nodes, helper.make_node("ReduceMax", ["z"], ["y"], axes=[0])]
    for k in (2**63 - 1, 2):
        load(file_of(*nodes, opset=14, x=X[:, :, 0], least=np.array(-1), most=np.array(k)))
        assert [m.startswith("checked the upgrade") for m in log()] == [k == 2]
        caplog.clear()
    with pytest.raises(ModelError, match="a number beyond 32 bits counts elements, for which onnxruntime"):
        check_upgrade(file_of(*nodes, opset=14, x=X[:, :, 0], least=np.array(-(2**63)), most=np.array(1)))


def test_no_check_of_what_has_no_guards(log):
    """onnxruntime 1.19.2 ends the process on this node, whose attributes do not fit its input."""
    node = helper.make_node("LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[1.0] * 7, targets=3)
    model = file_of(node, opset=15, x=X[:, :, 0])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    load(model)
    assert log() == []


def test_what_onnxruntime_computes_wrongly():
    """The absolute values of x, of which onnxruntime 1.19.2 leaves out the sign; no upgrade has changed the node."""
    node = helper.make_node("ReduceL1", ["x", "a"], ["y"], noop_with_empty_axes=1)
    load(file_of(node, opset=18, a=np.zeros(0, np.int64)))


NODES = {
    "indices": ([helper.make_node("Gather", ["w", "x"], ["y"])], {"x": np.zeros((2, 3), np.int64),
                                                                 "w": X[0]}),
    "not a number": ([helper.make_node("Log", ["x"], ["y"])], {}),
    "float16": ([helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])],
                {"x": X.astype(np.float16), "y": TensorProto.FLOAT16}),
    "ties": ([helper.make_node("Relu", ["x"], ["a"]), helper.make_node("TopK", ["a", "k"], ["b", "y"], axis=2)],
             {"k": np.array([3]), "y": TensorProto.INT64}),
    "bytes": ([helper.make_node("DequantizeLinear", ["x", "w"], ["y"])], {"x": X.astype(np.uint8),
                                                                         "w": np.float32(0.1)}),
    "text": ([helper.make_node("Identity", ["x"], ["y"])], {"x": np.array([["a"]], object),
                                                            "y": TensorProto.STRING}),
    "random": ([helper.make_node("RandomNormalLike", ["x"], ["a"]), helper.make_node("Mul", ["a", "x"], ["y"])], {}),
    "Dropout in training": ([helper.make_node("Dropout", ["x", "r", "t"], ["y"])],
                            {"opset": 12, "r": np.float32(0.5), "t": np.array(True)}),
}


@pytest.mark.parametrize("name", NODES)
def test_no_false_alarm(log, name):
    nodes, settings = NODES[name]
    load(file_of(*nodes, **settings))
    assert [m.startswith("checked the upgrade") for m in log()] == [True]


def test_a_difference_that_no_node_makes():
    """Rounding, which a discontinuous operator has blown up."""
    model = load(file_of(helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Round", ["a"], ["y"])))
    x = model.inputs["x"]
    compare_with_file(replace(model, outputs={"y": op.Round(op.Abs(x) + 0.1)}))


def test_a_file_that_does_not_run(log):
    """In silence when it is read, and an error where the check is asked for."""
    model = load(file_of(helper.make_node("Clip", ["x"], ["y"], min=0.0), opset=10, x=X.astype(np.float64),
                         y=TensorProto.DOUBLE))
    assert "was not checked: onnxruntime does not run the file" in log()[0]
    with pytest.raises(ModelError, match="onnxruntime does not run the file on the inputs that it is compared at"):
        compare_with_file(model)


def test_a_loop_that_takes_long(log):
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Tanh", ["v"], ["w"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("c", TensorProto.BOOL, []),
         helper.make_tensor_value_info("v", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []),
         helper.make_tensor_value_info("w", TensorProto.FLOAT, None)])
    load(file_of(helper.make_node("Loop", ["n", "", "x"], ["y"], body=body), opset=13, n=np.array(10**9)))
    assert len(log()) == 1
    assert "was not checked: The model does not run on the inputs" in log()[0]
    assert "not over after 0.5 s" in log()[0]


def test_sizes_that_do_not_fit(log):
    """Of those that are tried, one does."""
    nodes = [helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[9]), helper.make_node("Hardmax", ["a"], ["y"])]
    model = file_of(*nodes)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "T"
    load(model)
    assert [m.startswith("checked the upgrade") for m in log()] == [True]


def test_on_request(monkeypatch):
    """Of a model of any size, at inputs of one's own."""
    weights = {"w": np.ones(2**20 + 1, np.float32)}
    nodes = [*HARDMAX[:2], helper.make_node("ReduceMax", ["w"], ["m"]), helper.make_node("Mul", ["b", "m"], ["y"])]
    check_upgrade(file_of(*nodes, **weights))
    monkeypatch.delitem(WRITERS, "Hardmax")
    same = np.zeros((1, 3, 5), np.float32)
    same[0, 0] = 1
    model = load(file_of(*nodes, **weights))
    with pytest.raises(ModelError, match="Node choice"):
        check_upgrade(model)
    with pytest.raises(ModelError, match="Node choice"):
        check_upgrade(model, {"x": X})
    with pytest.raises(ModelError, match=r"does not run on the inputs that it is compared at: .*x"):
        check_upgrade(model, {"x": X[:, :, 0]})

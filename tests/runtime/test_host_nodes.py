"""The nodes of a graph that an execution provider leaves to the CPU."""

import numpy as np
import onnx
from onnx import TensorProto

from ortpartial.graph import build, op, variable
from ortpartial.runtime import Session
from ortpartial.runtime.host_nodes import list_dtypes, split_host_nodes

x, k = variable("x", "float32", [2]), variable("k", "int64", [])
POWER = 0.9 ** op.Cast(k + 1, to=TensorProto.DOUBLE)


def test_dtypes_of_a_graph():
    graph = build([x, k], {"y": x * op.Cast(POWER, to=TensorProto.FLOAT)}).graph
    assert {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64} <= list_dtypes(graph)
    assert TensorProto.DOUBLE not in list_dtypes(build([x], {"y": x * 2}).graph)


def test_two_graphs_compute_what_one_does():
    """An input and a computed value that both read, and outputs of the first that the whole graph returns."""
    b = op.Cast(POWER, to=TensorProto.FLOAT)
    model = build([x, k], {"y": op.Relu(x) / b + op.Cast(k, to=TensorProto.FLOAT), "next": k + 1, "b": b})
    first, second = split_host_nodes(model, {TensorProto.DOUBLE})
    for part in (first, second):
        onnx.checker.check_model(part, full_check=True)
    assert TensorProto.DOUBLE not in list_dtypes(second.graph)
    feeds = {"x": np.float32([1, -2]), "k": np.array(3)}
    passed = Session(first).run({"k": feeds["k"]})
    y = Session(second).run({n: v for n, v in {**feeds, **passed}.items() if n in Session(second).inputs})
    expected = Session(model).run(feeds)
    assert list(y) == list(expected)
    assert all((y[n] == expected[n]).all() for n in expected)


def test_graphs_that_do_not_come_apart():
    """For the sake of a product, as an output has the dtype, and as no node is left."""
    square = op.Cast(op.Unsqueeze(x, [0]), to=TensorProto.DOUBLE)
    product = op.Cast(op.Transpose(square) @ square, to=TensorProto.FLOAT)
    for model in (build([x], {"y": op.Relu(product)}), build([x, k], {"y": op.Relu(x), "p": POWER}),
                  build([k], {"y": op.Cast(POWER, to=TensorProto.FLOAT)})):
        assert split_host_nodes(model, {TensorProto.DOUBLE}) == (model, None)


def test_nothing_to_split():
    model = build([x], {"y": op.Relu(x)})
    assert split_host_nodes(model, {TensorProto.DOUBLE}) == (None, model)
    assert split_host_nodes(model, ()) == (None, model)

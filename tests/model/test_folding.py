"""Constant folding: arithmetic of shapes is computed, weights are not copied, and nothing long is written out."""

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_graph

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.model.folding import evaluate, fold_constants, fold_node, read_constant

OPSETS = {"": 21}


def fold(text):
    graph = parse_graph(text)
    fold_constants(graph, OPSETS)
    constants = [n for n in graph.node if n.op_type == "Constant"]
    return {n.output[0]: numpy_helper.to_array(n.attribute[0].t).tolist() for n in constants}


def test_whole_numbers_of_constants():
    folded = fold("""g (float[N] x) => (int64[2] s) <int64[2] a = {2, 3}, int64[2] b = {4, 5}> {
        p = Mul (a, b)
        s = Add (p, a)
        n = Shape (x) }""")
    assert folded == {"p": [8, 15], "s": [10, 18]}


def test_weights_stay_as_they_are():
    assert fold("g () => (float[2] y) <float[2] w = {1, 2}> { y = Add (w, w) }") == {}


@pytest.mark.parametrize("divisor", [0, -1])
def test_a_division_that_would_crash_is_left(divisor):
    node = helper.make_node("Div", ["a", "b"], ["y"])
    least = np.array([np.iinfo(np.int64).min])
    assert fold_node(node, {"a": least, "b": np.array([divisor])}, OPSETS) is None
    assert fold_node(node, {"a": least, "b": np.array([2])}, OPSETS).tolist() == [-(2**62)]


def test_what_grows_is_left():
    node = helper.make_node("Tile", ["a", "r"], ["y"])
    assert fold_node(node, {"a": np.array([1]), "r": np.array([10**9])}, OPSETS) is None
    assert fold_node(node, {"a": np.array([1]), "r": np.array([3])}, OPSETS).tolist() == [1, 1, 1]


def test_a_long_range_is_refused():
    with pytest.raises(ModelError, match=r"\(Range, output 'y'\) counts from 0\.0 to 1000000000000\.0, 1000000000000"):
        fold("g () => (int64[N] y) <int64 a = {0}, int64 b = {1000000000000}, int64 c = {1}> { y = Range (a, b, c) }")


def test_a_model_that_fails_is_no_error():
    model = helper.make_model(parse_graph("g (float[2] x) => (float[2] y) { y = Unheard (x) }"))
    assert evaluate(model, {"x": np.zeros(2, np.float32)}) is None


def test_the_forms_of_a_constant():
    assert read_constant({"value_ints": [1, 2]}).array.dtype == np.int64
    assert read_constant({"value_float": 0.5}).array.dtype == np.float32
    with pytest.raises(GraphError, match=r"A Constant of \['value_string'\] is no tensor of numbers"):
        read_constant({"value_string": b"a"})

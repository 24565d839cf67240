"""Sparse initializers: equal to onnxruntime's reading, and errors that name them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession
from training_models import changed

from ortpartial import OrtGradientForwardBackwardOptimizer, check_training_info
from ortpartial.exceptions import ModelError
from ortpartial.model.load import load
from ortpartial.model.sparse import densify, to_dense

W = np.array([[0, 5, 0], [7, 0, 0]], np.float32)


def sparse(values, places, dims, name="w", dtype=np.float32):
    values = numpy_helper.from_array(np.asarray(values, dtype), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.asarray(places, np.int64)), dims)


def model(t, shape=(2, 3)):
    """x·w with a sparse w, which has two rows."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("x", 2), ("y", shape[1])))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], sparse_initializer=[t])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


# Every form, and what it is.
FORMS = {
    "linear": (sparse([5, 7], [1, 3], [2, 3]), W),
    "an index an axis": (sparse([5, 7], [[0, 1], [1, 0]], [2, 3]), W),
    "nothing": (sparse([], [], [2, 3]), 0 * W),
    "nothing, an index an axis": (sparse([], np.zeros((0, 2)), [2, 3]), 0 * W),
    "one axis": (sparse([5, 7], [[1], [3]], [6]), W.reshape(-1)),
    "three axes": (sparse([5, 7], [[0, 0, 1], [0, 1, 0]], [1, 2, 3]), W[None]),
    "half": (sparse([5, 7], [1, 3], [2, 3], dtype=np.float16), W.astype(np.float16)),
    "whole": (sparse([5, 7], [1, 3], [2, 3], dtype=np.int64), W.astype(np.int64)),
    "no elements": (sparse([], [], [2, 0]), W[:, :0]),
}


@pytest.mark.parametrize(("t", "expected"), FORMS.values(), ids=FORMS)
def test_dense(t, expected):
    found = to_dense(t)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("form", ["linear", "an index an axis"])
def test_as_onnxruntime(form):
    proto, x = model(FORMS[form][0]), np.eye(2, dtype=np.float32)
    (expected,) = InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    before = proto.SerializeToString()
    trained = OrtGradientForwardBackwardOptimizer(proto, learning_rate=0.1, batch_size=2, max_iter=1)
    np.testing.assert_array_equal(trained.predict(x), expected)
    trained.fit(x, expected + 1)
    after = numpy_helper.to_array(trained.get_trained_onnx().graph.initializer[0])
    assert (after > W).all()
    assert not trained.get_trained_onnx().graph.sparse_initializer
    assert proto.SerializeToString() == before


def test_bodies_constants_and_trainings():
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N, 2] x, bool c) => (float[N, 3] y) '
        "{ y = If (c) <then_branch = t () => (float[N, 3] u) { u = MatMul(x, w) }, "
        "else_branch = e () => (float[N, 3] v) { z = Constant () v = MatMul(x, z) }> }"
    )
    then, other = (a.g for a in proto.graph.node[0].attribute)
    then.sparse_initializer.append(FORMS["linear"][0])
    other.node[0].attribute.append(helper.make_attribute("sparse_value", sparse([1], [0], [2, 3])))
    found = densify(proto)
    assert densify(found) is found
    then, other = (a.g for a in found.graph.node[0].attribute)
    np.testing.assert_array_equal(numpy_helper.to_array(then.initializer[0]), W)
    np.testing.assert_array_equal(numpy_helper.to_array(other.node[0].attribute[0].t), np.eye(1, 6).reshape(2, 3))
    assert load(proto).outputs["y"].shape == ("N", 3)


def test_in_the_algorithm_of_a_training():
    proto = changed()
    proto.training_info[0].algorithm.sparse_initializer.append(sparse([1], [0], [2], "more"))
    check_training_info(proto)
    assert "more" in [t.name for t in densify(proto).training_info[0].algorithm.initializer]


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (sparse([5], [6], [2, 3]), r"'w' has the index 6, which is outside of the shape \(2, 3\)"),
        (sparse([5], [-1], [2, 3]), "the index -1, which is outside"),
        (sparse([5, 7], [[0, 1], [0, 3]], [2, 3]), r"the index \[0, 3\], which is outside"),
        (sparse([5, 7], [3, 1], [2, 3]), "the index 1 behind 3; ascending ones were expected, each once"),
        (sparse([5, 7], [[0, 1], [0, 1]], [2, 3]), r"the index \[0, 1\] behind \[0, 1\]; ascending"),
        (sparse([5, 7], [1], [2, 3]), r"indices of int64 and shape \(1,\), where int64 and \(2,\) or \(2, 2\)"),
        (sparse([5], [[0, 1, 0]], [2, 3]), r"shape \(1, 3\), where int64 and \(1,\) or \(1, 2\) were"),
        (sparse([[5]], [1], [2, 3]), r"has values of shape \(1, 1\), where one axis was expected"),
        (sparse([5], [0], []), r"has the shape \(\), where one to 32 sizes were expected, none of them negative"),
        (sparse([5], [0], [-1, 3]), r"has the shape \(-1, 3\), where one to 32"),
        (sparse([5], [0], [10**9, 10**9]), "GiB are available"),
        (helper.make_sparse_tensor(helper.make_tensor("w", 1, [1], [5.0]), helper.make_tensor("", 6, [1], [0]), [2, 3]),
         "indices of int32"),
        (helper.make_sparse_tensor(TensorProto(name="w", dims=[3], data_type=1, raw_data=b"1"),
                                   helper.make_tensor("", 7, [1], [0]), [2, 3]),
         r"The tensor 'w' is FLOAT of shape \(3,\), which takes 12 bytes, and has 1"),
    ],
)
def test_broken(t, message):
    with pytest.raises(ModelError, match=message):
        load(model(t))

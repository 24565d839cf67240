"""Constants of a graph are read through Cast and Transpose, and written for one reader alone."""

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from ortpartial.adapters.constants import Constants
from ortpartial.exceptions import ModelError

TEXT = """<ir_version: 8, opset_import: ["": 21]>
g (float[N, 2] x) => (float[N, 3] y, float[N, 2] z)
<double[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2, 2] v = {1, 2, 3, 4}> {
    c = Cast <to = 1> (w)
    t = Transpose <perm = [1, 0]> (c)
    y = MatMul (x, t)
    u = MatMul (x, v)
    z = MatMul (u, v)
}"""


@pytest.fixture
def graph():
    return parse_model(TEXT).graph


def read(graph):
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer}


def test_what_a_node_reads(graph):
    constants = Constants(graph)
    a = constants.find(graph.node[2], 1)
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, [[1, 3, 5], [2, 4, 6]])
    assert constants.find(graph.node[2], 5) is None


def test_a_computed_one_is_an_error(graph):
    with pytest.raises(ModelError, match=r"The weight 'u' is computed by MatMul, and merge writes constants"):
        Constants(graph).find(graph.node[4], 0)
    with pytest.raises(ModelError, match=r"The weight 'x' is an input"):
        Constants(graph).find(graph.node[2], 0)


def test_writing_for_the_only_reader_changes_the_constant(graph):
    """In the order and the dtype that it is stored in."""
    constants, a = Constants(graph), np.arange(6, dtype=np.float32).reshape(2, 3)
    constants.write(graph.node[2], 1, a)
    assert read(graph)["w"].dtype == np.float64
    np.testing.assert_array_equal(read(graph)["w"], a.T)
    np.testing.assert_array_equal(constants.find(graph.node[2], 1), a)


def test_writing_for_one_of_two_readers_adds_an_initializer(graph):
    constants = Constants(graph)
    constants.write(graph.node[3], 1, np.zeros((2, 2), np.float32))
    np.testing.assert_array_equal(read(graph)["v"], [[1, 2], [3, 4]])
    assert graph.node[3].input[1] == "v.merged"
    assert not read(graph)["v.merged"].any()
    assert graph.node[4].input[1] == "v"

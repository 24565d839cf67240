"""Is what a node is said to be what the graph says?"""

import numpy as np
import pytest
from onnx import parser

from ortpartial.exceptions import ModelError
from ortpartial.runtime.agent_nodes import AgentGraph, dims

MODEL = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3] x, int64[2] i) => (float[2, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}> {
        h = Gather(x, i)  k = Shape(h)  z = Gemm <alpha = 0.5> (h, w, b)  y = Relu(z) }""")


def test_what_a_gradient_needs():
    assert AgentGraph(MODEL, ["w"]).needed == {"w", "z", "y"}
    assert AgentGraph(MODEL, ["x"]).needed == {"x", "h", "z", "y"}
    assert [site.op_type for site in AgentGraph(MODEL, ["b"]).sites] == ["Gemm", "Relu"]


def test_a_node_where_it_stands():
    graph = AgentGraph(MODEL, ["w"])
    gemm = graph.sites[0]
    assert (gemm.shape(0), gemm.shape(1), gemm.shape(3), gemm.made()) == ((2, 3), (3, 2), None, (2, 2))
    assert [gemm.needed(i) for i in range(4)] == [False, True, False, False]
    assert (gemm.attribute("alpha"), gemm.attribute("transB", 0)) == (0.5, 0)
    np.testing.assert_array_equal(gemm.array(2), [1, 2])
    assert gemm.array(1) is None  # it changes
    assert str(gemm) == "Gemm (the node of 'z')"
    assert dims(graph.types["x"]) == ("N", 3)


@pytest.mark.parametrize(("name", "message"), [("v", "no initializer or input named 'v'"), ("i", "'i' is not of a fl")])
def test_what_cannot_be_wanted(name, message):
    with pytest.raises(ModelError, match=message):
        AgentGraph(MODEL, [name])

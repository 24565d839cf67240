"""Activity analysis for the TrainingAgent, and facts about a node."""

import numpy as np
import pytest
from onnx import parser

from ortpartial.exceptions import ModelError
from ortpartial.runtime.agent_nodes import AgentGraph, read_shape

MODEL = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 3] x, int64[2] i) => (float[2, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 2}> {
        h = Gather(x, i)  k = Shape(h)  z = Gemm <alpha = 0.5> (h, w, b)  y = Relu(z) }""")


def test_active_tensors():
    assert AgentGraph(MODEL, ["w"]).active == {"w", "z", "y"}
    assert AgentGraph(MODEL, ["x"]).active == {"x", "h", "z", "y"}
    assert [node.op_type for node in AgentGraph(MODEL, ["b"]).active_nodes] == ["Gemm", "Relu"]


def test_node():
    graph = AgentGraph(MODEL, ["w"])
    gemm = graph.active_nodes[0]
    assert (gemm.shape(0), gemm.shape(1), gemm.shape(3), gemm.output_shape()) == ((2, 3), (3, 2), None, (2, 2))
    assert [gemm.is_active(i) for i in range(4)] == [False, True, False, False]
    assert (gemm.attribute("alpha"), gemm.attribute("transB", 0)) == (0.5, 0)
    np.testing.assert_array_equal(gemm.constant(2), [1, 2])
    assert gemm.constant(1) is None  # It is trained.
    assert str(gemm) == "Gemm (the node of 'z')"
    assert read_shape(graph.types["x"]) == ("N", 3)


@pytest.mark.parametrize(("name", "message"), [("v", "no initializer or input named 'v'"), ("i", "'i' is not of a fl")])
def test_names_without_a_gradient(name, message):
    with pytest.raises(ModelError, match=message):
        AgentGraph(MODEL, [name])

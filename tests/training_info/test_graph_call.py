"""GraphCall of ONNX 1.7: the inference graph is inlined under names of its own."""

import re

import pytest
from onnx import helper
from onnx.parser import parse_graph

from ortpartial.exceptions import ModelError
from ortpartial.training_info.graph_call import inline_call, is_call

DOMAIN = "ai.onnx.preview.training"
GRAPH = parse_graph("""inference (float[N] x) => (float[N] y, float[N] z) <float w = {2.0}>
    { h = Mul (x, w)
      y = Neg (h)
      z = Abs (h) }""")


def call(inputs=("data",), outputs=("out",), name="inference"):
    return helper.make_node("GraphCall", inputs, outputs, domain=DOMAIN, graph_name=name)


def test_what_a_call_is():
    assert is_call(call())
    assert not is_call(helper.make_node("GraphCall", [], []))
    assert not is_call(helper.make_node("Gradient", [], [], domain=DOMAIN))


def test_inlined():
    """Its inputs and outputs are those of the call, weights stay, and inner names are reserved."""
    taken = {"c0_h", "data", "out"}
    nodes = inline_call(call(), GRAPH, "here", "c0", taken)
    assert [(n.op_type, [*n.input], [*n.output]) for n in nodes] == [
        ("Mul", ["data", "w"], ["c0_h_"]), ("Neg", ["c0_h_"], ["out"]), ("Abs", ["c0_h_"], ["c0_z"])]
    assert {"c0_h_", "c0_z"} <= taken


@pytest.mark.parametrize(("node", "message"), [
    (call(name="other"), "here: a GraphCall names the graph 'other', and the only one that it may call, the inference"),
    (call(inputs=("a", "b")), "here: a GraphCall has 2 inputs and 1 outputs, the graph 'inference' has 1"),
    (call(inputs=("",)), "here: a GraphCall leaves out the input 'x', which has no initializer.")])
def test_errors(node, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        inline_call(node, GRAPH, "here", "c0", set())

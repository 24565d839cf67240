"""Walks over graphs of files: bodies of any depth, and attributes of operators that are not known."""

from onnx import helper
from onnx.parser import parse_graph

from ortpartial.model.walk import bodies, walk_graphs, walk_protos

INNER = parse_graph("inner () => (float y) { y = Exp (x) }")
OUTER = parse_graph("outer () => (float y) { y = Neg (x) }")
OUTER.node.append(helper.make_node("If", ["c"], ["z"], then_branch=INNER, else_branch=INNER))
GRAPH = parse_graph("g (float x, bool c) => (float y) { y = Abs (x) }")
GRAPH.node.append(helper.make_node("If", ["c"], ["z"], then_branch=OUTER, else_branch=INNER))


def test_graphs():
    assert sorted(g.name for g in walk_graphs(GRAPH)) == ["g", "inner", "inner", "inner", "outer"]


def test_nodes():
    assert sorted(n.op_type for n in walk_protos(GRAPH)) == ["Abs", "Exp", "Exp", "Exp", "If", "If", "Neg"]


def test_a_graph_of_an_operator_of_another_domain_is_a_body():
    node = helper.make_node("Repeat", ["x"], ["y"], domain="my.domain", body=INNER, count=3)
    assert [g.name for g in bodies(node)] == ["inner"]
    assert bodies(helper.make_node("Relu", ["x"], ["y"])) == []
    several = helper.make_node("Repeat", ["x"], ["y"], domain="my.domain", all=[INNER, OUTER])
    graph = helper.make_graph([several], "g", [], [])
    assert [n.op_type for n in walk_protos(graph)].count("Exp") == 3

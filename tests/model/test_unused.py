"""Constants that nothing reads are removed, and no others."""

import pytest
from onnx import helper
from onnx.parser import parse_graph, parse_model

from ortpartial.model.unused import remove_unused


@pytest.mark.parametrize(
    ("nodes", "names", "left"),
    [
        ("y = Exp (x)", "w", ["v"]),
        ("y = Exp (x)", "v w", []),
        ("y = Add (x, w)", "v w", ["w"]),
        ("c = Constant <value = float {1}> () d = Identity (c) y = Exp (x)", "d", ["v", "w"]),
        ("c = Identity (w) y = Add (x, v)", "c", ["v"]),
        ("c = Identity (w) y = Add (c, x)", "c w", ["v", "w"]),
        ("b = Constant <value = bool {1}> () y = If (b) <then_branch = g () => (float[1] z) { z = Identity (w) }, "
         "else_branch = h () => (float[1] z) { z = Exp (x) }>", "v w", ["w"]),
    ],
)
def test_initializers(nodes, names, left):
    graph = parse_graph(f"f (float[1] x) => (float[1] y) <float[1] v = {{1}}, float[1] w = {{2}}> {{ {nodes} }}")
    remove_unused(graph, names.split())
    assert [t.name for t in graph.initializer] == left
    read = {i for node in graph.node for i in node.input}
    assert [n for n in names.split() if n in {o for node in graph.node for o in node.output} - read] == []


def test_an_input_with_a_default():
    graph = parse_graph("f (float[1] x, float[1] w) => (float[1] y) <float[1] v = {1}> { y = Exp (x) }")
    graph.initializer.append(helper.make_tensor("w", 1, [1], [3.0]))
    remove_unused(graph, ["w", "x"])
    assert [i.name for i in graph.input] == ["x"]


def test_a_function():
    model = parse_model("""
        <ir_version: 9, opset_import: ["" : 21, "own" : 1]>
        agraph (float[N] x) => (float[N] y) { y = own.f (x) }
        <opset_import: ["" : 21], domain: "own">
        f (a) => (b, c) { c = Constant <value = float {1}> () d = Identity (c) b = Exp (a) }
        """)
    remove_unused(model.functions[0], ["c", "d"])
    assert [node.op_type for node in model.functions[0].node] == ["Constant", "Exp"]

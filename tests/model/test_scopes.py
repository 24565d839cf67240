"""Scopes: where each node comes from, as torch's exporters record it."""

import pytest
from onnx import NodeProto, parser

from ortpartial.model.scopes import find_readers, read_scope


@pytest.mark.parametrize(("name", "scope"), [
    ("/encoder/layer.0/attention/self/query/MatMul", "encoder.layer.0.attention.self.query"),
    ("/layer1/layer1.0/conv1/Conv", "layer1.0.conv1"),
    ("/a/a.0/a.0.0/MatMul", "a.0.0"),
    ("/MatMul_1", ""),
    ("MatMul_1", None),
    ("", None),
])
def test_scopes_of_the_torchscript_exporter(name, scope):
    assert read_scope(NodeProto(name=name)) == scope


@pytest.mark.parametrize(("key", "value", "scope"), [
    ("pkg.torch.onnx.name_scopes", "['', 'encoder', 'encoder.layer.0', 'linear_3']", "encoder.layer.0"),
    ("pkg.torch.onnx.name_scopes", "['', 'linear']", ""),
    ("pkg.torch.onnx.name_scopes", "['linear']", ""),
    ("namespace", ": Net/encoder: a.b.Encoder/encoder.fc: torch.nn.Linear/linear_1: aten.linear.default", "encoder.fc"),
    ("namespace", "linear: aten.linear.default", ""),
    ("something", "else", None),
])
def test_scopes_of_the_dynamo_exporter(key, value, scope):
    node = NodeProto(name="node_linear")
    node.metadata_props.add(key=key, value=value)
    assert read_scope(node) == scope


def test_readers():
    graph = parser.parse_graph("""
        g (float[N, 2] x, bool c) => (float[N, 2] y) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
            merged = Identity (w)
            a = Mul (x, w)
            y = If (c) <then_branch = t () => (float[N, 2] p) { p = Add (merged, a) },
                        else_branch = e () => (float[N, 2] q) { q = Sub (a, a) }> }
        """)
    assert {n: [(node.op_type, i) for node, i in readers] for n, readers in find_readers(graph).items()} == {
        "w": [("Mul", 1), ("Add", 0)]}

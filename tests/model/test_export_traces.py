"""Traces of exporters: which weights an initializer holds, which are equal, and where a bias was left out."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial.model.aliases import Alias
from ortpartial.model.export_traces import ExportTraces, is_identity

ONES = np.ones(4, np.float32)
TABLE = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def trace(nodes, **arrays):
    """The traces in a model of nodes (name, operator, inputs, output) of no known exporter."""
    written = [helper.make_node(operator, read, [output], name=name) for name, operator, read, output in nodes]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y"))
    tensors = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    return ExportTraces(helper.make_model(helper.make_graph(written, "g", [x], [y], tensors)), arrays)


def test_uses_are_grouped_by_the_weight_that_they_read():
    nodes = [("/a/LayerNormalization", "LayerNormalization", ["x", "w"], "h"),
             ("/b/LayerNormalization", "LayerNormalization", ["h", "w"], "i"),
             ("/b_1/LayerNormalization", "LayerNormalization", ["i", "w"], "y")]
    ((name, groups),) = trace(nodes, w=ONES).find_merged()
    assert name == "w"
    assert {key: [use.node.name for use in uses] for key, uses in groups.items()} == {
        ("scope", "a", "weight"): ["/a/LayerNormalization"],
        ("scope", "b", "weight"): ["/b/LayerNormalization", "/b_1/LayerNormalization"]}


def test_identities_are_looked_through():
    traces = trace([("", "Identity", ["w"], "copy"), ("", "Mul", ["x", "copy"], "y")], w=ONES)
    assert [(use.node.op_type, use.index, use.via) for use in traces.uses["w"]] == [("Mul", 1, "copy")]
    assert [is_identity(node) for node in traces.nodes] == [True, False]
    assert traces.has_identities


@pytest.mark.parametrize(("head", "tied"), [(TABLE.T, [("onnx::MatMul_9", Alias("table", True))]),
                                            (TABLE.T + np.float32(1), [])])
def test_equal_matrices_are_tied(head, tied):
    nodes = [("", "Gather", ["table", "x"], "h"), ("", "MatMul", ["h", "onnx::MatMul_9"], "y")]
    traces = trace(nodes, **{"table": TABLE, "onnx::MatMul_9": np.ascontiguousarray(head)})
    assert list(traces.find_tied()) == tied
    assert list(traces.find_dropped()) == [], "the file does not name the calls of a program"

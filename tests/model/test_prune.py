"""A model with some of its outputs, and all else as it was."""

import onnx
import pytest
from models import mlp
from onnx.parser import parse_model

from ortpartial import add_loss_output
from ortpartial.model import prune_outputs


@pytest.mark.parametrize("loss", ["square_error", "softmax_cross_entropy"])
def test_without_its_loss_a_model_is_what_it_was(loss):
    model = mlp(outputs=3)
    assert prune_outputs(add_loss_output(model, loss), ["y"]).graph == model.graph


def test_what_bodies_read_is_kept():
    model = parse_model("""<ir_version: 8, opset_import: ["": 21]>
        f (float[N] x, float[N] t, bool c) => (float[N] y, float[N] e) <float a = {1}, float b = {2}, float d = {3}> {
            xa = Mul(x, a)
            y = If (c) <then_branch = g1 () => (float[N] p) { p = Identity(xa) },
                        else_branch = g2 () => (float[N] q) { q = Mul(xa, b) }>
            td = Mul(t, d)
            e = Sub(y, td)
        }""")
    pruned = prune_outputs(model, ["y"])
    onnx.checker.check_model(pruned, full_check=True)
    graph = pruned.graph
    assert [i.name for i in graph.input] == ["x", "c"]
    assert [t.name for t in graph.initializer] == ["a", "b"]
    assert [node.op_type for node in graph.node] == ["Mul", "If"]
    assert prune_outputs(model, ["y", "e"]) == model

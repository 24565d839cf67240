"""`detach` and `no_grad` in a graph: an Identity that no gradient passes."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

from ortpartial.autodiff import grad
from ortpartial.graph import op
from ortpartial.model import load
from ortpartial.torch import export
from ortpartial.torch.detach_export import DetachMode, mark_detached


class Net(torch.nn.Module):
    """x w + stop(x w), by `detach` or by `no_grad`."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.w = kind, torch.nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x):
        y = x * self.w
        if self.kind == "detach":
            return y + torch.exp(y).detach()
        with torch.no_grad():
            z = torch.exp(y)
        return y + z


@pytest.mark.parametrize("kind", ["detach", "no_grad"])
def test_no_gradient_passes(kind):
    x = torch.tensor([[1.0, 2.0]])
    model = load(export(Net(kind), x))
    (y,) = model.outputs.values()
    (g,) = grad(op.ReduceSum(y, keepdims=0), [model.initializers["w"]])
    from ortpartial.graph import build
    from ortpartial.runtime import Session

    (found,) = Session(build(model.inputs, {"g": g})).run({n: x.numpy() for n in model.inputs}).values()
    np.testing.assert_allclose(found.ravel(), [1, 2])


def test_the_mode_detaches_what_is_computed_without_a_gradient():
    module = Net("no_grad")
    module.register_buffer("b", torch.ones(2))
    with DetachMode(module):
        a = module.w * 2
        with torch.no_grad():
            b = module.w * 2
    assert a.requires_grad
    assert not b.requires_grad


def test_nodes_of_ours_become_those_of_onnx():
    nodes = [helper.make_node("StopGradient", ["x"], ["y"], domain="ortpartial")]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N"]) for n in "xy")
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("ortpartial", 1)])
    marked = mark_detached(proto)
    assert (marked.graph.node[0].op_type, marked.graph.node[0].domain) == ("Identity", "")
    assert [i.domain for i in marked.opset_import] == [""]
    model = load(marked)
    (g,) = grad(op.ReduceSum(model.outputs["y"], keepdims=0), [model.inputs["x"]])
    assert not np.asarray(g.array if g.array is not None else 0).any()

"""A torch model that holds layers becomes an ONNX model again, by both of torch's exporters."""

import io
import re

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models import linear, mlp, two_in_two_out
from onnx import numpy_helper
from torch import nn

from ortpartial.exceptions import ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.subgraph import cond, loop
from ortpartial.torch.custom_operator import find_layer
from ortpartial.torch.onnx_export import make_function_proto
from ortpartial.torch.onnx_layer import OnnxLayer


def bodies():
    """Branches and a loop that read a weight from outside of them."""
    x, w = variable("x", "float32", ["N", 4]), constant(np.full((4, 4), 0.3, np.float32), hint="w")
    y = cond(op.ReduceSum(x, keepdims=0) > 0.0, lambda: x @ w, lambda: op.Relu(x) @ (w * 2))
    return build([x], {"y": loop(lambda i, going, v: (None, op.Tanh(v @ w)), 3, y)})


def newer():
    """Operators that opset 18 lacks, or has without an attribute that has its default."""
    x = variable("x", "float32", ["N", 4])
    ones = constant(np.ones(2, np.float32))
    y = op.GroupNormalization(op.Reshape(op.Gelu(x), [-1, 2, 2]), ones, ones, num_groups=1)
    return build([x], {"y": op.Cast(op.Flatten(y) @ constant(np.eye(4, dtype=np.float32), hint="w"), to=1, saturate=1)})


class Chain(nn.Module):
    """The same graph twice, with weights of its own each time, and once more with those of the first."""

    def __init__(self):
        super().__init__()
        self.first, self.layer, self.last, self.other = nn.Linear(3, 4), OnnxLayer(mlp()), nn.Linear(1, 4), OnnxLayer(
            mlp(seed=5))

    def forward(self, x):
        h = self.last(self.layer(torch.tanh(self.first(x))))
        return self.layer(self.last(self.other(h)))


class Several(nn.Module):
    """Inputs by name, and outputs of which one is unused."""

    def __init__(self):
        super().__init__()
        self.linear, self.layer = nn.Linear(3, 3), OnnxLayer(two_in_two_out(), return_dict=True)

    def forward(self, a, b, c):
        outputs = self.layer(self.linear(a), c=c, b=b)
        return outputs["kind"] * 2, outputs["price"]


MODULES = {
    "chain": (Chain, 1),
    "several": (Several, 3),
    "bodies": (lambda: nn.Sequential(nn.Linear(3, 4), OnnxLayer(bodies())), 1),
    "newer": (lambda: nn.Sequential(nn.Linear(3, 4), OnnxLayer(newer())), 1),
    "convolution": (lambda: nn.Sequential(nn.Linear(3, 36), nn.Unflatten(1, (1, 6, 6)), OnnxLayer.from_torch(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(), nn.Flatten()), torch.ones(1, 1, 6, 6))), 1),
}


def exported(module, inputs, dynamo, **settings):
    names = [f"in_{i}" for i in range(len(inputs))]
    stream = io.BytesIO()
    if dynamo:
        program = torch.onnx.export(module, inputs, dynamo=True, input_names=names, verbose=False,
                                    dynamic_shapes=tuple({0: "batch"} for _ in inputs), **settings)
        return program.model_proto
    torch.onnx.export(module, inputs, stream, dynamo=False, input_names=names,
                      dynamic_axes={n: {0: "batch"} for n in names}, **settings)
    return onnx.load_from_string(stream.getvalue())


# torch 2.13.0 warns about its own code.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("name", "dynamo"),
                         [*((n, False) for n in MODULES), ("chain", True), ("several", True), ("bodies", True)])
def test_export(name, dynamo):
    """Trained weights, names and a dynamic batch are kept, and the outputs are the same in onnxruntime."""
    torch.manual_seed(0)
    make, n_inputs = MODULES[name]
    module = make().eval()
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.9)
    model = exported(module, tuple(torch.randn(2, 3) for _ in range(n_inputs)), dynamo,
                     **({"output_names": ["twice", "price"]} if name == "several" else {}))
    onnx.checker.check_model(model, full_check=True)
    xs = [torch.randn(5, 3) for _ in range(n_inputs)]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = session.run(None, {f"in_{i}": x.numpy() for i, x in enumerate(xs)})
    expected = module(*xs)
    for y, z in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(y, z.detach().numpy(), rtol=1e-5, atol=1e-6)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    if name == "chain":
        assert weights.keys() == module.state_dict().keys()
        for key, t in module.state_dict().items():
            assert np.array_equal(weights[key], t.numpy())
    if name == "several":
        assert [o.name for o in model.graph.output] == ["twice", "price"]
    domains = {n.domain for n in model.graph.node}
    assert domains == ({""} if dynamo else {"", "ortpartial"})
    assert {f.domain for f in model.functions} == domains - {""}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_names_of_a_layer_alone():
    """The TorchScript exporter keeps those of its graph."""
    stream, layer = io.BytesIO(), OnnxLayer(two_in_two_out())
    torch.onnx.export(layer, tuple(torch.ones(2, 3) for _ in "abc"), stream, dynamo=False)
    graph = onnx.load_from_string(stream.getvalue()).graph
    assert [i.name for i in graph.input] == ["a", "b", "c"]
    assert [o.name for o in graph.output] == ["price", "kind", "unused"]


def test_opsets():
    """Older opsets get the graph in operators that they have."""
    layer = OnnxLayer(newer())
    function = make_function_proto(layer._handle, False, 18).proto
    assert function.opset_import[0].version == 18
    types = [n.op_type for n in function.node]
    assert {"Gelu", "GroupNormalization"}.isdisjoint(types)
    (cast,) = [n for n in function.node if n.op_type == "Cast" and n.attribute[0].i == 1 and n.output[0] == "y"]
    assert [a.name for a in cast.attribute] == ["to"]
    function = make_function_proto(layer._handle, False, 21).proto
    assert {"Gelu", "GroupNormalization"} < {n.op_type for n in function.node}
    x = variable("x", "float32", ["N", 4])
    layer = OnnxLayer(build([x], {"y": op.CumProd(x, 1)}))
    with pytest.raises(ModelError, match=re.escape("holds CumProd of opset 26, which has no form of opset 18: export")):
        make_function_proto(layer._handle, False, 18)


def test_a_layer_that_is_gone():
    key = OnnxLayer(linear())._handle
    with pytest.raises(ModelError, match=f"The OnnxLayer {key!r} of a compiled or exported program is not in this"):
        find_layer(key)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("graph", [linear(3), mlp(3)], ids=["state of its own", "state in submodules"])
def test_a_layer_goes_on_after_an_export(graph):
    model, x = nn.Sequential(nn.Linear(3, 3), OnnxLayer(graph)), torch.ones(2, 3)
    before = model(x)
    torch.export.export(model, (x,))
    torch.testing.assert_close(model(x), before)
    model(x).sum().backward()

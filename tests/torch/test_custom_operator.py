"""A layer is one operator in the graphs of torch.compile."""

import pytest
import torch
import torch._dynamo.testing
from models import mlp, two_in_two_out
from torch import nn

from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.torch.custom_operator import describe_call, onnx_layer
from ortpartial.torch.onnx_layer import OnnxLayer


class Model(nn.Module):
    """torch before and after a layer."""

    def __init__(self, **settings):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(3, 4), OnnxLayer(mlp(), **settings), nn.Linear(1, 1)

    def forward(self, x):
        return self.last(self.layer(torch.tanh(self.first(x)))).sigmoid()


class Several(nn.Module):
    """Several inputs by name, an output that is unused, and one without a gradient."""

    def __init__(self):
        super().__init__()
        self.layer = OnnxLayer(two_in_two_out(), return_dict=True)

    def forward(self, a):
        outputs = self.layer(a, c=a * 2, b=a + 1)
        return outputs["kind"].sum(1, keepdim=True) + outputs["price"]


def normalized():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 1))
    return nn.Sequential(OnnxLayer.from_torch(module, torch.ones(2, 3)), nn.Tanh())


MODELS = {"frozen": (lambda: Model(trainable=["W2"]), "aot_eager"), "several": (Several, "eager"),
          "normalized": (normalized, "aot_eager")}


def gradients(f, x, weights):
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    y = f(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), [x, *weights])


# torch 2.13.0 warns about itself.
@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_full_graph(name):
    """Outputs, gradients and running statistics, for batches of several sizes from one graph."""
    torch._dynamo.reset()
    make, backend = MODELS[name]
    model, copy = make(), make()
    copy.load_state_dict(model.state_dict())
    graphs = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=graphs, fullgraph=True, dynamic=True)
    for rows in (3, 5, 2):
        x = torch.randn(rows, 3)
        y, computed = gradients(compiled, x, list(model.parameters()))
        z, expected = gradients(copy, x, list(copy.parameters()))
        torch.testing.assert_close(y, z)
        for a, b in zip(computed, expected, strict=True):
            torch.testing.assert_close(a, b)
        with torch.no_grad():
            torch.testing.assert_close(compiled.eval()(x), copy.eval()(x))
            compiled.train(), copy.train()
    for a, b in zip(model.state_dict().values(), copy.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    assert graphs.frame_count <= 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("training", [False, True])
def test_operator(training):
    """torch's own checks of a custom operator: schema, fake tensors, and autograd with symbolic sizes."""
    layer = normalized()[0].train(training)
    call = describe_call(layer._handle, training)
    leaves = [torch.randn(4, 3), *[layer._read(key) for key in call.initializers]]
    leaves += [torch.ones(4, 6) for _ in call.masks]
    torch.library.opcheck(onnx_layer, ([t.detach() for t in leaves], layer._handle, training, []))
    wanted = [i for i, t in enumerate(leaves) if t.requires_grad]
    torch.library.opcheck(onnx_layer, (leaves, layer._handle, training, wanted))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_inputs_that_would_crash():
    """Where the operator runs, as sizes and indices are not known when it is compiled."""
    w = constant(torch.ones(1, 4, 2).numpy(), hint="w")
    x = variable("x", "float32", ["T", "N", 2])
    layer = OnnxLayer(build([x], {"y": op.RNN(x, w[:, :2], w[:, 2:4], hidden_size=2)[0][:, 0]})).eval()
    with pytest.raises(DataError, match=r"^Input 'x' has no elements, which crashes <Node RNN"):
        onnx_layer([torch.zeros(3, 0, 2), *layer.parameters()], layer._handle, False, [])


def test_shapes_that_are_computed():
    """The gradient recomputes what it cannot declare the shape of."""
    torch._dynamo.reset()
    x = variable("x", "float32", ["N", 3])
    some = op.Compress(op.Tanh(x @ constant([[1.0], [2.0], [3.0]], hint="w")), [True, False, True], axis=0)
    model = nn.Sequential(OnnxLayer(build([x], {"y": op.ReduceSum(op.Sigmoid(some) ** 2, keepdims=0)})), nn.Tanh())
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    a = torch.randn(4, 3)
    y, computed = gradients(compiled, a, list(model.parameters()))
    z, expected = gradients(model, a, list(model.parameters()))
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(computed, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_break():
    """A mask whose size is computed makes a graph for each size of the inputs, for which no operator stands."""
    torch._dynamo.reset()
    x = variable("x", "float32", ["N", 3])
    layer = OnnxLayer(build([x], {"y": op.Dropout(op.Concat(x, x, axis=0), constant(0.5))}))
    compiled = torch.compile(nn.Sequential(nn.Identity(), layer), backend="eager")
    assert set(compiled(torch.ones(20, 3)).unique().tolist()) == {0, 2}
    compiled = torch.compile(nn.Sequential(nn.Identity(), layer.eval()), backend="eager", fullgraph=True)
    assert compiled(torch.ones(20, 3)).shape == (40, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_traced():
    """torch.jit.trace takes the layer, and not the numbers that it gave once."""
    model = Model().eval()
    traced = torch.jit.trace(model, torch.randn(2, 3))
    x = torch.randn(5, 3)
    torch.testing.assert_close(traced(x), model(x))
    with pytest.raises(ModelError, match="An OnnxLayer was traced for inference, and has no gradient in this program"):
        traced(x).sum().backward()

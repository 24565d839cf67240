"""Models with branches and loops train as in torch, whichever exporter wrote them."""

import copy
from functools import cache
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from models import weights_of
from torch import nn
from torch._higher_order_ops.scan import scan as torch_scan
from torch._higher_order_ops.while_loop import while_loop
from torch_trainings import ROWS, check, matched

from ortpartial import OrtGradientForwardBackward
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ModelError
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond, scan
from ortpartial.graph.ops import constant, op, variable
from ortpartial.runtime.agent_support import find_untrusted
from ortpartial.runtime.session import Session


def choose(condition, first, second, x):
    """A branch in what is exported; torch.cond (2.13.0) writes the graphs of both branches anew in every step."""
    if torch.compiler.is_exporting():
        return torch.cond(condition, first, second, (x,))
    taken, other = (first, second) if condition else (second, first)
    return taken(x) + 0 * other(x)  # weights of the other branch have a gradient, which is zero


class Branches(nn.Module):
    """One of two networks, chosen by the mean of the batch; one of them has a branch inside."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 6), nn.Linear(5, 6), nn.Linear(6, 2)

    def forward(self, x):
        def first(x):
            h = torch.tanh(self.a(x))
            return choose(h.mean() > 0, lambda h: h * 2, lambda h: h + 1, h)

        return self.head(choose(x.mean() > 0, first, lambda x: torch.relu(self.b(x)), x))


class Recurrent(nn.Module):
    """A recurrent network over the second axis, as a scan."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.head = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, x):
        def step(h, x):
            h = torch.tanh(self.w(x) + self.u(h))
            return h, h * h

        h = 0 * self.w(x[:, 0])
        if torch.compiler.is_exporting():
            h, y = torch_scan(step, h, x.transpose(0, 1), dim=0)
            return self.head(h) + self.head(y.sum(0))
        y = torch.tensor(0)
        for t in range(x.shape[1]):
            h, z = step(h, x[:, t])
            y = y + z
        return self.head(h) + self.head(y)


class Repeated(nn.Module):
    """The same layer three times, as a loop."""

    def __init__(self):
        super().__init__()
        self.w, self.head = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        if torch.compiler.is_exporting():
            i = torch.tensor(0)
            _, x = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.tanh(self.w(x))), (i, x))
            return self.head(x)
        # Not by while_loop: its gradients are wrong where x needs none (torch 2.13.0).
        for _ in range(3):
            x = torch.tanh(self.w(x))
        return self.head(x)


class Scripted(nn.Module):
    """Python's own for and if, which TorchScript keeps."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.head = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)

    def forward(self, x):
        h = torch.zeros(x.size(0), 4, dtype=x.dtype)
        for i in range(x.size(1)):
            h = torch.tanh(self.w(x[:, i]) + self.u(h))
            if bool(h.mean() > 0):
                h = h * 2
        return self.head(h)


# Network, shape of a row, the operators in question.
NETS = {
    "cond": (Branches, (5,), {"If"}),
    "scan": (Recurrent, (6, 3), {"Scan"}),
    "while_loop": (Repeated, (5,), {"Loop"}),
    "script": (Scripted, (6, 3), {"Loop", "If"}),
}


@cache
def exported(name):
    make, shape, operators = NETS[name]
    torch.manual_seed(0)
    net, rng = make().eval(), np.random.default_rng(1)
    with torch.no_grad():  # exporters merge tensors that are equal
        for p in net.parameters():
            p.add_(0.2 * torch.rand_like(p) - 0.1)
    X, y = (rng.normal(size=(ROWS, *s)).astype(np.float32) for s in (shape, (2,)))
    dynamo = name != "script"
    settings = {"dynamic_shapes": ({0: torch.export.Dim("N")},)} if dynamo else {"dynamic_axes": {"x": {0: "N"}}}
    with TemporaryDirectory() as folder, torch.no_grad():
        torch.onnx.export(net if dynamo else torch.jit.script(net), (torch.tensor(X[:3]),), f"{folder}/net.onnx",
                          dynamo=dynamo, input_names=["x"], output_names=["y"], opset_version=18, verbose=False,
                          **settings)
        model = onnx.load(f"{folder}/net.onnx")
    assert operators <= {node.op_type for node in every(model.graph)}
    return net.requires_grad_(), model, X, y


def every(graph):
    """The nodes of a graph and of those inside it."""
    for node in graph.node:
        yield node
        for a in node.attribute:
            yield from every(a.g)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_as_torch(name):
    net, model, X, y = exported(name)
    check(net, model, "y", X, y, "step", "momentum", "square", X)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_and_backward_as_torch(name):
    net, model, X, dy = exported(name)
    names = matched(model, net)
    layer = OrtGradientForwardBackward(model, list(names))
    assert layer.engine_ == "step"
    (y,), state = layer.forward(X)
    weights, inputs = layer.backward([dy], state)
    net, x = copy.deepcopy(net).double(), torch.tensor(X, dtype=torch.float64, requires_grad=True)
    expected = net(x)
    expected.backward(torch.tensor(dy, dtype=torch.float64))
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(inputs["x"], x.grad, rtol=1e-3, atol=1e-5 * x.grad.abs().max())
    parameters = dict(net.named_parameters())
    for m, (n, transposed) in names.items():
        e = parameters[n].grad.numpy()
        e = (e.T if transposed else e).reshape(weights[m].shape)
        np.testing.assert_allclose(weights[m], e, rtol=1e-3, atol=1e-5 * np.abs(e).max())


@pytest.mark.agent
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_agent_refuses_graphs_inside_nodes(name):
    _, model, *_ = exported(name)
    assert any("graphs inside nodes have no gradient" in reason for reason in find_untrusted(model))
    layer = OrtGradientForwardBackward(model)
    assert (layer.engine_, "graphs inside nodes" in layer.engine_reason_) == ("step", True)
    with pytest.raises(ModelError, match="graphs inside nodes have no gradient"):
        OrtGradientForwardBackward(model, engine="agent")


def recurrent(dtype, rows="N"):
    """A recurrent network written as a Scan over the second axis, with a branch inside."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return constant(rng.normal(size=shape).astype(dtype) / 2, hint=name)

    x = variable("x", dtype, [rows, 6, 3])
    w, u, b, v = weight("w", 3, 4), weight("u", 4, 4), weight("b", 4), weight("v", 4, 2)

    def step(h, x):
        h = op.Tanh(x @ w + h @ u + b)
        return (cond(op.ReduceMean(h, keepdims=0) > 0, lambda: h * 2, lambda: op.Softplus(h)),)

    return build([x], {"y": scan(step, 0 * (op.Squeeze(op.Slice(x, [0], [1], [1]), [1]) @ w),
                                 op.Transpose(x, perm=[1, 0, 2])) @ v})


class InTorch(nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name, w in weights.items():
            setattr(self, name, nn.Parameter(torch.tensor(w)))

    def forward(self, x):
        h = 0 * (x[:, 0] @ self.w)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ self.w + h @ self.u + self.b)
            h = h * 2 if h.mean() > 0 else nn.functional.softplus(h)
        return h @ self.v


def test_a_recurrent_network_as_a_scan_trains_as_in_torch():
    model, rng = recurrent("float32"), np.random.default_rng(1)
    net = InTorch({n: w for n, w in weights_of(model).items() if w.dtype.kind == "f" and w.ndim})
    X, y = (rng.normal(size=(ROWS, *s)).astype(np.float32) for s in ((6, 3), (2,)))
    check(net, model, "y", X, y, "step", "adam", "square", X)


def test_float64():
    # Softplus, inside a branch inside a loop, has no kernel in float64.
    model, rng = recurrent("float64"), np.random.default_rng(1)
    X, y = rng.normal(size=(20, 6, 3)), rng.normal(size=(20, 2))
    net = InTorch({n: w for n, w in weights_of(model).items() if w.dtype.kind == "f" and w.ndim})
    predicted = Session(model).run({"x": X})["y"]
    np.testing.assert_allclose(predicted, net(torch.tensor(X)).detach(), rtol=1e-12)
    o = Optimizer(model, learning_rate=0.05, max_iter=20).fit(X, y)
    assert o.train_losses_[-1] < o.train_losses_[0]
    trained = Session(o.get_trained_onnx()).run({"x": X})["y"]
    np.testing.assert_allclose(trained, o.predict(X), rtol=1e-12)
    np.testing.assert_allclose(o.losses(X, y), ((trained - y) ** 2).mean(1), rtol=1e-9)
    # Only the weights differ between the model and the trained one.
    before, after = (onnx.ModelProto.FromString(m.SerializeToString()) for m in (model, o.get_trained_onnx()))
    for m in (before, after):
        del m.graph.initializer[:]
    assert before == after

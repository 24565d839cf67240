"""Models of ortpartial.torch.export train as in torch: weights, running statistics and predictions."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from torch import nn
from torch_networks import BATCH, NETWORKS, RATE, STEPS, make_network

import ortpartial
from ortpartial import OnnxLayer, OrtGradientForwardBackwardOptimizer

#: In seed 0, a number in front of a Relu of the residual network is nearer to 0 than float32 tells.
SEED = 1


class Buffered(nn.Module):
    """Buffers of zeros and ones on the way of the gradient, a scalar weight, and Dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Dropout(0.4), nn.Linear(8, 3))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("factor", torch.ones(3))
        self.register_buffer("again", torch.ones(3))

    def forward(self, x):
        return (self.layers(x) * self.scale + self.shift) * self.factor * self.again


def plain_norms():
    """Norms without statistics of their own, or without weights."""
    norms = [nn.BatchNorm1d(8, track_running_stats=False), nn.BatchNorm1d(8, affine=False, momentum=0.2)]
    return nn.Sequential(nn.Linear(6, 8), norms[0], nn.Tanh(), nn.Linear(8, 8), norms[1], nn.Linear(8, 3))


def network(name, dtype=torch.float64):
    """A network of the table or of this page, and its rows."""
    made = make_network({"frozen": "mlp", "buffers": "mlp", "plain norms": "mlp"}.get(name, name), SEED)
    torch.manual_seed(SEED)
    net = {"buffers": Buffered, "plain norms": plain_norms}.get(name, lambda: made.net)()
    if name == "frozen":
        net[:3].requires_grad_(False)
    X, y = (v.to(dtype) if v.is_floating_point() else v for v in (made.X, made.y))
    return replace(made, net=net.to(dtype), example=X[:5], X=X, y=y)


def fit_torch(net, made):
    """Steps of SGD in torch; masks of Dropout follow from the number of the step."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=RATE)
    for k in range(STEPS):
        rows = torch.arange(k * BATCH, (k + 1) * BATCH) % len(made.X)
        optimizer.zero_grad()
        torch.manual_seed(k)
        nn.functional.mse_loss(net(made.X[rows]), made.y[rows]).backward()
        optimizer.step()
    return net


def fit_here(model, made):
    """The same steps by the engine that the optimizer chooses, with all defaults."""
    optimizer = OrtGradientForwardBackwardOptimizer(model, learning_rate=RATE, batch_size=BATCH, shuffle=False)
    X, y = made.X.numpy(), made.y.numpy()
    for k in range(STEPS):
        rows = np.arange(k * BATCH, (k + 1) * BATCH) % len(X)
        optimizer.partial_fit(X[rows], y[rows])
    return optimizer


def distance(a, b):
    return np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)


def compare(state, predictions, expected, made, tol):
    """Assert that a state and predictions are those of a network of torch."""
    names = {n for n, t in expected.state_dict().items() if t.is_floating_point()}
    assert names - state.keys() <= {"head.weight"}  # the other name of the embedding
    far = {n: distance(state[n], t.numpy()) for n, t in expected.state_dict().items() if n in state}
    far["predictions"] = distance(predictions, made.predict(expected))
    assert max(far.values()) <= tol, {n: f"{d:.1e}" for n, d in far.items() if d > tol}


def check(name, train_mode, dtype=torch.float64, dynamo=None):
    """Train by the engine and by autograd as torch does."""
    made = network(name, dtype)
    net = made.net.train(train_mode)
    # Hardswish of ONNX has 1 / 6 in float32.
    tol = 1e-5 if dtype is torch.float32 else 1e-6 if name == "depthwise" else 1e-9
    before, drawn = copy.deepcopy(net.state_dict()), torch.random.get_rng_state()
    model = ortpartial.torch.export(net, made.example, dynamo=dynamo)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert net.training is train_mode
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    expected = fit_torch(copy.deepcopy(net), made)

    if not (train_mode and name == "buffers"):  # The masks of a step follow from another generator.
        optimizer = fit_here(model, made)
        assert optimizer.weights_to_train == [n for n, p in net.named_parameters() if p.requires_grad]
        has_modes = any(isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats for m in net.modules())
        assert optimizer.train_mode is (train_mode and has_modes)
        state = {t.name: numpy_helper.to_array(t) for t in optimizer.get_trained_onnx().graph.initializer}
        compare(state, optimizer.predict(made.X.numpy()), expected, made, tol)

    layer = OnnxLayer(model)
    assert layer.training is train_mode
    fit_torch(layer, made)
    compare({n: t.numpy() for n, t in layer.state_dict().items()}, made.predict(layer), expected, made, tol)


#: The networks of the table, one with half of its parameters frozen, one with buffers, one with other norms.
EVERY = [*NETWORKS, "frozen", "buffers", "plain norms"]


@pytest.mark.parametrize(("name", "train_mode"), [
    ("mlp", False), ("instance norm", True), ("tied", True), ("frozen", True), ("buffers", True),
    ("plain norms", True)])
def test_sample(name, train_mode):
    check(name, train_mode)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("train_mode", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", EVERY)
def test_all(name, train_mode, dtype):
    check(name, train_mode, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("train_mode", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", EVERY)
def test_all_by_dynamo(name, train_mode):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13.0 warns about its own code.
        check(name, train_mode, dynamo=True)

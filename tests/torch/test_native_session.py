"""A layer in machine code computes the outputs and gradients of its graphs, within rounding."""

import numpy as np
import pytest
import torch
from torch import nn

from ortpartial.exceptions import CompilerError, DataError, UntranslatableError
from ortpartial.graph import build, constant, op, variable
from ortpartial.torch import OnnxLayer

#: Calls after which the sizes of the inputs have a form of their own.
ENOUGH = 5


def weight(name, *shape):
    return constant(np.random.default_rng(len(name)).normal(size=shape).astype(np.float32), hint=name)


def chain():
    x = variable("x", "float32", ["N", 6])
    return build([x], {"y": op.Relu(x @ weight("w", 6, 5)) @ weight("v", 5, 2) + weight("bias", 2)})


def single():
    """A single number a row, and the bias of it."""
    x = variable("x", "float32", ["N", 6])
    return build([x], {"y": op.Gemm(op.Tanh(x), weight("w", 6, 1), weight("bias", 1))})


def convolution():
    x = variable("x", "float32", ["N", 6])
    h = op.Conv(op.Reshape(x, [-1, 1, 2, 3]), weight("w", 3, 1, 2, 2), pads=[1] * 4)
    return build([x], {"y": op.GlobalAveragePool(h), "sign": x > 0})


def two_outputs():
    x = variable("x", "float32", ["N", 6])
    p = op.Softmax(x @ weight("w", 6, 3))
    return build([x], {"y": p, "z": op.LayerNormalization(p, weight("scale", 3), weight("bias", 3)), "kept": x})


NETS = [chain, single, convolution, two_outputs]


def rows(n=4, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=(n, 6)), dtype=torch.float32)


def use(layer, x, cotangents=None, parts=(0, 1)):
    """The outputs, and the gradients of some of them by parameters and input."""
    x = x.detach().requires_grad_()
    outputs = layer(x)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    real = [y for i, y in enumerate(outputs) if i in parts and y.requires_grad]
    leaves = [x, *layer.parameters()]
    grads = torch.autograd.grad(real, leaves, [cotangents or torch.ones_like(y) for y in real], allow_unused=True)
    return [y.detach() for y in outputs], grads


def pair(net, engine="native"):
    """The layer by graphs and in machine code, both with a form for four rows."""
    layers = [OnnxLayer(net(), engine="step"), OnnxLayer(net(), engine=engine)]
    for layer in layers:
        for _ in range(ENOUGH):
            use(layer, rows())
    return layers


def assert_close(a, b):
    for x, y in zip([*a[0], *a[1]], [*b[0], *b[1]], strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("net", NETS)
def test_outputs_and_gradients_are_those_of_the_graphs(net):
    graphs, code = pair(net)
    assert code.engine_ == "native"
    assert "native" not in graphs.engine_
    x = rows(seed=1)
    assert_close(use(code, x), use(graphs, x))
    strided = rows(8, seed=2)[::2]
    assert_close(use(code, strided), use(graphs, strided))
    assert_close(use(code, rows(3)), use(graphs, rows(3)))  # of other sizes, by graphs
    if net is two_outputs:  # no cotangent of the first
        assert_close(use(code, x, parts=(1,)), use(graphs, x, parts=(1,)))


def test_cotangents_that_are_not_finite_and_second_derivatives():
    graphs, code = pair(chain)
    for number in (np.inf, np.nan):
        gradients = []
        for layer in (graphs, code):
            x = rows(seed=3).requires_grad_()
            dy = torch.ones(4, 2)
            dy[1, 0] = number
            gradients.append(torch.autograd.grad(layer(x), [x, *layer.parameters()], dy))
        assert_close(([], gradients[1]), ([], gradients[0]))
    second = []
    for layer in pair(single):
        x = rows(seed=4).requires_grad_()
        (dx,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        second.append(torch.autograd.grad((dx**2).sum(), [x, layer.w]))
    assert_close(([], second[1]), ([], second[0]))


def test_a_layer_in_machine_code_trains_as_torch():
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    layer, x, t = OnnxLayer.from_torch(module, (rows(),), engine="native"), rows(), torch.ones(4, 1)
    for m in (module, layer):
        optimizer = torch.optim.Adam(m.parameters(), 1e-2)
        for _ in range(20):
            optimizer.zero_grad()
            ((m(x) - t) ** 2).mean().backward()
            optimizer.step()
    assert layer.engine_ == "native"
    for name, p in module.named_parameters():
        torch.testing.assert_close(layer.state_dict()[name], p, rtol=1e-4, atol=1e-5)


def test_many_calls_go_on_in_machine_code(monkeypatch):
    monkeypatch.setattr("ortpartial.torch.autograd.OFTEN", 3)
    monkeypatch.setattr("ortpartial.torch.autograd.repays_compilation", lambda values, steps, *_, **__: steps >= 6)
    graphs, code = pair(chain, "auto")
    assert code.engine_ != "native"
    for seed in range(8):
        assert_close(use(code, rows(seed=seed)), use(graphs, rows(seed=seed)))
    assert code.engine_ == "native"
    assert code.engine_reason_ == "6 calls came, and the next take less time in machine code"


@pytest.mark.parametrize("error", [CompilerError, UntranslatableError])
def test_calls_that_cannot_be_compiled_stay_graphs(error, monkeypatch):
    def fail(*_):
        raise error("no")

    monkeypatch.setattr("ortpartial.torch.autograd.OFTEN", 3)
    monkeypatch.setattr("ortpartial.torch.autograd.repays_compilation", lambda *_, **__: True)
    monkeypatch.setattr("ortpartial.torch.native_session.NativeFunction", fail)
    graphs, code = pair(chain, "auto")
    assert_close(use(code, rows()), use(graphs, rows()))
    assert code.engine_ != "native"
    with pytest.raises(error, match="no"):
        pair(chain)


def test_wrong_tensors_are_refused():
    _, code = pair(chain)
    code.w = nn.Parameter(torch.zeros(6, 4))
    with pytest.raises(DataError, match=r"'w' is torch.float32 of shape \[6, 4\], the graph takes .* \[6, 5\]"):
        use(code, rows())

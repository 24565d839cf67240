"""Writes between forward and backward: each engine raises torch's error, or gives the right gradient."""

import weakref
from functools import cache
from itertools import product

import pytest
import torch
from once import ON_BOTH
from torch import nn

from ortpartial.torch import OnnxLayer


class Net(nn.Module):
    """A linear layer, and a function of it."""

    def __init__(self, function):
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.linear(x))


#: Outputs that backward reads, ones that it does not read, and ones that share memory with what it reads.
MODULES = {
    "softmax": lambda: Net(lambda y: y.softmax(-1)),
    "log_softmax": lambda: Net(lambda y: y.log_softmax(-1)),
    "tanh": lambda: Net(torch.tanh),
    "sigmoid": lambda: Net(torch.sigmoid),
    "exp": lambda: Net(torch.exp),
    "relu": lambda: Net(torch.relu),
    "sqrt": lambda: Net(lambda y: (y.abs() + 1).sqrt()),
    "linear": lambda: Net(lambda y: y),
    "view": lambda: Net(lambda y: y.reshape(-1, 2, 2)),
    "view of tanh": lambda: Net(lambda y: y.tanh().reshape(-1, 2, 2)),
    "tanh times one": lambda: Net(lambda y: y.tanh() * 1),
    "two": lambda: Net(lambda y: (y.tanh(), y.tanh() * 2)),
    "two that are equal": lambda: Net(lambda y: (y.tanh(), y.tanh() * 1, y.tanh().clone())),
    "transposed": lambda: Net(lambda y: y.softmax(-1).t()),
    "slice": lambda: Net(lambda y: y.exp()[:, :2]),
    "loss": lambda: Net(lambda y: y.exp().mean()),
    "layer_norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
    "batch_norm": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()),
    "input": lambda: Net(lambda y: y * 2),
}


def head(y):
    return y[0] if isinstance(y, tuple) else y


def write_view(module, x, y):
    head(y).unsqueeze(0).mul_(2)


def write_part(module, x, y):
    y = head(y)
    (y[0] if y.dim() else y).add_(1)


@torch.no_grad()
def write_without_recording(module, x, y):
    head(y).mul_(2)


@torch.no_grad()
def write_input(module, x, y):
    x.mul_(2)


@torch.no_grad()
def write_parameters(module, x, y):
    for p in module.parameters():
        p.mul_(2)


def take_a_step(module, x, y):
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    module.zero_grad()


def write_statistics(module, x, y):
    for b in module.buffers():
        b.mul_(2)


#: What is written to, and how.
WRITES = {
    "nothing": lambda module, x, y: None,
    "output": lambda module, x, y: head(y).mul_(2),
    "output, without recording": write_without_recording,
    "output, detached": lambda module, x, y: head(y).detach().mul_(2),
    "output, by a view": write_view,
    "output, a part of it": write_part,
    "input": write_input,
    "parameters": write_parameters,
    "parameters, by an optimizer": take_a_step,
    "running statistics": write_statistics,
}
#: Ways to go back.
PASSES = ["once", "after another pass", "create_graph", "after another call"]
ENGINES = ["step", pytest.param("compiled", marks=pytest.mark.slow),
           pytest.param("agent", marks=pytest.mark.agent), "auto"]


@cache
def make(name, engine):
    """A module, or a layer of it, with its first state."""
    torch.manual_seed(0)
    module = MODULES[name]()
    if engine != "torch":
        asked = "auto" if engine == "compiled" else engine
        module = OnnxLayer.from_torch(module, torch.randn(3, 4), engine=asked)
    return module, {k: t.clone() for k, t in module.state_dict().items()}


@cache
def compile_layer(name):
    torch._dynamo.reset()
    return torch.compile(make(name, "compiled")[0], backend="aot_eager")


def go_back(name, engine, write, how):
    """The gradients by x and all parameters, or torch's error."""
    module, state = make(name, engine)
    module.load_state_dict(state)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    call = compile_layer(name) if engine == "compiled" else module
    leaves, y = [x, *module.parameters()], call(x)
    if how == "after another call":
        call(x.detach() * 3)
    try:
        if how == "after another pass":
            head(y).sum().backward(retain_graph=True)
        WRITES[write](module, x, y)
        ys = y if isinstance(y, tuple) else (y,)
        total = sum((torch.linspace(1, 2, y.numel()).view(y.shape) * y).sum() for y in ys)
        gradients = torch.autograd.grad(total, leaves, create_graph=how == "create_graph")
        return [g.detach().clone() for g in gradients]
    except RuntimeError as e:
        return str(e)


@cache
def expect(name, write, how):
    """The error of torch, or its gradients: those of what was computed, wherever torch raises none."""
    return go_back(name, "torch", write, how)


def is_close(ours, theirs):
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(ours, theirs, strict=True))


def right_gradients(name, write, how):
    """The gradients of what forward computed, as a function of the outputs after they were written to."""
    expected = expect(name, write, how)
    if not isinstance(expected, str):
        return expected
    module, state = make(name, "torch")
    module.load_state_dict(state)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = module(x)
    ys = [t.clone() for t in y] if isinstance(y, tuple) else [y.clone()]
    if write.startswith("output"):
        WRITES[write](module, x, tuple(ys))
    total = sum((torch.linspace(1, 2, y.numel()).view(y.shape) * y).sum() for y in ys)
    return list(torch.autograd.grad(total, [x, *module.parameters()]))


def compare(name, engine, write, how):
    """What an engine does: "equal", "raises", or "raises alone" where torch gives gradients; else it is wrong."""
    ours, theirs = go_back(name, engine, write, how), expect(name, write, how)
    if isinstance(ours, str):
        assert "modified by an inplace operation" in ours or ours == theirs, ours
        return "raises" if isinstance(theirs, str) else "raises alone"
    assert is_close(ours, right_gradients(name, write, how))
    return "equal"


#: Modules that `make test` tries; `make proof` tries all.
SAMPLE = {"softmax", "linear", "two that are equal", "loss"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in SAMPLE else pytest.mark.slow) for n in MODULES])
@ON_BOTH
def test_written_between(name, engine):
    """As torch; an error where torch has none is rare, as it is where two outputs are kept in the same memory."""
    passes = PASSES
    if engine == "agent":  # It has no second derivative.
        passes = [p for p in PASSES if p != "create_graph"]
    elif engine == "compiled":  # torch.compile refuses more than one pass through what it has compiled.
        passes = ["once", "after another call"]
    results = [compare(name, engine, w, p) for w, p in product(WRITES, passes)]
    alone = {"tanh times one": 5, "two that are equal": 0, "loss": 5 * (engine == "compiled")}.get(name, 0)
    assert results.count("raises alone") == alone * len(passes)
    assert results.count("equal") >= len(passes)


@pytest.mark.parametrize("engine", ["step", pytest.param("agent", marks=pytest.mark.agent)])
@pytest.mark.parametrize("goes_back", [True, False])
@ON_BOTH
def test_nothing_is_kept_longer_than_by_torch(engine, goes_back):
    """Inputs and outputs are freed after backward, or with the outputs."""
    layer, _ = make("softmax", engine)
    x = torch.randn(3, 4)
    kept, y = weakref.ref(x), layer(x)
    del x
    assert kept() is not None
    if goes_back:
        y.sum().backward()
    else:
        del y
    assert kept() is None


@pytest.mark.agent
def test_a_parameter_whose_data_are_replaced():
    """The agent borrows the memory of parameters, which is kept until backward has read it."""
    layer, state = make("softmax", "agent")
    layer.load_state_dict(state)
    x = torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])
    y = layer(x).square().sum()
    for p in layer.parameters():
        p.data = torch.full_like(p, 1e9)
    others = [torch.full((4, 4), 1e9) for _ in range(50)]
    assert is_close(torch.autograd.grad(y, [x, *layer.parameters()]), expected)
    assert len(others) == 50

"""Layers beside torch's of the same name and settings: weights by name, outputs, gradients, statistics, and back."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ortpartial import grad, nn, op
from ortpartial.graph import build, variable
from ortpartial.nn.nested import flatten
from ortpartial.nn.trace import Trace
from ortpartial.runtime import Session

#: How the names of layers begin that may differ in training.
MODAL = ("BatchNorm", "InstanceNorm", "Dropout")


@dataclass(frozen=True)
class Layer:
    """A layer with its settings, and the shape of its input; `indices` below a number in place of real numbers."""

    name: str
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    indices: int = 0

    def __repr__(self):
        settings = [*map(repr, self.args), *(f"{k}={v}" for k, v in self.settings.items())]
        return f"{self.name}({', '.join(settings)})"

    def ours(self):
        return getattr(nn, self.name)(*self.args, **self.settings)

    def theirs(self):
        """torch's layer, with random numbers in place of ones and zeros."""
        torch.manual_seed(0)
        module = getattr(torch.nn, self.name)(*self.args, **self.settings)
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.data = torch.rand_like(tensor) + 0.5
        return module

    def inputs(self, n=3):
        """Batches."""
        rng = np.random.default_rng(0)
        if self.indices:
            return [rng.integers(0, self.indices, self.shape) for _ in range(n)]
        return [rng.normal(size=self.shape).astype(np.float32) for _ in range(n)]


def layer(name, shape, *args, indices=0, **settings):
    return Layer(name, args, shape, settings, indices)


class Whole(nn.Module):
    """A model of which a layer is a part."""

    def __init__(self, layer):
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def gradients(module, x, axes, factors, *, training):
    """The gradients of Σ factors · y by the input, as "x", and by the parameters; the layer is a part of a model."""
    whole = Whole(module).train()
    module.train(training)
    inputs = {"x": variable("x", x.dtype, axes)}
    trace = Trace(whole, training=True)
    with trace.writing():
        outputs = [y for y in flatten(whole(inputs["x"]), "y").values() if y.is_float]
    inputs |= {f"factors {i}": variable(f"factors {i}", y.dtype, y.shape) for i, y in enumerate(outputs)}
    total = op.Sum(*(op.ReduceSum(y * inputs[f"factors {i}"], keepdims=0) for i, y in enumerate(outputs)))
    of = {n: trace.before[n] for n, _ in whole.named_parameters()}
    of = {**({"x": inputs["x"]} if inputs["x"].is_float else {}), **of}
    if not of:
        return {}
    results = dict(zip([f"d {n}" for n in of], grad(total, list(of.values())), strict=True))
    session = Session(build({**inputs, **trace.before}, results))
    feeds = {"x": x, **{f"factors {i}": a for i, a in enumerate(factors)}, **trace.first}
    feeds |= {f"layer.{n}": a for n, a in module.state_dict().items()}
    arrays = session.run({n: a for n, a in feeds.items() if n in session.inputs})
    return {n.removeprefix("d ").removeprefix("layer."): d for n, d in arrays.items()}


def torch_gradients(module, x):
    """Random factors, and the same gradients of torch's module, in its mode."""
    value = torch.from_numpy(x)
    value.requires_grad_(value.is_floating_point())
    y = module(value)
    ys = [part for part in (y if isinstance(y, tuple) else (y,)) if part.is_floating_point()]
    rng = np.random.default_rng(1)
    factors = [rng.normal(size=part.shape).astype(part.detach().numpy().dtype) for part in ys]
    total = sum((part * torch.from_numpy(a)).sum() for part, a in zip(ys, factors, strict=True))
    module.zero_grad()
    if total.requires_grad:
        total.backward()
    by_name = {"x": value, **dict(module.named_parameters())}
    return factors, {n: t.grad.numpy() for n, t in by_name.items() if t.grad is not None}


def to_arrays(y):
    """The outputs of a module as arrays, a tensor or a tuple of them."""
    return [np.asarray(part.detach() if isinstance(part, torch.Tensor) else part)
            for part in (y if isinstance(y, tuple) else (y,))]


def assert_close(ours, theirs, what, tolerance=1e-5):
    assert ours.shape == theirs.shape, what
    assert ours.dtype == theirs.dtype, what
    assert np.max(abs(ours - theirs), initial=0) <= tolerance * max(np.max(abs(theirs), initial=0), 1), what


def assert_like_torch(case, axes=None, batches=None):
    """Load torch's state by name, compare outputs, gradients and running statistics, and load the state back.

    A layer that may differ in training is compared in both modes.
    """
    theirs = case.theirs()
    batches = batches or case.inputs()
    axes = axes or ["N", *batches[0].shape[1:]]
    ours = case.ours().compile(nn.placeholder(axes, batches[0].dtype))
    ours.load_state_dict(theirs.state_dict())
    for mode in (True, False) if case.name.startswith(MODAL) else (False,):
        ours.train(mode)
        theirs.train(mode)
        factors, expected = torch_gradients(theirs, batches[0])
        for n, d in gradients(ours, batches[0], axes, factors, training=mode).items():
            assert_close(d, expected[n], f"gradient by {n}, training={mode}")
        ours.load_state_dict(theirs.state_dict())
        for x in batches:
            for y, t in zip(to_arrays(ours(x)), to_arrays(theirs(torch.from_numpy(x))), strict=True):
                assert_close(y, t, f"output, training={mode}")
        for n, t in theirs.state_dict().items():
            assert_close(ours.state_dict()[n], t.numpy(), n)
    theirs.load_state_dict({n: torch.from_numpy(a) for n, a in ours.state_dict().items()}, strict=True)

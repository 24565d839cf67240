"""Layers of the room nn beside those of torch: outputs, gradients and steps of optimizers, of the same weights."""

import numpy as np
import torch

from ortpartial import nn
from ortpartial.autodiff import grad

OPTIMIZERS = {"SGD": torch.optim.SGD, "adam": torch.optim.Adam}


class Compared(nn.Module):
    """A layer whose loss is a weighted sum of all its outputs, and whose step returns the gradients as well."""

    def __init__(self, layer, call, factors):
        self.layer, self.call, self.factors = layer, call, factors

    def forward(self, *inputs):
        return list_outputs(self.call(self.layer, *inputs))

    def train_one_batch(self, *inputs):
        outputs = self.forward(*inputs)
        loss = sum((y * c).sum() for y, c in zip(outputs, self.factors, strict=True))
        values = {f"input {i}": x for i, x in enumerate(inputs) if x.is_float}
        values |= {n: p.value for n, p in self.layer.named_parameters()}
        gradients = dict(zip(values, grad(loss, list(values.values())), strict=True))
        self.optimizer(loss)
        return outputs, {"loss": loss, **gradients}


def list_outputs(outputs):
    """The outputs of a layer, whatever their structure."""
    if not isinstance(outputs, (tuple, list)):
        return [] if outputs is None else [outputs]
    return [y for part in outputs for y in list_outputs(part)]


def compare(ours, theirs, inputs, placeholders=None, call=lambda layer, *xs: layer(*xs), rate="SGD", tolerance=1e-5):
    """Evaluation, then three steps: outputs, gradients by all weights and real inputs, and the weights after them.

    A tolerance is relative to the largest number of each tensor. `placeholders` are the shapes of the inputs.
    """
    tensors = [torch.from_numpy(x).requires_grad_(x.dtype.kind == "f") for x in inputs]
    expected = list_outputs(call(theirs.eval(), *tensors))
    factors = [np.random.default_rng(i).normal(size=y.shape).astype(np.float32) for i, y in enumerate(expected)]
    model = Compared(ours, call, factors)
    model.set_optimizer(nn.Optimizer(rate))
    shapes = placeholders or [[*(f"size_{i}_{a}" for a in range(x.ndim - 1)), x.shape[-1]]
                              for i, x in enumerate(inputs)]
    model.compile([nn.placeholder(s, x.dtype) for s, x in zip(shapes, inputs, strict=True)], random_state=0)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for y, e in zip(model.eval()(*inputs), expected, strict=True):
        check_near(y, e, tolerance, "output")
    model.train()
    theirs.train()
    optimizer = OPTIMIZERS[rate](theirs.parameters(), lr=model.optimizer.rate.eta0)
    for _ in range(3):
        outputs, found = model.train_one_batch(*inputs)
        for x in [*tensors, *theirs.parameters()]:
            x.grad = None
        ys = list_outputs(call(theirs, *tensors))
        sum((y * torch.from_numpy(c)).sum() for y, c in zip(ys, factors, strict=True)).backward()
        for y, e in zip(outputs, ys, strict=True):
            check_near(y, e, tolerance, "output")
        wanted = {f"input {i}": x.grad for i, x in enumerate(tensors) if x.requires_grad}
        wanted |= {n: p.grad for n, p in theirs.named_parameters()}
        for name, g in wanted.items():
            check_near(found[name], g, tolerance, f"gradient by {name}", least=1e-2)
        optimizer.step()
    for name, w in theirs.state_dict().items():
        check_near(ours.state_dict()[name], w, tolerance, name)


def check_near(ours, theirs, tolerance, name, least=1e-6):
    """Compare an array with a tensor, relative to its largest number."""
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, name
    assert abs(ours - theirs).max() <= tolerance * max(abs(theirs).max(), least), name

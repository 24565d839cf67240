"""Graph functions between tensors: gradients of any order, and outputs that have none."""

import numpy as np
import pytest
import torch

from ortpartial.graph import build, op, variable
from ortpartial.torch import OnnxLayer

X = variable("x", "float64", ["N", 3])


@pytest.fixture
def layer():
    return OnnxLayer(build([X], {"y": op.Tanh(X * X), "positive": X > 0}))


def test_gradients_of_any_order(layer):
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], x)
    assert torch.autograd.gradgradcheck(lambda x: layer(x)[0], x)


def test_what_has_no_gradient(layer):
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    y, positive = layer(x)
    assert y.requires_grad
    assert not positive.requires_grad
    assert positive.dtype is torch.bool
    with torch.no_grad():
        assert not layer(x)[0].requires_grad


def test_a_loss_is_differentiated_with_it(layer):
    loss = OnnxLayer(build([X], {"loss": op.ReduceSum(op.Tanh(X * X), keepdims=0)}))
    x, same = (torch.full((2, 3), 0.5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    (3 * loss(x)).backward()
    (3 * layer(same)[0].sum()).backward()
    np.testing.assert_allclose(x.grad, same.grad, rtol=1e-12)

"""Graph functions between tensors: memory that is shared, gradients of any order, and tensors of every kind."""

import numpy as np
import pytest
import torch

from ortpartial.graph import build, op, variable
from ortpartial.torch import OnnxLayer
from ortpartial.torch.autograd import _ortvalue, _tensor

X = variable("x", "float64", ["N", 3])


@pytest.fixture
def layer():
    return OnnxLayer(build([X], {"y": op.Tanh(X * X), "positive": X > 0}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.float16])
def test_memory_is_shared(dtype):
    t = torch.arange(6).reshape(2, 3).to(dtype)
    shared = _tensor(_ortvalue(t), dtype is torch.bool)
    assert shared.data_ptr() == t.data_ptr()
    assert torch.equal(shared, t)


def test_strided_and_empty_tensors():
    t = torch.arange(6.0).reshape(2, 3).T
    assert torch.equal(_tensor(_ortvalue(t)), t)
    assert _tensor(_ortvalue(torch.zeros(0, 3))).shape == (0, 3)


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

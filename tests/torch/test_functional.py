"""Models under torch.func, beside the same functions of torch."""

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from ortpartial.exceptions import DataError
from ortpartial.graph import build, op, variable
from ortpartial.torch import as_torch_function

# torch 2.13.0 warns of its own use of torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

RNG = np.random.default_rng(0)
W, V = RNG.normal(size=(4, 6)), RNG.normal(size=(6, 3))
X, T, B = (torch.tensor(RNG.normal(size=s)) for s in (4, 4, (5, 4)))


def network():
    x = variable("x", "float64", [4])
    return as_torch_function(build([x], {"y": op.Tanh(x @ W) @ V}))


def torch_network(x):
    return torch.tanh(x @ torch.tensor(W)) @ torch.tensor(V)


TRANSFORMS = {
    "value": lambda f: f(X),
    "vmap": lambda f: vmap(f)(B),
    "vmap along the last axis": lambda f: vmap(f, in_dims=1)(B.T),
    "grad": lambda f: grad(lambda x: f(x).square().sum())(X),
    "jvp": lambda f: jvp(f, (X,), (T,))[1],
    "jacrev": lambda f: jacrev(f)(X),
    "jacfwd": lambda f: jacfwd(f)(X),
    "hessian": lambda f: hessian(f)(X),
    "reverse over reverse": lambda f: jacrev(jacrev(f))(X),
    "forward over forward": lambda f: jacfwd(jacfwd(f))(X),
    "third order": lambda f: jacrev(hessian(f))(X),
    "Jacobians of a batch": lambda f: vmap(jacrev(f))(B),
    "Hessians of a batch": lambda f: vmap(hessian(f))(B),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name):
    torch.testing.assert_close(TRANSFORMS[name](network()), TRANSFORMS[name](torch_network))


def test_backward():
    x = X.clone().requires_grad_()
    network()(x).sum().backward()
    expected = torch.autograd.grad(torch_network(y := X.clone().requires_grad_()).sum(), y)[0]
    torch.testing.assert_close(x.grad, expected)
    assert torch.autograd.gradgradcheck(network(), x)


def test_several_inputs_and_outputs():
    """Whole numbers have no derivative, and are returned as they are."""
    a, i = variable("a", "float64", ["N", 3]), variable("i", "int64", [2])
    rows = op.Gather(op.Sin(a), i)
    f = as_torch_function(build([a, i], {"rows": rows, "largest": op.ArgMax(rows, axis=1, keepdims=0)}))
    x, at = torch.tensor(RNG.normal(size=(5, 3)), requires_grad=True), torch.tensor([3, 1])
    y, largest = f(x, at)
    assert torch.equal(largest, y.argmax(1))
    y.sum().backward()
    expected = torch.zeros(5, 3, dtype=torch.float64)
    expected[at] = torch.cos(x.detach())[at]
    torch.testing.assert_close(x.grad, expected)


def test_mistakes():
    f = network()
    with pytest.raises(DataError, match="has 1 inputs, 'x', and was called with 2 tensors"):
        f(X, X)
    with pytest.raises(DataError, match="Input 'x' is float32; the model takes float64"):
        f(X.float())
    with pytest.raises(DataError, match="Input 'x' is a list; a tensor was expected"):
        f([1.0])
    with pytest.raises(DataError, match="Input 'x' is on meta; the function runs on the CPU"):
        f(X.to("meta"))

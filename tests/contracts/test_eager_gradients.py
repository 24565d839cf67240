"""Gradients computed node by node are those of the built graph."""

import numpy as np
import pytest

from ortpartial.autodiff import grad
from ortpartial.graph import build, cond, evaluating, loop, op, scan, variable, with_numbers
from ortpartial.runtime import Session


def mlp(x, w, b, v):
    return op.Softmax(op.Relu(x @ w + b) @ v)[:, 0].mean()


def convolution(x, k, scale, bias):
    y = op.Conv(x, k, pads=[1, 1, 1, 1])
    z = (y - y.mean((0, 2, 3), keepdims=True)) / op.Sqrt(y.var((0, 2, 3), keepdims=True) + 1e-5)
    y = op.MaxPool(op.Tanh(z * scale + bias), kernel_shape=[2, 2], strides=[2, 2])
    return (y * y).mean()


def lstm(x, w, r, b):
    y, h, c = op.LSTM(x, w, r, b, hidden_size=3)
    return (h * h).sum() + op.Tanh(c).sum() + y.mean()


def attention(x, q, k, v):
    weights = op.Softmax((x @ q) @ op.Transpose(x @ k, perm=[0, 2, 1]) / np.sqrt(3))
    ones = np.ones(3, x.dtype)
    return op.LayerNormalization(weights @ (x @ v), ones, 0 * ones).max(axis=1).sum()


def loops(x, w, u):
    y = loop(lambda i, going, v: (None, op.Tanh(v @ op.Exp(w))), 3, x)
    s, ys = scan(lambda s, z: (op.Tanh(s @ w + z * op.Exp(u)), s * z), 0 * u, y)
    return s.sum() + (ys * ys).sum()


def branches(x, w):
    y = x @ w
    return cond(y.sum() < 1e6, lambda: op.Log(op.Abs(y) + 1), lambda: op.Gather(y, x[:, 0].astype("int64") + 9)).sum()


def masks(x, w):
    y = x @ w
    return y[y > 0].sum() + op.TopK(y, [2])[0].sum() + y[:, [0, 2]].std()


MODELS = [
    (mlp, [(4, 5), (5, 6), (6,), (6, 3)]),
    (convolution, [(2, 3, 4, 4), (4, 3, 3, 3), (4, 1, 1), (4, 1, 1)]),
    (lstm, [(3, 2, 4), (1, 12, 4), (1, 12, 3), (1, 24)]),
    (attention, [(2, 5, 4), (4, 3), (4, 3), (4, 3)]),
    (loops, [(3, 3), (3, 3), (3,)]),
    (branches, [(2, 3), (3, 3)]),
    (masks, [(4, 3), (3, 3)]),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize(("model", "shapes"), MODELS, ids=lambda v: getattr(v, "__name__", ""))
def test_gradients_node_by_node_are_those_of_the_graph(model, shapes, dtype, tolerance):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(dtype) / 2 for s in shapes]
    inputs = [variable(f"x{i}", dtype, s) for i, s in enumerate(shapes)]

    def step(x, *weights):
        loss = model(x, *weights)
        return loss, *grad(loss, weights)

    graph = build(inputs, {f"y{i}": y for i, y in enumerate(step(*inputs))})
    expected = Session(graph).run({f"x{i}": a for i, a in enumerate(arrays)})
    with evaluating():
        computed = step(*map(with_numbers, inputs, arrays))
    for y, array in zip(computed, expected.values(), strict=True):
        assert np.abs(y.numpy() - array).max() <= tolerance * np.abs(array).max()


@pytest.mark.parametrize("draw", [lambda v: v * op.RandomUniformLike(v), lambda v: op.Dropout(v, 0.3, True)],
                         ids=["random", "dropout"])
def test_the_gradient_of_a_random_loop_is_that_of_what_it_drew(draw):
    with evaluating(seed=0):
        w = with_numbers(variable("w", "float32", [20]), np.full(20, 3))
        y = loop(lambda i, going, v: (None, draw(v)), 2, w)
        (dw,) = grad(y.sum(), [w])
    assert y.numpy().std() > 0
    np.testing.assert_allclose(dw.numpy() * 3, y.numpy(), rtol=1e-5)

"""Shut elements of a mask pass nothing, at every door: trainings by all engines, layers, models of gradients."""

import numpy as np
import pytest
import torch
from masked import BEHIND, MASKS
from onnx import load_from_string

from ortpartial import OrtGradientForwardBackward, gradient_model
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.autodiff import masks
from ortpartial.exceptions import ModelError
from ortpartial.graph import build, constant, op, variable
from ortpartial.native import find_compiler
from ortpartial.runtime.session import Session
from ortpartial.torch import OnnxLayer

NATIVE = pytest.param("native", marks=pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"))
AGENT = pytest.mark.agent

#: Of the masks, those without a product of their own, and that do what they do by row.
TRAINED = [m for m in MASKS if m not in ("Abs", "LeakyRelu of slope 0", "PRelu of slope 0", "ReduceL1", "ReduceMax",
                                         "ReduceMin", "MaxPool", "MaxPool by masks", "Gather", "Pad", "TopK")]
FEW = ("Relu", "Clip on both sides", "Max", "Where", "HardSwish")
#: Behind a mask, and finite where it is shut; those of others are masked once more.
FINITE = ("sqrt", "pow 0.5", "asin", "acos", "acosh", "norm")
X = np.zeros((3, 3), np.float32)


def hide(name, v, y):
    """Behind a mask once more, as a formula is written that has a pole."""
    return y if name in FINITE else op.Where(op.ReduceMin(v, [1]) > 0, y, 0.0)


def hide_by_torch(name, v, y):
    return y if name in FINITE else torch.where(v.amin(1, keepdim=True) > 0, y, 0)


def masked_model(trained):
    """A weight for each mask, and all functions behind it."""
    x, parts = variable("x", "float32", [3, 3]), []
    for mask in trained:
        f, _, a = MASKS[mask]
        v = f(x + constant(a.astype(np.float32), hint=mask))
        parts += [hide(name, v, g(v)) for name, (g, _) in BEHIND.items()]
    return build([x], {"y": op.Concat(*parts, axis=1)})


def step_of_torch(trained, lr):
    """The weights after a step of SGD on the mean square; those whose gradient is NaN in torch are left alone."""
    weights = {m: torch.tensor(MASKS[m][2], requires_grad=True) for m in trained}
    parts = []
    for mask, w in weights.items():
        v = MASKS[mask][1](w)
        parts += [hide_by_torch(name, v, g(v)) for name, (_, g) in BEHIND.items()]
    (torch.cat(parts, 1) ** 2).mean().backward()
    return {m: np.where(w.grad.isnan(), w.detach(), w.detach() - lr * w.grad) for m, w in weights.items()}


def train(engine, model, trained):
    o = Optimizer(model, list(trained), learning_rate=100.0, max_iter=1, batch_size=3, shuffle=False, engine=engine)
    y = np.zeros((3, model.graph.output[0].type.tensor_type.shape.dim[1].dim_value), np.float32)
    return o.fit(X, y)


@pytest.mark.parametrize("engine", ["step", "epoch", NATIVE])
def test_a_training(engine):
    trained = FEW if engine == "native" else TRAINED  # A compiler takes its time.
    o = train(engine, masked_model(trained), trained)
    assert np.isfinite(o.train_losses_).all()
    for mask, expected in step_of_torch(trained, 100.0).items():
        np.testing.assert_allclose(o.trained_coef_[mask], expected, rtol=1e-4, atol=1e-5, err_msg=mask)


@AGENT
@pytest.mark.parametrize("mask", ["Relu", "Where", "Where, the other way"])
def test_the_agent_selects(mask):
    f, torch_f, a = MASKS[mask]
    x, w = variable("x", "float32", [3, 3]), constant(a.astype(np.float32), hint="w")
    layer = OrtGradientForwardBackward(build([x], {"y": op.Sqrt(f(x + w))}), ["w"], engine="agent")
    (y,), state = layer.forward(X)
    t = torch.tensor(a, requires_grad=True)
    torch_f(t).sqrt().sum().backward()
    np.testing.assert_allclose(layer.backward([np.ones_like(y)], state)[0]["w"], t.grad, rtol=1e-5)


@AGENT
@pytest.mark.parametrize("mask", ["Clip from below", "Max", "Min"])
def test_the_agent_is_not_asked_where_it_multiplies(mask):
    x, w = variable("x", "float32", [3, 3]), constant(np.ones((3, 3), np.float32), hint="w")
    v = MASKS[mask][0](x + w)
    with pytest.raises(ModelError, match="its gradient is a product with a mask, which is NaN where that of Sqrt "
                                         "behind it is infinite"):
        OrtGradientForwardBackward(build([x], {"y": op.Sqrt(v) * 2}), ["w"], engine="agent")
    assert OrtGradientForwardBackward(build([x], {"y": op.Sqrt(v)}), ["w"]).engine_ == "step"
    for y in (v, op.Tanh(v) / 2, v**2.0):
        assert OrtGradientForwardBackward(build([x], {"y": y}), ["w"]).engine_ == "agent"


# Cotangents that come from outside.


def masks_alone(sizes):
    """All masks, one output each."""
    inputs = {f"x{i}": variable(f"x{i}", "float32", sizes) for i in range(len(FEW))}
    zero = constant(np.zeros(1, np.float32), hint="zero")
    ys = [MASKS[m][0](x + zero) for m, x in zip(FEW, inputs.values(), strict=True)]
    return build(inputs, {f"y{i}": y for i, y in enumerate(ys)})


def of_torch():
    """What the masks pass of an infinite cotangent, and of NaN, at what they shut, by torch."""
    for mask in FEW:
        _, f, a = MASKS[mask]
        x = torch.tensor(a.astype(np.float32), requires_grad=True)
        y = f(x)
        y.backward(torch.where(y == 0, np.inf, 2.0))
        yield x.grad.nan_to_num(nan=0.0).numpy()


def cotangents(ys):
    return [np.where(y == 0, np.inf, 2).astype(np.float32) for y in ys]


def test_infinite_cotangents_of_forward_and_backward():
    layer = OrtGradientForwardBackward(masks_alone([3, 3]), ["zero"], engine="step")
    xs = [MASKS[m][2].astype(np.float32) for m in FEW]
    for dys in (cotangents, lambda ys: [np.full_like(y, 2) for y in ys], cotangents):
        ys, state = layer.forward(xs)
        seeds = dys(ys)
        _, dxs = layer.backward(seeds, state)
        assert all(np.isfinite(dx).all() for dx in dxs.values())
    for mask, dx, expected in zip(FEW, dxs.values(), of_torch(), strict=True):
        np.testing.assert_allclose(dx, expected, rtol=1e-6, err_msg=mask)


@pytest.mark.parametrize("engine", ["auto", "step"])
def test_infinite_cotangents_of_a_layer(engine):
    layer = OnnxLayer(masks_alone([3, 3]), engine=engine)
    xs = [torch.tensor(MASKS[m][2].astype(np.float32), requires_grad=True) for m in FEW]
    for first in (False, True):
        ys = layer(*xs)
        dys = [torch.where(y == 0, np.inf if first else 2.0, 2.0) for y in ys]
        dxs = torch.autograd.grad(ys, xs, dys, create_graph=not first)
    for mask, dx, expected in zip(FEW, dxs, of_torch(), strict=True):
        np.testing.assert_allclose(dx.numpy(), expected, rtol=1e-6, err_msg=mask)


def test_a_layer_before_a_pole_of_torch():
    x = variable("x", "float32", ["N", 3])
    layer = OnnxLayer(build([x], {"y": op.Relu(x)}))
    a = torch.tensor([[-1.0, 0.25, 4.0]], requires_grad=True)
    layer(a).sqrt().sum().backward()
    assert a.grad.tolist() == [[0.0, 1.0, 0.25]]


def test_a_scaled_loss():
    x = variable("x", "float32", [3])
    layer = OnnxLayer(build([x], {"loss": op.ReduceSum(op.Relu(x), keepdims=0)}))
    a = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    layer(a).sqrt().backward()
    assert a.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", BEHIND)
def test_gradient_model(name):
    x = variable("x", "float32", [3, 3])
    model = gradient_model(build([x], {"y": BEHIND[name][0](op.Relu(x))}), ["x"])
    a = torch.tensor(MASKS["Relu"][2].astype(np.float32), requires_grad=True)
    y = BEHIND[name][1](a.relu())
    y.sum().backward()
    (dx,) = Session(model).run({"x": a.detach().numpy(), "y_grad": np.ones(y.shape, np.float32)}).values()
    np.testing.assert_allclose(dx, a.grad, rtol=1e-4)


# Networks whose cotangents are finite: their masks are multiplied in, as before.


def weight(*shape):
    rng = np.random.default_rng(shape)
    return constant((rng.standard_normal(shape) * 0.3).astype(np.float32), hint="w" + "x".join(map(str, shape)))


def perceptron():
    x = variable("x", "float32", ["N", 4])
    h = op.Relu(x @ weight(4, 8) + weight(8))
    return x, op.LeakyRelu(op.Clip(h @ weight(8, 9), 0.0, 6.0) @ weight(9, 3), alpha=0.1)


def residual_network():
    def norm(h, n):
        return op.BatchNormalization(h, weight(n), weight(n), weight(n), constant(np.full(n, 0.7, np.float32)))

    x = variable("x", "float32", ["N", 2, 8, 8])
    h = op.MaxPool(op.Relu(norm(op.Conv(x, weight(4, 2, 3, 3), pads=[1] * 4), 4)), kernel_shape=[2, 2], strides=[2, 2])
    h = op.Relu(h + norm(op.Conv(op.Relu(h), weight(4, 4, 3, 3), pads=[1] * 4), 4))
    return x, op.Flatten(op.GlobalAveragePool(h)) @ weight(4, 3)


def encoder():
    def norm(h):
        c = h - op.ReduceMean(h, [2])
        return c / op.Sqrt(op.ReduceMean(c * c, [2]) + 1e-5) * weight(8)

    x = variable("x", "float32", ["N", 5, 8])
    q, k, v = (norm(x) @ weight(8, 8 + i) for i in (0, 0, 1))
    hidden = constant(np.triu(np.full((5, 5), -np.inf, np.float32), 1))
    p = op.Softmax(q @ op.Transpose(k, perm=[0, 2, 1]) / np.sqrt(8) + hidden)
    h = x + p @ v @ weight(9, 8)
    h = h + op.Relu(op.LayerNormalization(h, weight(8), weight(8)) @ weight(8, 16)) @ weight(16, 8)
    return x, op.ReduceMean(norm(h), [1], keepdims=0) @ weight(8, 3)


def recurrent_network():
    x = variable("x", "float32", ["N", 5, 4])
    y, *_ = op.LSTM(op.Relu(op.Transpose(x, perm=[1, 0, 2]) @ weight(4, 6)), weight(1, 16, 6), weight(1, 16, 4),
                    hidden_size=4)
    return x, op.Relu(op.Squeeze(op.Gather(y, -1, axis=0), [0])) @ weight(4, 3)


NETWORKS = [perceptron, residual_network, encoder, recurrent_network]


def operators(graph):
    """The operators of a graph and of the graphs inside it, in order."""
    for node in graph.node:
        yield node.op_type
        for a in node.attribute:
            if a.HasField("g"):
                yield from operators(a.g)


@pytest.mark.parametrize("loss", ["square_error", "huber", "softmax_cross_entropy", "log_loss", "hinge"])
@pytest.mark.parametrize("network", NETWORKS)
def test_masks_of_usual_networks_are_multiplied_in(network, loss, monkeypatch):
    x, y = network()
    model = build([x], {"y": y})

    def written():
        graphs = Optimizer(model, learning_loss=loss, engine="step").save_onnx_graph(bytes)
        return [list(operators(load_from_string(graphs[n]).graph)) for n in ("step", "learning_loss")]

    step = written()
    monkeypatch.setattr(masks, "is_finite", lambda v: True)
    assert step == written()

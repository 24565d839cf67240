"""The straight-through estimator: gradients pass through quantization where asked, and nowhere else."""

import pickle

import numpy as np
import pytest
import torch
from models import assert_close
from onnx import parser

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import build, gradient_model, load
from ortpartial.exceptions import NoGradientError
from ortpartial.runtime.session import Session

TEXT = """
<ir_version: 9, opset_import: ["" : 19]>
agraph (float[N, 3] x) => (float[N, 2] y)
<float[3, 2] w = {0.5, -0.25, 0.125, 1, -1, 0.3}, float s = {0.02}, int8 z = {3}, float[2] t = {0.01, 0.005},
 int8[2] u = {0, 0}>
{ a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)
  c = QuantizeLinear<axis = 1> (w, t, u)  d = DequantizeLinear<axis = 1> (c, t, u)
  y = MatMul (b, d) }
"""


def data():
    # Some of them are beyond what int8 can hold: -2.62 to 2.48 for x, and -0.64 to 0.635 in the second column of w.
    return np.random.default_rng(0).normal(scale=1.5, size=(40, 3)).astype(np.float32)


def quantized(v, scale, zero):
    q = torch.fake_quantize_per_tensor_affine if scale.ndim == 0 else torch.fake_quantize_per_channel_affine
    return q(v, scale, zero, -128, 127) if scale.ndim == 0 else q(v, scale, zero, 1, -128, 127)


def test_gradient_is_that_of_torch():
    model, X = parser.parse_model(TEXT), data()
    loaded = load(model, straight_through=True)
    w = torch.tensor([[0.5, -0.25], [0.125, 1], [-1, 0.3]], requires_grad=True)
    x = torch.tensor(X, requires_grad=True)
    b = quantized(x, torch.tensor(0.02), torch.tensor(3, dtype=torch.int32))
    d = quantized(w, torch.tensor([0.01, 0.005]), torch.zeros(2, dtype=torch.int32))
    (b @ d).sum().backward()
    assert (x.grad == 0).any()
    assert (w.grad == 0).any()
    found = Session(gradient_model(loaded, ["x", "w"], cotangents="ones")).run({"x": X, "w": w.detach().numpy()})
    assert_close(found, {"x_grad": x.grad.numpy(), "w_grad": w.grad.numpy()}, 1e-6)


def test_what_is_computed_is_the_same():
    model, X = parser.parse_model(TEXT), data()
    # Not y, since the runtime multiplies integers where it sees these operators before a MatMul.
    models = load(model), load(model, straight_through=True)
    graphs = [build(m.inputs, {n: m.values[n] for n in "bd"}) for m in models]
    expected, found = (Session(graph).run({"x": X}) for graph in graphs)
    for n in "bd":
        np.testing.assert_array_equal(found[n], expected[n])


def test_a_gradient_that_is_lost_is_an_error():
    model = parser.parse_model(TEXT)
    for name, lost in (("x", "a"), ("w", "c")):
        with pytest.raises(NoGradientError, match=rf"\(output '{lost}'\) rounds.*straight_through=True"):
            gradient_model(model, [name])


def test_training():
    # The scales are no weights: nothing is differentiated by them. A weight moves through its quantization.
    model, X = parser.parse_model(TEXT), data()
    target = X @ np.array([[0.3, -0.2], [0.2, 0.4], [-0.6, 0.1]], np.float32)
    optimizer = Optimizer(load(model, straight_through=True), max_iter=200, learning_rate=0.02, random_state=0)
    assert optimizer.weights_to_train == ["w"]
    optimizer.fit(X, target)
    assert optimizer.train_losses_[-1] < 0.25 * optimizer.train_losses_[0]
    again = pickle.loads(pickle.dumps(optimizer)).partial_fit(X, target)
    np.testing.assert_array_equal(again.get_state()[0], optimizer.partial_fit(X, target).get_state()[0])

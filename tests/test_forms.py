"""Does a step give the same numbers in operators that take less time?"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ortpartial.builder import build
from ortpartial.engine import EpochEngine, Setup, StepEngine
from ortpartial.graph import constant, op, variable
from ortpartial.learning_loss import resolve_loss
from ortpartial.learning_penalty import resolve_penalty
from ortpartial.learning_rate import resolve_rate
from ortpartial.model import load
from ortpartial.forms import faster
from ortpartial.runtime import Session


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


CONV = [
    ((4, 3, 4, 4), (5, 3, 3, 3), {"padding": 1}),
    ((4, 3, 7, 5), (5, 3, 3, 2), {"stride": (2, 2), "padding": (1, 0)}),
    ((2, 3, 9, 7), (4, 3, 3, 3), {"dilation": (2, 1), "stride": (3, 2)}),
]  # fmt: skip


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "settings"), CONV)
def test_conv_to_few_places_is_one_product(x, w, settings, bias):
    arrays = {"x": real(*x), "w": real(*w, seed=1), **({"b": real(w[0], seed=2)} if bias else {})}
    values = [variable(n, "float32", a.shape) for n, a in arrays.items()]
    pads = np.broadcast_to(settings.get("padding", 0), 2).tolist() * 2
    y = op.Conv(*values, pads=pads, strides=list(settings.get("stride", (1, 1))),
                dilations=list(settings.get("dilation", (1, 1))))  # fmt: skip
    model = build(values, faster([y]))
    assert "Conv" not in [n.op_type for n in model.graph.node]
    (found,) = Session(model).run(arrays).values()
    expected = F.conv2d(*map(torch.tensor, arrays.values()), **settings)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "w", "group"), [
    ((1, 4, 4, 4), (4, 4, 3, 3), 1), ((2, 4, 4, 4), (4, 2, 3, 3), 2), ((2, 4, 9, 9), (4, 4, 3, 3), 1),
    (("N", 4, 4, 4), (4, 4, 3, 3), 1), ((2, 4, 6), (4, 4, 3), 1),
])  # fmt: skip
def test_other_convolutions_stay(x, w, group):
    y = op.Conv(variable("x", "float32", x), variable("w", "float32", w), group=group)
    assert faster([y]) == [y]


def convolution(seed=3):
    """Two convolutions, a pool and a layer, on images of 8 x 8."""
    x = variable("x", "float32", ["N", 2, 8, 8])
    w = [constant(0.3 * real(*s, seed=seed + i), hint=f"w{i}") for i, s in
         enumerate([(4, 2, 3, 3), (4,), (6, 4, 3, 3), (24, 3)])]  # fmt: skip
    y = op.MaxPool(op.Relu(op.Conv(x, w[0], w[1], pads=[1] * 4)), kernel_shape=[2, 2], strides=[2, 2])
    y = op.Relu(op.Conv(y, w[2]))
    return build([x], {"y": op.Flatten(y) @ w[3]}), [f"w{i}" for i in range(4)]


@pytest.mark.parametrize("rate", ["SGD", "Nesterov", "Adam"])
def test_a_training_is_that_of_torch(rate):
    proto, weights = convolution()
    model, x, t = load(proto, variables=weights), real(12, 2, 8, 8, seed=20), real(12, 3, seed=21)
    setup = Setup(model, tuple(weights), {"y": resolve_loss("square_error")}, resolve_penalty(None), resolve_rate(rate))
    found = []
    for kind in (StepEngine, EpochEngine):
        engine = kind(setup)
        engine.start({"x": x, "y_target": t})
        losses = [engine.epoch(np.arange(12), 6) for _ in range(5)]
        found.append([engine.get(w) for w in weights])
    ws = [torch.tensor(model.arrays[w], requires_grad=True) for w in weights]
    optimizer = {"SGD": lambda: torch.optim.SGD(ws, 0.01), "Adam": lambda: torch.optim.Adam(ws, 1e-3),
                 "Nesterov": lambda: torch.optim.SGD(ws, 0.01, momentum=0.9, nesterov=True)}[rate]()  # fmt: skip
    for i in range(10):
        optimizer.zero_grad()
        rows = slice(6 * (i % 2), 6 * (i % 2) + 6)
        y = F.max_pool2d(F.relu(F.conv2d(torch.tensor(x[rows]), ws[0], ws[1], padding=1)), 2)
        y = F.relu(F.conv2d(y, ws[2])).flatten(1) @ ws[3]
        F.mse_loss(y, torch.tensor(t[rows])).backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    for a, b, w in zip(*found, ws, strict=True):
        assert np.array_equal(a, b)
        assert np.abs(a - w.detach().numpy()).max() <= 2e-5 * np.abs(a).max()

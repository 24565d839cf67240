"""The check of a layer: silent on layers of every kind, and it names a rewrite that computes something else."""

import numpy as np
import pytest
import torch
from models import mlp, net, parameter

from ortpartial import OnnxLayer, build, op, variable
from ortpartial.exceptions import RewriteError
from ortpartial.rewrites import peephole
from ortpartial.runtime import has_training

X = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32))
IMAGES = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 2, 5, 5)).astype(np.float32))


@pytest.mark.parametrize("engine", ["auto", "step", *(["agent"] if has_training() else [])])
def test_silence(engine):
    layer, plain = (OnnxLayer(mlp(outputs=3), engine=engine, check=check) for check in (True, False))
    for rows in (8, 3, 5):
        assert torch.equal(layer(X[:rows]), plain(X[:rows]))
    layer(X).sum().backward()
    assert layer.W1.grad.abs().sum() > 0


@pytest.mark.parametrize("training", [False, True])
def test_silence_of_modes(training):
    layer = OnnxLayer(net(0.3), check=True).train(training)
    layer(IMAGES).sum().backward()
    layer.double()(IMAGES.double()).sum().backward()


def test_indices_and_no_gradient():
    ids = variable("ids", "int64", ["N", 3])
    layer = OnnxLayer(build([ids], {"y": op.Gather(parameter("E", 9, 4), ids), "n": op.ReduceMax(ids)}), check=True)
    with torch.no_grad():
        layer(torch.tensor([[1, 2, 3]]))


def test_a_wrong_rewrite_is_named(monkeypatch):
    (right, *others) = peephole._PATTERNS["ReduceMean"]

    def mean_of_squares(*args):
        y = right(*args)
        return None if y is None else 1.01 * y

    monkeypatch.setitem(peephole._PATTERNS, "ReduceMean", [mean_of_squares, *others])
    x = variable("x", "float32", [8, 4])
    model = build([x], {"loss": op.ReduceMean((x @ parameter("w", 4, 3)) ** 2, keepdims=0)})
    with pytest.raises(RewriteError, match=r"A call of the layer is not that of the model as it is written: the output "
                                           r"'loss' differs by .* Without 'mean_of_squares' they agree"):
        OnnxLayer(model, engine="step", check=True)(X)
    OnnxLayer(model, engine="step")(X)

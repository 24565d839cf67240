"""Fifty steps of an optimizer on weights of rank 1, 2 and 4, here in every engine and in torch."""

import functools

import numpy as np
import pytest
import torch
from models import assert_close

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import build, constant, op, variable

#: The settings by which each engine trains.
ENGINES = {"step": {"engine": "step"}, "epoch": {"engine": "epoch"}, "in place": {"checkpointing": "auto"},
           "agent": {"engine": "agent"}}
IN_EVERY_ENGINE = pytest.mark.parametrize(
    "engine", [pytest.param(e, marks=pytest.mark.agent) if e == "agent" else e for e in ENGINES])

SHAPES = {"conv.weight": (3, 2, 3, 3), "conv.bias": (3,), "fc.weight": (27, 4), "fc.bias": (4,), "norm.scale": (4,)}
ROWS, BATCH, EPOCHS = 40, 4, 5


def first_weights(dtype):
    rng = np.random.default_rng(1)
    return {n: (rng.normal(size=s) * 0.3 + (n == "norm.scale")).astype(dtype) for n, s in SHAPES.items()}


def images(dtype, classes=0):
    """X, and y: four real numbers a row, or the label of one of some classes."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(ROWS, 2, 5, 5)).astype(dtype), rng.normal(size=(ROWS, 4)).astype(dtype)
    return X, (rng.integers(0, classes, ROWS) if classes else y)


def network(dtype="float32"):
    """A convolution, a dense layer and a scale."""
    x, w = variable("x", dtype, ["N", 2, 5, 5]), {n: constant(a, hint=n) for n, a in first_weights(dtype).items()}
    h = op.Flatten(op.Tanh(op.Conv(x, w["conv.weight"], w["conv.bias"])))
    return build([x], {"y": (h @ w["fc.weight"] + w["fc.bias"]) * w["norm.scale"]})


def forward_torch(w, x):
    h = torch.tanh(torch.nn.functional.conv2d(x, w["conv.weight"], w["conv.bias"])).flatten(1)
    return (h @ w["fc.weight"] + w["fc.bias"]) * w["norm.scale"]


def train(engine, dtype="float32", X=None, y=None, **settings):
    """The optimizer after fifty steps."""
    X, y = images(dtype) if X is None else (X, y)
    settings = {"max_iter": EPOCHS, "batch_size": BATCH, "shuffle": False, **ENGINES[engine], **settings}
    return Optimizer(network(dtype), **settings).fit(X, y)


def train_torch(make, dtype="float32", loss=torch.nn.functional.mse_loss, X=None, y=None):
    """The weights after fifty steps of what `make` returns for the parameters by name: an object with `step`."""
    X, y = map(torch.tensor, images(dtype) if X is None else (X, y))
    weights = {n: torch.nn.Parameter(torch.tensor(a)) for n, a in first_weights(dtype).items()}
    optimizer = make(weights)
    for _ in range(EPOCHS):
        for rows in torch.arange(ROWS).split(BATCH):
            for w in weights.values():
                w.grad = None
            loss(forward_torch(weights, X[rows]), y[rows]).backward()
            optimizer.step()
    return {n: w.detach().numpy() for n, w in weights.items()}


@functools.cache
def torch_weights(make, dtype="float32"):
    """`train_torch`, once for all engines."""
    return train_torch(make, dtype)


def check_steps(rate, make, engine, dtype="float32", tol=None, **settings):
    """Fifty steps of a rate end where those of torch do."""
    trained = train(engine, dtype, learning_rate=rate, **settings)
    assert_close(trained.trained_coef_, torch_weights(make, dtype), tol or (1e-5 if dtype == "float32" else 1e-11))
    return trained

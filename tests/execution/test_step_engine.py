"""The step engine: a step is one run, on buffers in turn, with small tensors as one vector."""

import numpy as np
import pytest
from models import data, mlp
from trainings import linear_engine

from ortpartial import OrtGradientForwardBackwardOptimizer

X, Y, _ = data(20)


@pytest.fixture
def engine():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), engine="step", random_state=0, max_iter=1)
    return optimizer.fit(X, Y)._engine


def test_its_graphs(engine):
    assert list(engine.graphs()) == ["step"]
    assert engine.name == "step"


def test_small_tensors_share_memory(engine):
    """Both sides of the double buffer have vectors; tensors are views of them."""
    for side, tensors in zip(engine.buffers, engine.tensors, strict=True):
        for name, vector in engine.source.vectors.items():
            flat = tensors[name].numpy()
            assert all(np.shares_memory(side[n].numpy(), flat) for n in vector.shapes)
    assert len(engine.tensors[0]) <= len(engine.buffers[0])


def test_the_loss_is_that_before_the_step():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), engine="step", batch_size=20, shuffle=False, max_iter=1)
    before = optimizer.losses(X, Y).mean()
    optimizer.fit(X, Y)
    assert optimizer.train_losses_[0] == pytest.approx(before, rel=1e-5)
    assert linear_engine().name == "step"

"""The epoch engine: the same bits as single steps, in one run of many."""

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer

X, Y, _ = data(47)


def train(engine, **settings):
    settings = {"learning_rate": "Adam", "random_state": 0, "max_iter": 3, "batch_size": 8, **settings}
    return OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, **settings).fit(X, Y)


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"accumulate": 2}, {"batch_size": 47}])
def test_the_bits_of_single_steps(settings):
    a, b = train("epoch", **settings), train("step", **settings)
    assert a.train_losses_ == pytest.approx(b.train_losses_, rel=1e-12)
    for u, v in zip(a.get_state(), b.get_state(), strict=True):
        np.testing.assert_array_equal(u, v)


def test_its_graphs():
    optimizer = train("epoch")
    assert list(optimizer._engine.graphs()) == ["epoch", "step"]
    assert "Scan" in {n.op_type for n in optimizer._engine.graphs()["epoch"].graph.node}


def test_steps_are_counted():
    assert train("epoch")._engine.iteration == 18

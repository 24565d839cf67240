"""The agent engine: the steps of the others, and its refusals."""

import numpy as np
import pytest
from models import data, mlp

from ortpartial import ElasticLearningPenalty, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import DeviceError, SettingError

pytestmark = pytest.mark.agent
X, Y, W = data(23)


def train(engine, **settings):
    settings = {"random_state": 0, "max_iter": 2, "batch_size": 5, "learning_rate": "Adam", **settings}
    return OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, **settings).fit(X, Y, W)


@pytest.mark.parametrize("settings", [{}, {"learning_penalty": ElasticLearningPenalty(0.01, 0.02)}, {"accumulate": 2}])
def test_the_steps_of_the_others(settings):
    agent, step = train("agent", **settings), train("step", **settings)
    assert agent.train_losses_ == pytest.approx(step.train_losses_, rel=1e-5)
    for a, b in zip(agent.get_state(), step.get_state(), strict=True):
        assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()


def test_its_graphs():
    graphs = train("agent")._engine.graphs()
    assert {"forward", "learning_loss", "learning_rate"} <= graphs.keys()


def test_what_it_refuses():
    with pytest.raises(SettingError, match="precision='float16' trains with engine='step' or 'epoch'"):
        train("agent", precision="float16")
    with pytest.raises(DeviceError, match="cuda"):
        train("agent", device="cuda")

"""Optimizers that scale a whole weight, or have states of other shapes: fifty steps of torch in every engine."""

import pickle

import numpy as np
import pytest
import torch
from reference_optimizers import LAMB, Lion
from torch_steps import IN_EVERY_ENGINE, SHAPES, check_steps, images, train

from ortpartial.learning import (
    LearningRateAdafactor,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    OneCycleSchedule,
)
from ortpartial.training_info import TrainingSession


def groups(weights, decay):
    """Two groups of parameters: those of two or more axes, which decay, and the others."""
    return [{"params": [w for w in weights.values() if w.ndim > 1], "weight_decay": decay},
            {"params": [w for w in weights.values() if w.ndim < 2], "weight_decay": 0.0}]


def nadam(weights):
    return torch.optim.NAdam(groups(weights, 0.3), lr=0.01, decoupled_weight_decay=True)


def radam(weights):
    return torch.optim.RAdam(groups(weights, 0.3), lr=0.01, decoupled_weight_decay=True)


def lion(weights):
    return Lion(groups(weights, 0.3), lr=0.002)


def lamb(weights):
    return LAMB(groups(weights, 0.3), lr=0.02)


def adafactor(weights):
    return torch.optim.Adafactor(groups(weights, 0.3), lr=0.2)


DECAY = {"weight_decay": 0.3, "no_decay": "vectors"}
RATES = [(LearningRateNAdam(0.01, **DECAY), nadam), (LearningRateRAdam(0.01, **DECAY), radam),
         (LearningRateLion(0.002, **DECAY), lion), (LearningRateLAMB(0.02, **DECAY), lamb),
         (LearningRateAdafactor(0.2, **DECAY), adafactor)]
RATE = pytest.mark.parametrize("rate", [rate for rate, _ in RATES], ids=lambda rate: type(rate).__name__)


@IN_EVERY_ENGINE
@pytest.mark.parametrize(("rate", "make"), RATES, ids=lambda v: getattr(v, "__name__", ""))
def test_fifty_steps(rate, make, engine):
    check_steps(rate, make, engine)


@pytest.mark.parametrize(("rate", "make"), RATES, ids=lambda v: getattr(v, "__name__", ""))
def test_fifty_steps_in_float64(rate, make):
    check_steps(rate, make, "epoch", "float64", 1e-7 if make is nadam else 1e-11)


def test_states_of_adafactor():
    o = train("step", learning_rate=LearningRateAdafactor())
    X, y = images("float32")
    shapes = {"conv.weight": [(3, 2, 3, 1), (3, 2, 1, 3)], "conv.bias": [(3,)], "fc.weight": [(27, 1), (1, 4)],
              "fc.bias": [(4,)], "norm.scale": [(4,)]}
    assert [a.shape for a in o.get_state("optimizer")] == [s for w in SHAPES for s in shapes[w]] + [()]
    again = pickle.loads(pickle.dumps(o))
    again.set_state(o.get_state("optimizer"), "optimizer")
    for a, b in zip(again.partial_fit(X, y).get_state(), o.partial_fit(X, y).get_state(), strict=True):
        np.testing.assert_array_equal(a, b)


@RATE
@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_a_stored_training_takes_the_same_steps(rate, style):
    rate = type(rate)(**{**vars(rate), "schedule": OneCycleSchedule(n=100)})
    o, (X, y) = train("step", learning_rate=rate), images("float32")
    session = TrainingSession(o.get_training_onnx(style))
    for start in (0, 4):
        session.step({"x": X[start : start + 4], "y_target": y[start : start + 4]})
    trained = o.partial_fit(X[:8], y[:8]).trained_coef_
    for n, a in trained.items():
        np.testing.assert_allclose(session.state[n], a, rtol=1e-5, atol=1e-6)

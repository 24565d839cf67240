"""Trainings for the tests of an optimizer and of its parts, and how two of them are compared."""

import pytest
from models import data, linear, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import load
from ortpartial.execution.step_engine import StepEngine
from ortpartial.learning import LearningRateSGD, NoLearningPenalty, SquareLearningLoss
from ortpartial.training import SpecSource, TrainingSpec

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
X, Y, W = data(60)
X_VAL, Y_VAL, _ = data(25, seed=4)


def optimizer(model=None, **settings):
    settings = {"random_state": 0, "max_iter": 5, "learning_rate": 0.05, **settings}
    return Optimizer(mlp() if model is None else model, **settings)


def same(a, b):
    """Two optimizers in the very same state."""
    kinds = ("weight", "optimizer")
    pairs = [p for kind in kinds for p in zip(a.get_state(kind), b.get_state(kind), strict=True)]
    return a.train_losses_ == b.train_losses_ and a.n_iter_ == b.n_iter_ and all((u == v).all() for u, v in pairs)


def linear_engine(**sizes):
    """An engine of a linear regression, without an optimizer around it; with its spec."""
    weights = ("coef", "intercept")
    model = load(linear(**sizes), variables=weights)
    losses = {"y": SquareLearningLoss()}
    return StepEngine(SpecSource(TrainingSpec(model, weights, losses, NoLearningPenalty(), LearningRateSGD(0.05))))

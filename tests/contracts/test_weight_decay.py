"""Decoupled weight decay, from which weights are excluded: param groups of torch, in every engine."""

import numpy as np
import pytest
import torch
from models import linear
from torch_steps import IN_EVERY_ENGINE, SHAPES, check_steps, network

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import load
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.learning import LearningRateAdamW, LearningRateSGD, LearningRateSGDNesterov
from ortpartial.training_info import TrainingSession


def groups(weights, excluded, decay):
    """Two groups of parameters: those that decay and those that do not."""
    return [{"params": [w for n, w in weights.items() if n not in excluded], "weight_decay": decay},
            {"params": [w for n, w in weights.items() if n in excluded], "weight_decay": 0.0}]


VECTORS = [n for n, shape in SHAPES.items() if len(shape) < 2]


def adamw(weights):
    return torch.optim.AdamW(groups(weights, VECTORS, 0.3), lr=0.01)


def adamw_without_some(weights):
    return torch.optim.AdamW(groups(weights, ["conv.weight", "conv.bias", "norm.scale"], 0.3), lr=0.01)


class SGDW:
    """Algorithm 1 of the paper, in the form of torch.optim.AdamW: torch has no SGD with decoupled decay."""

    def __init__(self, weights, momentum=0.0):
        self.weights, self.sgd = weights, torch.optim.SGD(weights.values(), lr=0.05, momentum=momentum)

    def step(self):
        with torch.no_grad():
            for n, w in self.weights.items():
                if n not in VECTORS:
                    w.mul_(1 - 0.05 * 0.3)
        self.sgd.step()


def sgdw(weights):
    return SGDW(weights)


def sgdw_with_momentum(weights):
    return SGDW(weights, 0.9)


RATES = [
    (LearningRateAdamW(0.01, weight_decay=0.3, no_decay="vectors"), adamw),
    (LearningRateAdamW(0.01, weight_decay=0.3, no_decay=["conv.*", "*norm*"]), adamw_without_some),
    (LearningRateSGD(0.05, weight_decay=0.3, no_decay="vectors"), sgdw),
    (LearningRateSGDNesterov(0.05, nesterov=False, weight_decay=0.3, no_decay=["vectors"]), sgdw_with_momentum),
]


@IN_EVERY_ENGINE
@pytest.mark.parametrize(("rate", "make"), RATES, ids=lambda v: getattr(v, "__name__", ""))
def test_fifty_steps_of_torch(rate, make, engine):
    check_steps(rate, make, engine)


@pytest.mark.parametrize(("rate", "make"), RATES, ids=lambda v: getattr(v, "__name__", ""))
def test_fifty_steps_of_torch_in_float64(rate, make):
    check_steps(rate, make, "step", "float64")


def test_aliases_are_names():
    w = load(linear()).arrays["coef"]
    proto = linear()
    for t in proto.graph.initializer:
        t.name = {"coef": "onnx::Gemm_7"}.get(t.name, t.name)
    proto.graph.node[0].input[1] = "onnx::Gemm_7"
    model = load(proto, names_from={"fc.weight": w})
    rate = LearningRateAdamW(weight_decay=0.3, no_decay=["fc.*"])
    rates = Optimizer(model, learning_rate=rate)._spec.rates
    assert {n: r.weight_decay for n, r in rates.items()} == {"onnx::Gemm_7": 0.0, "intercept": 0.3}


def test_a_pattern_that_matches_nothing():
    with pytest.raises(ModelError, match=r"The pattern '\*\.biass' matches no weight; did you mean "):
        Optimizer(network(), learning_rate=LearningRateAdamW(no_decay=["*.biass"]))


@pytest.mark.parametrize("setting", [1, [0.1], None])
def test_what_is_no_pattern(setting):
    with pytest.raises(SettingError, match=r"LearningRateSGD: no_decay (is a name|has 0\.1, where a name)"):
        LearningRateSGD(no_decay=setting)


@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_a_stored_training_excludes_the_same(style, rng):
    rate = LearningRateAdamW(0.05, weight_decay=0.5, no_decay=["intercept"])
    o = Optimizer(linear(), learning_rate=rate, batch_size=8, shuffle=False, max_iter=3)
    X, y = rng.normal(size=(8, 4)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
    session = TrainingSession(o.get_training_onnx(style))
    for _ in range(3):
        session.step({"x": X, "y_target": y})
    for n, a in o.fit(X, y).trained_coef_.items():
        np.testing.assert_allclose(session.state[n], a, rtol=1e-5, atol=1e-7)

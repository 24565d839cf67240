"""Weights that are updated as one vector take the steps that they take one by one, bit for bit."""

import pickle
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from models import data, parameter

from ortpartial import ElasticLearningPenalty, OrtGradientForwardBackwardOptimizer
from ortpartial.execution import shared_sessions
from ortpartial.execution.epoch import epoch_graph
from ortpartial.graph import build, constant, op, variable
from ortpartial.learning import (
    CosineSchedule,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
    OneCycleSchedule,
    PolynomialSchedule,
    ReduceOnPlateauSchedule,
    StepSchedule,
    WarmUpSchedule,
)
from ortpartial.model import load
from ortpartial.rewrites import LossScale
from ortpartial.training import SpecSource, TrainingSpec, flat_weights, source
from ortpartial.training.flat_weights import find_flat_groups


def dense(*widths):
    """A chain of layers, and a scalar that is trained if it is named."""
    h = x = variable("x", "float32", ["N", widths[0]])
    for i, shape in enumerate(pairwise(widths)):
        h = (op.Dropout(op.Relu(h), 0.1, False) if i else h) @ parameter(f"W{i}", *shape) + parameter(f"b{i}", shape[1])
    return build([x], {"y": h * constant(np.float32(1.5), hint="scale")})


def specify(widths, rate, **settings):
    proto = dense(*widths)
    weights = tuple(t.name for t in proto.graph.initializer if t.name[0] in "Wb")
    model = load(proto, variables=weights, batch=3)
    loss = OrtGradientForwardBackwardOptimizer(proto)._engine.source.spec.losses
    return TrainingSpec(model, weights, loss, rate=rate, **settings)


def train(engine, weights=None, **settings):
    """Weights and states after some steps, of which the last of an epoch is smaller."""
    X, y, _ = data()
    settings = {"random_state": 0, "max_iter": 12, "batch_size": 7, **settings}
    o = OrtGradientForwardBackwardOptimizer(dense(4, 9, 8, 3, 1), weights, engine=engine, **settings).fit(X, y)
    assert o.engine_ == engine
    spec = o._engine.source.spec
    return {n: o._engine.get(n) for n in [*spec.weights, *spec.states]}, o.train_losses_


def assert_same(weights=None, **settings):
    expected, losses = train_apart(weights, **settings)
    for engine in ("step", "epoch"):
        tensors, same = train(engine, weights, **settings)
        for n in expected:
            np.testing.assert_array_equal(tensors[n], expected[n], n)
        np.testing.assert_allclose(same, losses, rtol=1e-6)


def train_apart(*args, **settings):
    """The same steps of weights that are updated one by one."""
    shared_sessions.clear()  # Its sessions are for vectors.
    with patch.object(source, "find_flat_groups", lambda spec: []):
        trained = train("step", *args, **settings)
    shared_sessions.clear()
    return trained


@dataclass(frozen=True)
class Normalized(LearningRateAdam):
    """An update of whole tensors, whose class does not say that it is elementwise."""

    def update(self, w, g, *state, k):
        return super().update(w, g / op.ReduceMax(op.Abs(g), keepdims=0), *state, k=k)


@pytest.mark.parametrize("rate", [
    LearningRateSGD(weight_decay=0.1), LearningRateSGDNesterov(), LearningRateLion(), LearningRateAdagrad(),
    LearningRateRMSProp(momentum=0.5, centered=True), LearningRateAdam(), LearningRateAdam(epsilon_hat=True),
    LearningRateAdamW(no_decay="vectors"), LearningRateNAdam(), LearningRateRAdam(), LearningRateLAMB(), Normalized(),
    "Adafactor",
], ids=lambda rate: rate if isinstance(rate, str) else type(rate).__name__)
@pytest.mark.sampled(2)
def test_an_epoch_with_any_optimizer_is_its_steps(rate):
    assert_same(learning_rate=rate)


@pytest.mark.parametrize("schedule", [
    "invscaling", "optimal", PolynomialSchedule(power=2), PolynomialSchedule(power=0.5), CosineSchedule(), "onecycle",
    OneCycleSchedule(50), StepSchedule(5), WarmUpSchedule(CosineSchedule(), 9, from_zero=True), "cosine_restarts",
    ReduceOnPlateauSchedule(StepSchedule(20), patience=1, threshold=0.5),
], ids=lambda s: s if isinstance(s, str) else type(s).__name__)
@pytest.mark.sampled(2)
def test_an_epoch_with_any_schedule_is_its_steps(schedule):
    assert_same(learning_rate=LearningRateAdam(schedule=schedule))


@pytest.mark.parametrize("settings", [
    {"averaging": "ema"}, {"averaging": "swa", "learning_rate": LearningRateAdam(schedule="cosine")},
    {"gradient_clipping": 0.1}, {"accumulate": 3}, {"train_mode": True}, {"freeze": "W1"},
    {"rate_factors": {"*2": 0.5}}, {"learning_penalty": ElasticLearningPenalty(0.1, 0.2)},
    {"precision": "float16", "loss_scale": LossScale()}, {"weights": ["scale", "b0", "W0"]},
], ids=lambda settings: next(iter(settings)))
@pytest.mark.sampled(2)
def test_an_epoch_with_any_setting_is_its_steps(settings):
    assert_same(**{"learning_rate": "Adam", **settings})


@pytest.mark.parametrize("engine", ["step", "epoch"])
def test_vectors_are_the_weights_and_states_that_are_read_and_written(engine):
    X, y, _ = data()
    settings = {"engine": engine, "batch_size": 10, "max_iter": 2, "learning_rate": "Adam", "warm_start": True}
    one, other = (OrtGradientForwardBackwardOptimizer(dense(4, 8, 1), random_state=seed, **settings) for seed in (0, 1))
    one.fit(X, y)
    other.fit(X, y)
    for kind in ("weight", "optimizer"):
        other.set_state(one.get_state(kind), kind)
    other = pickle.loads(pickle.dumps(other))
    for o in (one, other):
        o._engine.iteration = 5
        o.set_params(random_state=2, shuffle=False).fit(X, y)
    for a, b in zip(one.get_state() + one.get_state("optimizer"), other.get_state() + other.get_state("optimizer"),
                    strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_optimizer_that_takes_over_has_vectors_of_its_own():
    X, y, _ = data()
    states = []
    for engine in ("step", "epoch"):
        o = OrtGradientForwardBackwardOptimizer(dense(4, 8, 1), engine=engine, max_iter=2, random_state=0)
        o.fit(X, y)
        o.set_params(learning_rate="Adam", warm_start=True).fit(X, y)
        states.append([*o.get_state(), *o.get_state("optimizer")])
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usual_limits
def test_weights_are_joined_that_have_the_same_settings_and_few_elements():
    groups = find_flat_groups(specify((4, 8, 12, 1), LearningRateAdamW()))
    assert [[*group.vector.shapes] for group in groups] == [["W0", "b0", "W1", "b1", "W2", "b2"]]
    groups = find_flat_groups(specify((4, 8, 12, 1), LearningRateAdamW(no_decay="vectors")))
    assert [[*group.vector.shapes] for group in groups] == [["W0", "W1", "W2"], ["b0", "b1", "b2"]]
    groups = find_flat_groups(specify((4, 8, 12, 1), LearningRateAdam(), rate_factors={"W1": 0.5, "b1": 0.5}))
    assert [[*group.vector.shapes] for group in groups] == [["W0", "b0", "W2", "b2"], ["W1", "b1"]]
    groups = find_flat_groups(specify((100, 100, 1), LearningRateAdam()))
    assert [[*group.vector.shapes] for group in groups] == [["b0", "W1", "b1"]]


@pytest.mark.parametrize(("exact", "joined"), [(True, ["W0", "b0", "W1", "b1"]), (False, ["W0", "b0"])])
def test_sizes_do_not_matter_where_square_roots_are_exact(exact, joined):
    with patch.object(flat_weights, "_has_exact_roots", lambda: exact):
        (group,) = find_flat_groups(specify((4, 9, 1), LearningRateAdam()))
    assert [*group.vector.shapes] == joined


@pytest.mark.parametrize("rate", [LearningRateSGD(), LearningRateLAMB(), Normalized()])
def test_weights_are_not_joined_whose_update_is_their_own(rate):
    assert find_flat_groups(specify((4, 8, 1), rate)) == []


@pytest.mark.usual_limits
def test_many_weights_have_several_vectors():
    groups = find_flat_groups(specify((80,) * 9, LearningRateAdam()))
    assert len(groups) == 2
    assert sum(len(group.vector.shapes) for group in groups) == 16


def count(widths, rate):
    """Nodes of a step, of the branches the plain ones."""
    proto = epoch_graph(SpecSource(specify(widths, rate)))
    (scan,) = (n for n in proto.graph.node if n.op_type == "Scan")
    body = next(a.g for a in scan.attribute if a.name == "body")
    plain = [a.g for n in body.node for a in n.attribute if a.name == "else_branch"]
    return sum(len(g.node) for g in [body, *plain])


def test_a_step_of_adam_has_as_many_nodes_for_any_number_of_small_weights():
    """It had 79, and 25 more for a further layer."""
    assert count((20, 40, 1), LearningRateAdam()) <= 36
    further, plain = (count((20, 40, 40, 1), rate) - count((20, 40, 1), rate)
                      for rate in (LearningRateAdam(), LearningRateSGD()))
    assert further <= plain + 2

"""Factors of the rate, frozen weights, and weights that join or leave in between: param groups of torch, 50 steps."""

import pickle

import numpy as np
import pytest
import torch
from models import assert_close, linear, stack_layers
from torch_steps import BATCH, ENGINES, EPOCHS, IN_EVERY_ENGINE, ROWS, images, network, train, train_torch

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.estimator import Checkpoint
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.execution import selection
from ortpartial.learning import (
    CosineSchedule,
    ExponentialAverage,
    LayerwiseDecay,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from ortpartial.training_info import TrainingSession

#: Adam divides by gradients that are nearly 0.
TOLERANCE = {"float32": 2e-5, "float64": 1e-11}

FACTORS = {"conv.*": 0.1, "conv.bias": 3.0, "norm.scale": 0.5}
RESOLVED = {"conv.weight": 0.1, "conv.bias": 3.0, "norm.scale": 0.5}
RATES = {
    "sgd": (LearningRateSGD(0.05), lambda groups, lr: torch.optim.SGD(groups(0.05), lr=lr)),
    "momentum": (LearningRateSGDNesterov(0.02), lambda groups, lr: torch.optim.SGD(
        groups(0.02), lr=lr, momentum=0.9, nesterov=True)),
    "adam": (LearningRateAdam(0.01), lambda groups, lr: torch.optim.Adam(groups(0.01), lr=lr)),
    "adamw": (LearningRateAdamW(0.01, weight_decay=0.3),
              lambda groups, lr: torch.optim.AdamW(groups(0.01), lr=lr, weight_decay=0.3)),
}


def in_torch(rate, factors=None, frozen=(), at=None, thawed=(), steps=None):
    """What trains in torch with a group for each weight; before step `at` some join, or leave, and with `steps` the
    rate falls to 0 along a cosine."""
    class Training:
        def __init__(self, weights):
            self.weights, self.k = weights, 0
            for n in frozen:
                weights[n].requires_grad_(False)

            def groups(lr):
                return [{"params": [w], "lr": lr * (factors or {}).get(n, 1)} for n, w in weights.items()]

            self.optimizer = rate(groups, 1.0)
            self.schedule = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, lambda k: (1 + np.cos(np.pi * k / steps)) / 2 if steps else 1)

        def step(self):
            self.optimizer.step()
            self.schedule.step()
            self.k += 1
            if self.k == at:
                for n, is_trained in thawed:
                    self.weights[n].requires_grad_(is_trained)

    return Training


@IN_EVERY_ENGINE
@pytest.mark.parametrize("rate", RATES)
def test_factors_are_those_of_param_groups(rate, engine):
    mine, make = RATES[rate]
    trained = train(engine, learning_rate=mine, rate_factors=FACTORS)
    assert_close(trained.trained_coef_, train_torch(in_torch(make, RESOLVED)), TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_factors_of_a_schedule(dtype):
    """The factor multiplies η, whatever it is at the batch."""
    rate = LearningRateAdam(0.01, schedule=CosineSchedule(n=50))
    trained = train("epoch", dtype, learning_rate=rate, rate_factors=FACTORS)
    assert_close(trained.trained_coef_, train_torch(in_torch(RATES["adam"][1], RESOLVED, steps=50), dtype),
                 TOLERANCE[dtype])


@IN_EVERY_ENGINE
def test_frozen_weights_are_those_without_a_gradient(engine):
    trained = train(engine, learning_rate=LearningRateAdam(0.01), freeze=("conv.*", "!conv.bias", "norm.scale"))
    weights = train_torch(in_torch(RATES["adam"][1], frozen=("conv.weight", "norm.scale")))
    assert trained.weights_to_train == ["conv.bias", "fc.weight", "fc.bias"]
    assert_close(trained.trained_coef_, {n: weights[n] for n in trained.weights_to_train}, TOLERANCE["float32"])


def unfreezing(o):
    if o.n_iter_ == 2:
        o.unfreeze("conv.*").freeze("fc.bias")


JOINED = [("conv.weight", True), ("conv.bias", True), ("fc.bias", False)]


@IN_EVERY_ENGINE
@pytest.mark.parametrize("rate", ["momentum", "adam"])
def test_weights_join_and_leave_in_a_callback(rate, engine):
    """States of zero, bias corrections from their own start, the schedule from that of the training."""
    mine, make = RATES[rate]
    schedule = CosineSchedule(n=50)
    o = train(engine, learning_rate=type(mine)(mine.eta0, schedule=schedule), callbacks=[unfreezing],
              freeze="conv.*", rate_factors=FACTORS)
    weights = train_torch(in_torch(make, RESOLVED, ["conv.weight", "conv.bias"], 20, JOINED, steps=50))
    assert o.weights_to_train == ["conv.weight", "conv.bias", "fc.weight", "norm.scale"]
    stored = {n: a for n, a in o._spec.model.arrays.items() if n == "fc.bias"}
    assert_close({**o.trained_coef_, **stored}, weights, TOLERANCE["float32"])
    assert o._spec.rate_starts == {"conv.weight": 20, "conv.bias": 20}
    assert o.get_params()["freeze"] == ("fc.bias",)


def accumulated_and_averaged(weights):
    """Adam on the means of two gradients, and an average of all weights, also of those that do not change yet."""
    training = in_torch(RATES["adam"][1], RESOLVED, ["conv.weight", "conv.bias"], 10, JOINED)(weights)
    averages, sums = {n: w.detach().clone() for n, w in weights.items()}, {}

    class Training:
        k = 0

        def step(self):
            self.k += 1
            for n, w in weights.items():
                if w.grad is not None:
                    sums[n] = sums.get(n, 0) + w.grad / 2
            if self.k % 2 == 0:
                for n, w in weights.items():
                    w.grad = sums.pop(n, None)
                training.step()
                share = 1 if self.k == 2 else 0.1
                for n, w in weights.items():
                    averages[n] += share * (w.detach() - averages[n])
            if self.k == 50:
                with torch.no_grad():
                    for n, w in weights.items():
                        w.copy_(averages[n])

    return Training()


@IN_EVERY_ENGINE
def test_weights_that_join_are_accumulated_and_averaged(engine):
    o = train(engine, learning_rate=LearningRateAdam(0.01), callbacks=[unfreezing], freeze="conv.*",
              rate_factors=FACTORS, accumulate=2, averaging=ExponentialAverage(0.9), use_average=True)
    assert o._spec.rate_starts == {"conv.weight": 10, "conv.bias": 10}
    averages = train_torch(accumulated_and_averaged)
    assert_close(o.trained_coef_, {n: averages[n] for n in o.weights_to_train}, TOLERANCE["float32"])


def test_a_change_in_a_callback_is_one_between_two_fits():
    whole = train("epoch", learning_rate="Adam", callbacks=[unfreezing], freeze="conv.*", rate_factors=FACTORS)
    X, y = images("float32")
    parts = train("epoch", learning_rate="Adam", freeze="conv.*", rate_factors=FACTORS, max_iter=2, warm_start=True)
    parts.unfreeze("conv.*").freeze("fc.bias").set_params(max_iter=3).fit(X, y)
    for kind in ("weight", "optimizer"):
        np.testing.assert_equal(parts.get_state(kind), whole.get_state(kind))
    np.testing.assert_equal(parts.predict(X), whole.predict(X))


def test_another_engine_where_many_weights_join(monkeypatch):
    """Weights that are too big for two copies are overwritten from then on."""
    plain = train("epoch", learning_rate="Adam", callbacks=[unfreezing], freeze="conv.*")
    monkeypatch.setattr(selection, "_BIG", 1)
    monkeypatch.setattr(selection, "available_memory", lambda: 9600)
    o = Optimizer(network(), learning_rate="Adam", callbacks=[unfreezing], freeze="conv.*", max_iter=EPOCHS,
                  batch_size=BATCH, shuffle=False)
    assert (o.engine_, o._engine.copies) == ("epoch", 2)
    assert (o.fit(*images("float32")).engine_, o._engine.copies) == ("step", 1)
    assert o.engine_reason_ == "memory counts, so weights are overwritten where they are"
    assert_close(o.trained_coef_, plain.trained_coef_, 1e-6)


def test_a_function_that_chooses_is_pickled_as_names():
    o = Optimizer(network(), lambda name, shape, node: len(shape) > 1, freeze="conv.*")
    again = pickle.loads(pickle.dumps(o)).unfreeze("conv.*")
    assert again.weights_to_train == o.unfreeze("conv.*").weights_to_train == ["conv.weight", "fc.weight"]


def test_a_pickle_goes_on_with_the_weights_that_have_joined():
    X, y = images("float32")
    o = train("epoch", learning_rate="Adam", callbacks=[unfreezing], freeze="conv.*", rate_factors=FACTORS)
    again = pickle.loads(pickle.dumps(o))
    assert (again.weights_to_train, again._spec.rate_starts, again._spec.rate_factors) == (
        o.weights_to_train, o._spec.rate_starts, o._spec.rate_factors)
    for each in (o, again):
        each.unfreeze("fc.bias").partial_fit(X, y)
    for kind in ("weight", "optimizer"):
        np.testing.assert_equal(again.get_state(kind), o.get_state(kind))


def test_a_fit_that_was_cut_off_goes_on_with_the_weights_that_have_joined(tmp_path):
    def cut(o):
        if o.n_iter_ == 3:
            raise KeyboardInterrupt

    settings = {"learning_rate": "Adam", "freeze": "conv.*", "rate_factors": FACTORS}
    whole = train("epoch", callbacks=[unfreezing], **settings)
    with pytest.raises(KeyboardInterrupt):
        train("epoch", callbacks=[unfreezing, Checkpoint(tmp_path), cut], **settings)
    again = Optimizer(network(), max_iter=EPOCHS, batch_size=BATCH, shuffle=False, engine="epoch",
                      callbacks=[unfreezing, Checkpoint(tmp_path)], **settings)
    again.fit(*images("float32"), resume=tmp_path)
    assert again.weights_to_train == whole.weights_to_train
    for kind in ("weight", "optimizer"):
        np.testing.assert_equal(again.get_state(kind), whole.get_state(kind))
    assert again.get_trained_onnx() == whole.get_trained_onnx()


def test_what_was_frozen_is_its_first_content_again(tmp_path):
    """A state that is loaded over a training leaves the first weights as they are in the model."""
    X, y = images("float32")
    o = train("epoch", learning_rate="Adam").freeze("conv.*")
    o.save_checkpoint(tmp_path / "a.safetensors")
    o.load_checkpoint(tmp_path / "a.safetensors")
    o.freeze = ()
    np.testing.assert_equal(o.fit(X, y).get_state(), train("epoch", learning_rate="Adam").get_state())


def test_a_fit_that_starts_again_trains_them_from_its_start():
    X, y = images("float32")
    o = train("epoch", learning_rate="Adam", freeze="conv.*").unfreeze("conv.*")
    assert o._spec.rate_starts == {"conv.weight": 50, "conv.bias": 50}
    o.fit(X, y)
    np.testing.assert_equal(o.get_state(), train("epoch", learning_rate="Adam").get_state())


def test_a_weight_keeps_what_it_has_learned():
    X, y = images("float32")
    o = train("epoch", learning_rate="Adam")
    learned = o.trained_coef_
    o.freeze("conv.*").partial_fit(X, y)
    exported = Optimizer(o.get_trained_onnx()).trained_coef_
    assert (exported["conv.weight"] == learned["conv.weight"]).all()
    assert (exported["fc.weight"] != learned["fc.weight"]).any()
    o.unfreeze("conv.*")
    assert (o.trained_coef_["conv.weight"] == learned["conv.weight"]).all()
    assert [a.any() for a in o.get_state("optimizer")[:4]] == [False] * 4  # m and v of conv.weight and conv.bias


def test_predictions_are_those_of_the_weights_that_have_joined():
    X, y = images("float32")
    o = train("epoch", learning_rate="Adam", freeze="conv.*")
    first = o.predict(X)
    last = o.unfreeze("conv.*").partial_fit(X, y).predict(X)
    assert (last != first).any()
    np.testing.assert_allclose(last, Optimizer(o.get_trained_onnx()).predict(X), rtol=1e-5, atol=1e-6)


def test_unfreezing_what_was_never_chosen():
    o = Optimizer(network(), "fc.*")
    o.unfreeze("conv.bias")
    assert o.weights_to_train == o.get_params()["weights_to_train"] == ["fc.weight", "fc.bias", "conv.bias"]
    assert o.unfreeze("*").weights_to_train == ["fc.weight", "fc.bias", "conv.bias", "conv.weight", "norm.scale"]


def test_assigning_is_setting():
    o = Optimizer(network(), freeze="conv.*")
    o.freeze = "fc.*"
    o.rate_factors = {"conv.*": 0.5}
    assert o.weights_to_train == ["conv.weight", "conv.bias", "norm.scale"]
    assert o._spec.rate_factors == {"conv.weight": 0.5, "conv.bias": 0.5}
    assert Optimizer(**o.get_params(deep=False)).weights_to_train == o.weights_to_train
    assert "freeze='fc.*'" in repr(o)
    o.set_params(freeze=(), rate_factors=LayerwiseDecay(0.5))
    assert o.set_params(rate_factors__decay=0.25).rate_factors == LayerwiseDecay(0.25)


def test_rates_by_depth():
    model = stack_layers("embeddings", "layer.0", "layer.1", "head")
    o = Optimizer(model, rate_factors=LayerwiseDecay(0.5), freeze="layer.1.bias")
    assert o._spec.rate_factors == {"embeddings.weight": 0.125, "embeddings.bias": 0.125, "layer.0.weight": 0.25,
                                    "layer.0.bias": 0.25, "layer.1.weight": 0.5}


def test_an_error_changes_nothing():
    o = Optimizer(network(), freeze="conv.*")
    for change in (lambda: o.freeze("*"), lambda: o.unfreeze("cnov.*"), lambda: o.freeze("fc.wieght"),
                   lambda: o.set_params(rate_factors={"fc.*": -1})):
        with pytest.raises((ModelError, SettingError)):
            change()
        assert o.weights_to_train == ["fc.weight", "fc.bias", "norm.scale"]
        assert (o.get_params()["freeze"], o.rate_factors) == ("conv.*", None)
    o.fit(*images("float32"))


def test_the_training_in_the_model_has_the_factors():
    X, y = images("float32")
    o = train("epoch", learning_rate="Adam", callbacks=[unfreezing], freeze="conv.*", rate_factors=FACTORS)
    session = TrainingSession(o.get_training_onnx("lowered"))
    o.partial_fit(X, y)
    for start in range(0, ROWS, BATCH):
        session.step({"x": X[start : start + BATCH], "y_target": y[start : start + BATCH]})
    assert_close({n: session.state[n] for n in o.weights_to_train}, o.trained_coef_, 1e-5)


@pytest.mark.parametrize("rate", ["sgd", "momentum"])
def test_a_stored_training_is_recognized_with_its_factors(rate):
    X, y = images("float32")
    o = train("epoch", learning_rate=RATES[rate][0], rate_factors=FACTORS, freeze="fc.bias")
    again = Optimizer.from_training_info(o.get_training_onnx(), shuffle=False, batch_size=BATCH)
    for each in (o, again):
        each.partial_fit(X, y)
    found, expected = again.trained_coef_, o.trained_coef_
    assert found.keys() == expected.keys()
    assert all((found[n] == expected[n]).all() for n in expected)


def test_a_factor_costs_nothing():
    """η is a constant of the Gemm that computes the step, whatever it is."""
    plain, scaled = (Optimizer(linear(), engine="step", rate_factors=factors)._engine.graphs()["step"]
                     for factors in (None, {"coef": 0.1}))
    assert [node.op_type for node in scaled.graph.node] == [node.op_type for node in plain.graph.node]


def test_all_engines_are_tested():
    assert {*ENGINES} == {"step", "epoch", "in place", "agent"}

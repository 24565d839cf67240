"""Optimizers of a module: their updates, and calls and settings that make no sense."""

import re

import numpy as np
import pytest

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, nn, op
from ortpartial.exceptions import GraphError, ModelError, SettingError
from ortpartial.learning import (
    ExponentialAverage,
    LearningRateAdam,
    LearningRateSGD,
    ReduceOnPlateauSchedule,
    StochasticWeightAverage,
)
from ortpartial.runtime import Session

X = np.ones((4, 3), np.float32)


class Net(nn.Module):
    def __init__(self, **settings):
        self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)
        self.optimizer = nn.Optimizer(0.5, **settings)

    def forward(self, x):
        return self.a(x) + self.b(x)

    def train_one_batch(self, x):
        loss = self.forward(x).mean()
        self.optimizer(loss, self.a)
        return loss


def compiled(net):
    return net.compile(nn.placeholder(["N", 3]), random_state=0)


def step(net):
    before = net.state_dict()
    net.train_one_batch(X)
    after = net.state_dict()
    return {n: after[n] - before[n] for n in before}


def test_the_chosen_weights():
    changes = step(compiled(Net()))
    np.testing.assert_allclose(changes["a.weight"], -0.5)
    assert not changes["b.weight"].any()


def test_clipping():
    changes = step(compiled(Net(gradient_clipping=0.1)))
    assert np.sqrt(sum((c**2).sum() for c in changes.values())) == pytest.approx(0.05, rel=1e-4)


def test_a_rate_that_is_replaced():
    net = compiled(Net())
    net.optimizer.rate = 0.25
    np.testing.assert_allclose(step(net)["a.weight"], -0.25)


@pytest.mark.parametrize(("settings", "message"), [
    ({"gradient_dtype": "float32"}, "gradient_dtype is 'float16' or None, not 'float32'."),
    ({"top_k": 2}, "top_k is the share of the gradients that are sent, above 0 and at most 1, not 2."),
    ({"top_k": 0.1}, "gradient_dtype and top_k say how several processes send gradients; set distributed"),
    ({"rate": LearningRateSGD(schedule=ReduceOnPlateauSchedule())}, "reduces the step size by the losses of whole")])
def test_settings(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        nn.Optimizer(**settings)


def test_calls():
    with pytest.raises(ModelError, match="An optimizer is called with a loss in train_one_batch"):
        nn.Optimizer()(3)

    class Wrong(Net):
        def train_one_batch(self, x):
            self.optimizer(self.forward(x))

    with pytest.raises(GraphError, match=r"An optimizer takes a scalar loss, not .*; take its mean, as nn\.Loss does"):
        compiled(Wrong()).train_one_batch(X)


class Layers(nn.Module):
    def __init__(self, rate="adam", **settings):
        self.hidden, self.out = nn.Linear(3, 4), nn.Linear(4, 1)
        self.set_optimizer(rate, **settings)

    def forward(self, x):
        return self.out(op.Tanh(self.hidden(x)))


RNG = np.random.default_rng(0)
ROWS, TARGETS = RNG.normal(size=(24, 3)).astype(np.float32), RNG.normal(size=(24, 1)).astype(np.float32)


def trained(*args, epochs=2, batch_size=6, engine="auto", use_graph=True, **settings):
    module = Layers(*args, **settings).compile(nn.placeholder(["N", 3]), random_state=0, engine=engine,
                                               use_graph=use_graph)
    return module.fit(ROWS, TARGETS, epochs=epochs, batch_size=batch_size, shuffle=False)


def assert_close(one, other, tolerance=1e-5):
    assert one.keys() == other.keys()
    for n, a in other.items():
        np.testing.assert_allclose(one[n], a, rtol=tolerance, atol=tolerance * np.abs(a).max(), err_msg=n)


def write_model():
    """The network before the training."""
    return Layers().compile(nn.placeholder(["N", 3]), random_state=0).to_onnx()


@pytest.mark.parametrize("settings", [
    {}, {"gradient_clipping": 0.05}, {"averaging": StochasticWeightAverage(start=0.5), "use_average": True},
    {"averaging": "ema", "use_average": True}, {"accumulate": 2}, {"accumulate": 3, "averaging": "ema"},
], ids=str)
def test_weights_and_averages_are_those_of_the_optimizer(settings):
    """The settings of both are called the same, and mean the same; three of eight batches are left over, or none."""
    rate = LearningRateAdam(0.01, schedule="invscaling")
    module = trained(rate, **settings)
    other = OrtGradientForwardBackwardOptimizer(write_model(), learning_rate=rate, max_iter=2, batch_size=6,
                                                shuffle=False, **settings).fit(ROWS, TARGETS)
    used = Session(module.to_onnx()).run({"x": ROWS})
    assert_close(used, Session(other.get_trained_onnx()).run({"x": ROWS}))
    np.testing.assert_allclose(module.eval()(ROWS), other.predict(ROWS), rtol=1e-4, atol=1e-5)
    assert_close(module.state_dict(), dict(zip(other.weights_to_train, other.get_state(), strict=True)))
    rates = [[record["learning_rate"] for record in o.history_] for o in (module, other)]
    np.testing.assert_allclose(*rates, rtol=1e-6)


@pytest.mark.parametrize("how", [{"engine": "step"}, {"engine": "native"}, {"use_graph": False}], ids=str)
def test_every_engine_accumulates_and_averages(how):
    settings = {"accumulate": 2, "averaging": ExponentialAverage(0.5), "use_average": True}
    expected, module = trained(**settings), trained(**settings, **how)
    assert_close(module._program.states(), expected._program.states())
    np.testing.assert_allclose(module.predict(ROWS), expected.predict(ROWS), rtol=1e-5, atol=1e-6)


def test_a_file_has_sums_and_averages(tmp_path):
    """A training that goes on in the middle of an update goes on to the same bits."""
    settings = {"accumulate": 3, "averaging": "ema", "use_average": True}
    whole = trained(**settings).fit(ROWS, TARGETS, epochs=1, batch_size=6, shuffle=False)
    module = trained(**settings)
    module.save(tmp_path / "model.onnx")
    module.save_states(tmp_path / "states")
    other = Layers(**settings).compile(nn.placeholder(["N", 3]))
    other.load_states(tmp_path / "states")
    session = TrainingSession(tmp_path / "model.onnx")
    for i in range(0, 24, 6):
        session.step({"x": ROWS[i : i + 6], "target": TARGETS[i : i + 6]})
    other.fit(ROWS, TARGETS, epochs=1, batch_size=6, shuffle=False)
    for n, a in whole._program.states().items():
        if n != "seed":
            np.testing.assert_array_equal(other._program.get(n), a, n)
    for n, a in whole.state_dict().items():
        np.testing.assert_array_equal(session.state[n], a, n)


def test_where_averages_are_used():
    module = trained(averaging="ema", use_average=True)
    average = module.predict(ROWS)
    module.optimizer.use_average = False
    plain = module.predict(ROWS)
    assert (average != plain).any()
    module.optimizer.use_average = True
    np.testing.assert_array_equal(module.predict(ROWS), average)
    assert (module.train()(ROWS) == plain).all()
    again = Layers(averaging="ema", use_average=True).compile(nn.placeholder(["N", 3]), random_state=0)
    np.testing.assert_array_equal(again.predict(ROWS), Layers().compile(
        nn.placeholder(["N", 3]), random_state=0).predict(ROWS))  # of no update


def test_the_average_of_a_weight_that_is_trained_from_now_on_begins_with_it():
    module = Layers(averaging="ema", use_average=True).compile(nn.placeholder(["N", 3]), random_state=0)
    module.out.weight.is_trained = False
    module.fit(ROWS, TARGETS, epochs=1, batch_size=6)
    module.out.weight.is_trained = True
    before = module.out.weight.numpy()
    module.fit(ROWS, TARGETS, epochs=1, batch_size=24)
    average = module._program.get("optimizer.out.weight.average")
    np.testing.assert_allclose(average, before, atol=1e-4)


@pytest.mark.parametrize(("name", "value"), [("accumulate", 2), ("averaging", "ema")])
def test_what_an_optimizer_holds_cannot_be_changed(name, value):
    with pytest.raises(SettingError, match=f"{name} says which sums and averages an optimizer holds, and cannot be "
                                           f"changed; make another optimizer"):
        setattr(nn.Optimizer(), name, value)


@pytest.mark.parametrize(("settings", "message"), [
    ({"use_average": True}, "use_average=True takes the averages of the weights, and averaging is None"),
    ({"accumulate": 0}, "accumulate"), ({"averaging": "mean"}, "mean"), ({"use_average": "yes"}, "use_average"),
])
def test_settings_of_updates(settings, message):
    with pytest.raises(SettingError, match=message):
        nn.Optimizer(**settings)

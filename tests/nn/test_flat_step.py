"""Small weights of a module that are one vector take the steps that they take one by one, bit for bit."""

from unittest.mock import patch

import numpy as np
import pytest
from models import data

from ortpartial import ElasticLearningPenalty, OrtGradientForwardBackwardOptimizer, nn, op
from ortpartial.learning import (
    GradientClipping,
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
)
from ortpartial.nn import traced_source

X, Y, _ = data(60)


class Chain(nn.Module):
    """Layers of which one is used twice."""

    def __init__(self, rate="adam", **settings):
        self.first, self.twice, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.set_optimizer(rate, **settings)

    def forward(self, x):
        h = op.Tanh(self.first(x))
        return self.last(op.Tanh(self.twice(op.Tanh(self.twice(h)))))


class Odd(Chain):
    """Weights of rank 0, without elements, of another dtype and shape, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift, self.empty = nn.Parameter((), 1.0), nn.Parameter(()), nn.Parameter((0, 3))
        self.wide, self.further = nn.Parameter((3,), dtype="float64"), nn.Parameter((2, 1, 2), dtype="float64")
        for p in self.last.parameters():
            p.is_trained = False

    def forward(self, x):
        wide = self.wide.value.sum() + self.further.value.sum()
        return super().forward(x) * self.scale + self.shift + wide.astype("float32") * (1 + self.empty.value.sum())


class InTurn(nn.Module):
    """Two optimizers, of which the second sees the new weights of the first, and a loss that sees those of both."""

    def __init__(self, rate="adam", **settings):
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)
        self.of_a, self.of_b = nn.Optimizer(rate, [self.a], **settings), nn.Optimizer(rate, [self.b], **settings)

    def forward(self, x):
        return self.b(op.Tanh(self.a(x)))

    def train_one_batch(self, x, t):
        e = self.forward(x) - t
        self.of_a((e * e).mean())
        e = self.forward(x) - t
        self.of_b(op.Abs(e).mean())
        e = self.forward(x) - t
        return e, (e * e).mean()


class Twice(Chain):
    """An optimizer that is called twice, the second time for one layer."""

    def train_one_batch(self, x, t):
        e = self.forward(x) - t
        loss = (e * e).mean()
        self.optimizer(loss)
        self.optimizer(op.Abs(self.forward(x) - t).mean(), self.first)
        return e, loss


def train(make, engine):
    """All of the state after some epochs, whose last batches are smaller, and losses."""
    module = make().compile(nn.placeholder(["N", 4]), random_state=0, engine=engine)
    module.fit(X, Y, epochs=3, batch_size=7)
    module.train_one_batch(X[:5], Y[:5])
    module.fit(X, Y, epochs=2, batch_size=7, shuffle=False)
    assert module.engine_ == engine
    return module._program.runner.source.vectors, {
        **module._program.states(), "losses": np.array([r["loss"] for r in module.history_])}


def assert_same(make, count=None, engines=("epoch",)):
    """Compare with the steps of weights by themselves; return which weights and states are vectors."""
    with patch.object(traced_source, "flatten_step", lambda *args: None):
        vectors, expected = train(make, "step")
        assert not vectors
    for engine in engines:
        vectors, states = train(make, engine)
        assert states.keys() == expected.keys()
        for n, a in expected.items():
            if n == "losses":  # The mean over an epoch is taken otherwise.
                np.testing.assert_allclose(states[n], a, rtol=1e-6)
            else:
                np.testing.assert_array_equal(states[n], a, n)
    joined = [sorted(v.shapes) for v in vectors.values()]
    assert count is None or len(joined) == count, joined
    return joined


def proof(*case):
    """A case that `make proof` runs."""
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(("rate", "count"), [
    (LearningRateSGDNesterov(0.01), 2), (LearningRateAdam(schedule="invscaling"), 3), (LearningRateLAMB(), 0),
    (LearningRateAdamW(no_decay="vectors"), None), proof(LearningRateSGD(0.01), 0), proof(LearningRateLion(), 2),
    proof(LearningRateAdagrad(), 2), proof(LearningRateRMSProp(momentum=0.5, centered=True), 4),
    proof(LearningRateNAdam(), None), proof(LearningRateRAdam(), 3), proof("Adafactor", 0),
], ids=lambda rate: rate if isinstance(rate, str) else type(rate).__name__)
def test_any_optimizer(rate, count):
    assert_same(lambda: Chain(rate), count)


@pytest.mark.parametrize("settings", [
    {"gradient_clipping": 0.1}, proof({"gradient_clipping": GradientClipping(norm=0.1, per="weight")}),
    proof({"gradient_clipping": GradientClipping(value=0.01)}),
    proof({"penalty": ElasticLearningPenalty(0.01, 0.01)}),
], ids=str)
def test_any_setting(settings):
    """A norm is that of all weights together, or of each, and never of a vector."""
    assert_same(lambda: Chain(**settings), 3)


def test_weights_of_any_kind():
    joined = assert_same(Odd)
    weights = {n for names in joined for n in names}
    assert {"scale", "wide", "further"} <= weights
    assert weights.isdisjoint({"empty", "last.weight", "last.bias"})
    assert not any({"scale", "wide"} <= set(names) for names in joined)


@pytest.mark.parametrize("make", [InTurn, proof(lambda: InTurn(gradient_clipping=0.1))])
def test_optimizers_in_turn(make):
    joined = assert_same(make, 6, ("step", "epoch"))
    assert ["a.bias", "a.weight"] in joined
    assert ["b.bias", "b.weight"] in joined


def test_weights_that_are_updated_twice_are_left_alone():
    joined = assert_same(Twice, 3)
    assert ["last.bias", "last.weight", "twice.bias", "twice.weight"] in joined
    assert not any("first.weight" in n for names in joined for n in names)


def test_weights_that_are_set_and_read_are_those_of_the_vector():
    module, other = (Chain().compile(nn.placeholder(["N", 4]), random_state=seed, engine=engine)
                     for seed, engine in ((0, "epoch"), (1, "step")))
    module.fit(X, Y, epochs=2)
    other.fit(X, Y, epochs=1)
    other._program.restore(module._program.states())
    for m in (module, other):
        m.fit(X, Y, epochs=2)
    for n, a in module._program.states().items():
        np.testing.assert_array_equal(other._program.get(n), a, n)


@pytest.mark.usual_limits
def test_a_step_of_adam_has_as_many_nodes_as_the_optimizers():
    """It had 68 in place of 36; now what follows from the number of the batch is computed ahead, too."""
    from ortpartial.execution.epoch import epoch_graph

    module = Chain().compile(nn.placeholder(["N", 4]), random_state=0).fit(X, Y, epochs=1, batch_size=10)
    counts = []
    for source in (module._program.runner.source, optimizer_of(module)._engine.source):
        (scan,) = (n for n in epoch_graph(source.for_rows(10)).graph.node if n.op_type == "Scan")
        body = next(a.g for a in scan.attribute if a.name == "body")
        counts.append(len(body.node) + sum(len(a.g.node) for n in body.node for a in n.attribute
                                           if a.name == "else_branch"))
    assert counts[0] <= counts[1]


def optimizer_of(module):
    """The optimizer, trained on the same network."""
    return OrtGradientForwardBackwardOptimizer(
        module.to_onnx(), learning_rate="adam", batch_size=10, max_iter=1, engine="epoch").fit(X, Y)


class Recurrent(nn.Module):
    """A layer that is a loop."""

    def __init__(self):
        self.rnn, self.last = nn.RNN(2, 3, batch_first=True), nn.Linear(3, 1)
        self.set_optimizer("adam")

    def forward(self, x):
        h, _ = self.rnn(x.reshape([-1, 2, 2]))
        return self.last(h[:, 1])


def test_loops_are_left_alone():
    assert_same(Recurrent)

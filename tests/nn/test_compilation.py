"""Compilation: names that clash, structures that are returned, and batches that do not fit."""

from threading import Thread

import numpy as np
import pytest

from ortpartial import nn, op
from ortpartial.exceptions import DataError, GraphError, ModelWarning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = RNG.normal(size=(6, 2)).astype(np.float32)


class Net(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x)


class Scaled(Net):
    """With a parameter of any name."""

    def __init__(self, name):
        super().__init__()
        setattr(self, name, nn.Parameter([2], 1.5))
        self.scale = getattr(self, name)

    def forward(self, x):
        return self.linear(x) * self.scale


class Two(Net):
    """With two targets."""

    def train_one_batch(self, x, y, weights):
        output = self.forward(x)
        loss = (weights * (output - y) ** 2).mean()
        self.optimizer(loss)
        return output, loss


class Batches:
    """Batches that can be read again."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Named(Net):
    """With an input called as outputs are."""

    def forward(self, output):
        return self.linear(output)

    def train_one_batch(self, loss, step_output):
        output = self.forward(loss)
        error = ((output - step_output) ** 2).mean()
        self.optimizer(error)
        return output, error


@pytest.mark.parametrize("name", ["output", "loss", "step_output", "x", "target", "constant_0"])
def test_names_of_parameters_and_outputs_may_be_alike(name):
    model = Scaled(name).set_optimizer(0.1).compile(X, random_state=0)
    expected = model(X)
    output, loss = model.train_one_batch(X, Y)
    assert np.array_equal(output, expected)
    assert loss == pytest.approx(((expected - Y) ** 2).mean())
    changed = (X @ model.linear.weight.numpy().T + model.linear.bias.numpy()) * model.scale.numpy()
    assert np.allclose(model.predict(X), changed, atol=1e-6)


def test_names_of_inputs_and_outputs_may_be_alike():
    model = Named().set_optimizer(0.1).compile(X, random_state=0)
    expected = model(X)
    output, loss = model.train_one_batch(X, Y)
    assert np.array_equal(output, expected)
    assert loss == pytest.approx(((expected - Y) ** 2).mean())


@pytest.mark.parametrize("outputs", [lambda h: {"a": {"b": h}, "a_b": 2 * h}, lambda h: {1: h, "1": 2 * h}])
def test_two_outputs_of_the_same_name_are_refused(outputs):
    class Nested(Net):
        def forward(self, x):
            return outputs(self.linear(x))

    with pytest.raises(GraphError, match="rename the key"):
        Nested().compile(X)


def test_a_module_that_returns_nothing_is_named():
    class Silent(Net):
        def forward(self, x):
            self.linear(x)

    with pytest.raises(GraphError, match=r"Silent\.forward returns nothing"):
        Silent().compile(X)


def test_another_number_of_inputs_is_refused_by_compile():
    with pytest.raises(DataError, match=r"Net\.forward does not take 2 inputs"):
        Net().compile([X, X])


def test_inputs_are_taken_by_name_and_nothing_else_is():
    class Difference(nn.Module):
        def forward(self, a, b, scale=1.0):
            return (a - b) * scale

    model = Difference().compile([X, X])
    assert np.array_equal(model(b=Y[:, [0, 1, 1]], a=X), X - Y[:, [0, 1, 1]])
    assert np.array_equal(model(X, b=2 * X), -X)
    with pytest.raises(DataError, match="compiled without 'scale'"):
        model(X, X, scale=2.0)


@pytest.mark.parametrize("use_graph", [True, False])
def test_sizes_of_the_same_name_are_the_same(use_graph):
    class Sum(nn.Module):
        def forward(self, a, b):
            return a + b

    model = Sum().compile([nn.placeholder(["N", 3])] * 2, use_graph=use_graph)
    with pytest.raises(DataError, match="'N' is 6 in 'a' and 1 in 'b'"):
        model(X, X[:1])
    net = Net().set_optimizer(0.1).compile(X, use_graph=use_graph)
    net.train_one_batch(X, Y)
    with pytest.raises((DataError, GraphError), match=r"'N' is 6 in 'x' and 1 in 'target'|float32\[1x2\] was given"):
        net.train_one_batch(X, Y[:1])


def test_a_target_may_have_other_rows_than_the_inputs():
    model = Two().set_optimizer(0.1).compile(X, random_state=0)
    weights = np.float32([1, 3])
    for rows in (6, 4):
        expected = (weights * (model(X[:rows]) - Y[:rows]) ** 2).mean()
        assert model.train_one_batch(X[:rows], Y[:rows], weights)[1] == pytest.approx(expected)


@pytest.mark.parametrize("batch", [(X,), (X, Y, Y, Y)])
def test_a_batch_of_another_length_is_refused(batch):
    with pytest.raises(DataError, match="it takes x and a target"):
        Net().set_optimizer(0.1).compile(X).train_one_batch(*batch)
    with pytest.raises(DataError, match="missing a required argument: 'weights'"):
        Two().set_optimizer(0.1).compile(X).train_one_batch(X, Y)


def test_a_fit_without_targets_names_them():
    with pytest.raises(DataError, match="it takes x and a target"):
        Net().set_optimizer(0.1).compile(X).fit(X)


@pytest.mark.parametrize("setting", [None, "plain"])
def test_a_batch_is_made_of_arrays(setting):
    with pytest.raises(DataError, match=f"{setting!r} was given"):
        Two().set_optimizer(0.1).compile(X).train_one_batch(X, Y, setting)


def test_targets_are_given_as_tuple_list_or_dict():
    W = np.ones_like(Y)
    losses = [Two().set_optimizer(0.1).compile(X, random_state=0).fit(X, y, epochs=1).history_[-1]["loss"]
              for y in ((Y, W), [Y, W], {"weights": W, "y": Y})]
    assert len(set(losses)) == 1


def test_the_default_step_takes_one_output():
    class Pair(Net):
        def forward(self, x):
            return self.linear(x), x

    with pytest.raises(GraphError, match="takes the loss of one output"):
        Pair().set_optimizer(0.1).compile(X).train_one_batch(X, Y)


def test_outputs_of_several_batches_are_joined_where_they_have_a_row_for_each():
    class Mean(Net):
        def forward(self, x):
            return self.linear(x), x.mean(0, keepdims=True)

    model = Mean().compile(X)
    assert model.predict(X)[1].shape == (1, 3)
    with pytest.raises(DataError, match=r"'output_1' has the shape \(1, 3\)"):
        model.predict(X, batch_size=4)


def test_an_iterator_that_is_used_up_is_named():
    model = Net().set_optimizer(0.1).compile(X)
    with pytest.raises(DataError, match="The data give their batches once, and there are 2 epochs"):
        model.fit(((X, Y) for _ in range(2)), epochs=2)
    with pytest.raises(DataError, match="has no rows"):
        model.fit(X[:0], Y[:0])


def test_validation_data_are_arrays_or_batches():
    losses = []
    for data in ({"X_val": X, "y_val": Y}, {"X_val": Batches([(X[:4], Y[:4]), (X[4:], Y[4:])])}):
        model = Net().set_optimizer(0.1).compile(X, random_state=0).fit(X, Y, epochs=1, **data)
        losses.append(model.history_[-1]["validation_loss"])
    assert losses[0] == pytest.approx(losses[1])


@pytest.mark.parametrize("data", [[(X, Y), (X, Y)], [X, Y]])
def test_a_list_that_is_no_array_is_named(data):
    with pytest.raises(DataError, match="X is no rectangular array: its rows have several shapes"):
        Net().set_optimizer(0.1).compile(X).fit(data, Y)


@pytest.mark.parametrize("use_graph", [True, False])
def test_threads_take_turns(use_graph):
    model = Net().set_optimizer(0.1).compile(X, use_graph=use_graph)
    threads = [Thread(target=lambda: [model.train_one_batch(X, Y) for _ in range(20)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model._program.iteration == 60


def test_a_step_without_an_optimizer_warns():
    class Loss(Net):
        def train_one_batch(self, x, y):
            output = self.forward(x)
            return output, ((output - y) ** 2).mean()

    with pytest.warns(ModelWarning, match="calls no optimizer"):
        Loss().compile(X).train_one_batch(X, Y)


def test_checkpointing():
    """Values are recomputed in every form of the step, and the numbers are the same."""

    class Deep(nn.Module):
        def __init__(self):
            self.layers = [nn.Linear(4, 4) for _ in range(9)]
            self.set_optimizer("adam")

        def forward(self, x):
            for layer in self.layers:
                x = op.Tanh(layer(x))
            return x

    x, states = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), []
    for setting, computed in ((None, 9), ("auto", 12)):
        module = Deep().compile(nn.placeholder(["N", 4]), random_state=0, checkpointing=setting)
        module.fit(x, x, epochs=2, batch_size=5)
        source = module._program.runner.source.for_rows(5)
        steps = [source.compose(flat=False), source.compose(flat=True), *source.compose_parts()]
        for step in steps:
            assert [node.op_type for node in step.build().graph.node].count("Tanh") >= computed
        states.append(module.state_dict())
    for n, a in states[0].items():
        np.testing.assert_array_equal(states[1][n], a, n)

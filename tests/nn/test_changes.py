"""Changes of a module after it was compiled are followed, or named."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import ModelError, SettingError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)


class Autoencoder(nn.Module):
    def __init__(self, encoder=None):
        self.encoder, self.decoder = encoder or nn.Linear(3, 2), nn.Linear(2, 3)

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Centered(nn.Module):
    """With a running mean of its own, assigned as in torch."""

    def __init__(self):
        self.linear, self.mean = nn.Linear(3, 1), nn.Buffer([3])

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
        return self.linear(x - self.mean)


def compiled(use_graph=True, rate=0.1):
    return Autoencoder().set_optimizer(rate).compile(X, use_graph=use_graph, random_state=0)


both = pytest.mark.parametrize("use_graph", [True, False])


@both
def test_a_part_that_is_compiled_by_itself_shares_its_weights(use_graph):
    model = compiled(use_graph)
    model.encoder.compile(X)
    for _ in range(2):
        model.train_one_batch(X, X)
        decoded = model.encoder(X) @ model.decoder.weight.numpy().T + model.decoder.bias.numpy()
        assert np.allclose(decoded, model.predict(X), atol=1e-6)
    assert list(model.state_dict()) == ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
    model.encoder.weight.set(0)
    model.encoder.bias.set(0)
    assert np.allclose(model(X), model.decoder.bias.numpy())


def test_models_that_share_a_layer_train_the_same_weights():
    shared = nn.Linear(3, 2)
    first, second = (Autoencoder(shared).set_optimizer("adam").compile(X, random_state=i) for i in range(2))
    for model in (first, second, first):
        before = shared.weight.numpy()
        model.train_one_batch(X, X)
        assert not np.array_equal(shared.weight.numpy(), before)
        for each in (first, second):
            assert np.array_equal(each.state_dict()["encoder.weight"], shared.weight.numpy())
            expected = (X @ shared.weight.numpy().T + shared.bias.numpy()) @ each.decoder.weight.numpy().T
            assert np.allclose(each(X), expected + each.decoder.bias.numpy(), atol=1e-6)


def test_a_file_has_the_weights_that_another_model_has_trained(tmp_path):
    shared = nn.Linear(3, 2)
    first, second = (Autoencoder(shared).set_optimizer(0.1).compile(X) for _ in range(2))
    second.train_one_batch(X, X)
    first.save_states(tmp_path / "first")
    weight = shared.weight.numpy()
    second.train_one_batch(X, X)
    first.load_states(tmp_path / "first")
    assert np.array_equal(second.state_dict()["encoder.weight"], weight)


@both
@pytest.mark.parametrize("name", ["is_trained", "requires_grad"])
def test_weights_are_frozen_and_thawed_at_any_time(name, use_graph):
    model = compiled(use_graph, "adam")
    model.train_one_batch(X, X)
    before = model.state_dict()
    for p in model.encoder.parameters():
        setattr(p, name, False)
    model.train_one_batch(X, X)
    after = model.state_dict()
    assert [n for n in after if not np.array_equal(after[n], before[n])] == ["decoder.weight", "decoder.bias"]
    for p in model.encoder.parameters():
        setattr(p, name, True)
    model.train_one_batch(X, X)
    assert not np.array_equal(model.encoder.weight.numpy(), after["encoder.weight"])


@both
@pytest.mark.parametrize("change", [
    lambda m: setattr(m, "optimizer", nn.Optimizer(0.01)), lambda m: setattr(m.optimizer, "rate", 0.01),
    lambda m: m.set_optimizer(0.01)], ids=["optimizer", "rate", "set_optimizer"])
def test_the_optimizer_changes_midway(change, use_graph):
    model, same = compiled(use_graph), compiled(use_graph)
    steps = []
    for m in (model, same):
        m.train_one_batch(X, X)
        before = m.decoder.bias.numpy()
        if m is model:
            change(m)
        m.train_one_batch(X, X)
        steps.append(m.decoder.bias.numpy() - before)
    assert np.allclose(steps[0], 0.1 * steps[1], atol=1e-7)


def test_a_new_rate_keeps_the_states_of_the_optimizer():
    model = compiled(rate="adam")
    for _ in range(3):
        model.train_one_batch(X, X)
    states = model._program.states()
    model.optimizer.rate = type(model.optimizer.rate)(0.5)
    model._program.follow()
    assert all(np.array_equal(a, states[n]) for n, a in model._program.states().items())
    model.train_one_batch(X, X)
    assert model._program.states()["optimizer.iteration"] == 4


@both
def test_a_layer_that_replaces_another_is_named(use_graph):
    model = compiled(use_graph)
    encoder = model.encoder.weight.numpy()
    model.decoder = nn.Linear(2, 3)
    for call in (lambda: model(X), lambda: model.train_one_batch(X, X), lambda: model.predict(X), model.to_onnx):
        with pytest.raises(ModelError, match=r"'decoder' of Autoencoder is another one .* compile it again"):
            call()
    model.compile(X).train_one_batch(X, X)
    assert not np.array_equal(model.encoder.weight.numpy(), encoder)


@pytest.mark.parametrize("value", [np.zeros((2, 3)), 1.0])
def test_a_parameter_is_not_replaced_by_numbers(value):
    model = compiled()
    with pytest.raises(SettingError, match="'weight' is a Parameter of Linear"):
        model.encoder.weight = value


@both
def test_a_buffer_is_assigned_its_next_value(use_graph):
    model = Centered().set_optimizer(0.1).compile(X, use_graph=use_graph)
    for _ in range(2):
        model.train_one_batch(X, X[:, :1])
    assert np.allclose(model.mean.numpy(), 0.75 * X.mean(0))
    model.predict(X)
    assert isinstance(model.mean, nn.Buffer)
    assert np.allclose(model.mean.numpy(), 0.75 * X.mean(0))


def test_modes_of_parts_are_followed_by_calls_in_training_mode():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).compile(X)
    model(X)
    tracked, mean = int(model[1].num_batches_tracked.numpy()), model[1].running_mean.numpy()
    model[1].eval()
    model(X)
    assert model[1].num_batches_tracked.numpy() == tracked
    assert np.array_equal(model[1].running_mean.numpy(), mean)


def test_parameters_of_an_optimizer_may_be_an_iterator():
    class Net(Autoencoder):
        def __init__(self):
            super().__init__()
            self.optimizer = nn.Optimizer("adam", self.parameters())

    model = Net().compile(X, random_state=0)
    model.fit(X, X, X_val=X, y_val=X, epochs=1)
    model.eval().train().train_one_batch(X, X)


def test_a_step_that_fails_is_written_again():
    class Failing(Autoencoder):
        fails = True

        def train_one_batch(self, x, y):
            output = self.forward(x)
            loss = ((output - y) ** 2).mean()
            self.optimizer(loss)
            return output, {"a": loss, "b": {1: loss, "1": loss}} if self.fails else loss

    model = Failing().set_optimizer(0.1).compile(X)
    for _ in range(2):
        with pytest.raises(Exception, match="rename the key"):
            model.train_one_batch(X, X)
    model.fails = False
    assert model.train_one_batch(X, X)[1] > 0

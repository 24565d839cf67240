"""The door of a module: `fit` as an optimizer's, whatever engine takes the steps."""

from collections import deque

import numpy as np
import pytest

from ortpartial import nn, op
from ortpartial.exceptions import (
    ConvergenceError,
    ConvergenceWarning,
    DataError,
    DeadlineError,
    ModelWarning,
    SettingError,
)
from ortpartial.execution import HeldRows
from ortpartial.learning import replace_settings
from ortpartial.native import find_compiler

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [-1.0], [0.5]])).astype(np.float32)
W = RNG.integers(0, 3, 50)


class Net(nn.Module):
    """Two layers, perhaps with masks between them."""

    def __init__(self, share: float = 0.0):
        self.first, self.last, self.drop = nn.Linear(4, 8), nn.Linear(8, 1), nn.Dropout(share)

    def forward(self, x):
        return self.last(self.drop(op.Relu(self.first(x))))


class TwoLosses(Net):
    def train_one_batch(self, x, y):
        output = self.forward(x)
        a, b = nn.Loss("square_error")(output, y), nn.Loss("absolute_error")(output, y)
        self.optimizer(a + b)
        return output, {"square": a, "absolute": b}


def make(rate="adam", share=0.0, kind=Net, **settings):
    return kind(share).set_optimizer(rate).compile(nn.placeholder(["N", 4]), random_state=0, **settings)


def assert_same(a, b, tolerance=0.0):
    for name, expected in b.state_dict().items():
        np.testing.assert_allclose(a.state_dict()[name], expected, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("engine", ["auto", "epoch", "step", "native"])
def test_every_engine_takes_the_steps_of_single_batches(engine, share):
    if engine == "native" and find_compiler() is None:
        pytest.skip("there is no C compiler")
    fitted = make(share=share, engine=engine).fit(X, Y, epochs=3, batch_size=8)
    single = make(share=share)
    losses = []
    for _ in range(3):
        rng = np.random.default_rng([*single._program.seed.view(np.uint32).tolist(), single._program.iteration])
        order, sums = rng.permutation(50), 0.0
        for rows in np.split(order, range(8, 50, 8)):
            sums += len(rows) * float(single.train_one_batch(X[rows], Y[rows])[1])
        losses.append(sums / 50)
    assert_same(fitted, single, 1e-6 if engine == "native" else 0.0)
    np.testing.assert_allclose([r["loss"] for r in fitted.history_], losses, rtol=1e-5)
    assert fitted.engine_ == ("epoch" if engine == "auto" else engine)
    assert fitted.engine_reason_


@pytest.mark.parametrize(("engine", "message"), [("fast", "engine='fast' is not known"), ("agent", "is one graph")])
def test_engines_that_a_module_does_not_have(engine, message):
    with pytest.raises(SettingError, match=message):
        make(engine=engine)


@pytest.mark.parametrize("rate", [0.1, "adam"])
def test_weights_are_those_of_rows_that_stand_several_times(rate):
    """One step on all rows; a row of weight 0 is left out."""
    weighted = make(rate).fit(X, Y, W, epochs=1, batch_size=50)
    repeated = make(rate).fit(np.repeat(X, W, 0), np.repeat(Y, W, 0), epochs=1, batch_size=200)
    assert_same(weighted, repeated, 1e-6)
    np.testing.assert_allclose(weighted.history_[0]["loss"], repeated.history_[0]["loss"], rtol=1e-5)


def test_a_step_of_ones_own_takes_weights_by_their_name():
    class Weighted(Net):
        def train_one_batch(self, x, y, sample_weight):
            output = self.forward(x)
            loss = nn.Loss("square_error")(output, y, sample_weight)
            self.optimizer(loss)
            return output, loss

    assert_same(make(kind=Weighted).fit(X, Y, W, epochs=2), make().fit(X, Y, W, epochs=2))
    with pytest.raises(DataError, match=r"TwoLosses\.train_one_batch takes no sample_weight; make it the last"):
        make(kind=TwoLosses).fit(X, Y, W)


@pytest.mark.parametrize("weights", [W[:9], -np.ones(50), np.full(50, np.nan)])
def test_weights_that_are_none(weights):
    with pytest.raises(DataError, match=r"sample_weight has the shape .* at least 0 for each of the 50 rows"):
        make().fit(X, Y, weights)


def test_a_share_of_the_rows_validates():
    model = make().fit(X, Y, epochs=2, X_val=0.2)
    assert [record["iteration"] for record in model.history_] == [2, 4]  # of 40 rows
    assert all(record["validation_loss"] > 0 for record in model.history_)
    again = make().fit(X, Y, epochs=2, X_val=0.2)
    assert_same(model, again)


def test_validation_every_other_epoch():
    model = make().fit(X, Y, epochs=4, X_val=X, y_val=Y, validation_every=2)
    assert ["validation_loss" in record for record in model.history_] == [False, True, False, True]


def test_changes_between_epochs_keep_the_rows_that_are_trained():
    """A step that is written anew goes on with them, and not with those that validate."""
    def halve(model):
        model.optimizer.rate = replace_settings(model.optimizer.rate, eta0=model.optimizer.rate.eta0 / 2)

    model, expected = make("sgd"), make("sgd")
    model.fit(X[8:], Y[8:], epochs=3, X_val=X[:8], y_val=Y[:8], callbacks=[halve])
    expected.fit(X[8:], Y[8:], epochs=3, callbacks=[halve])
    assert_same(model, expected)
    gradients = model.trainer.compute_gradients(None, None, None, np.random.default_rng(0))
    np.testing.assert_array_equal(*[each["first.weight_grad"] for each in (
        gradients, expected.trainer.compute_gradients(None, None, None, np.random.default_rng(0)))])


@pytest.mark.parametrize("engine", ["epoch", "step"])
@pytest.mark.parametrize("size", [3, 8, 64])
def test_validation_has_the_losses_of_evaluate(engine, size):
    """It takes parts of several batches, bound once."""
    model = make(engine=engine).fit(X, Y, epochs=2, batch_size=size, X_val=X[:30], y_val=Y[:30], metrics=["mae"])
    expected = model.evaluate(X[:30], Y[:30], batch_size=size, metrics=["mae"])
    assert model.history_[-1]["validation_loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert model.history_[-1]["val_mae"] == pytest.approx(expected["mae"], rel=1e-6)


def test_validation_runs_once_and_a_step_of_ones_own_by_batches(monkeypatch):
    counts = []
    run = HeldRows.run
    monkeypatch.setattr(HeldRows, "run", lambda self, *others: counts.append(len(self.rows["x"])) or run(self, *others))
    make().fit(X, Y, epochs=2, batch_size=8, X_val=X[:20], y_val=Y[:20])
    assert counts == [20, 20]

    class Own(Net):
        def train_one_batch(self, x, y):
            output = self.forward(x)
            loss = nn.Loss("square_error")(output, y)
            self.optimizer(loss)
            return output, loss

    make(kind=Own).fit(X, Y, epochs=1, batch_size=8, X_val=X[:20], y_val=Y[:20])
    assert counts[2:] == [8, 8, 4]


def test_several_losses_have_names():
    model = make(kind=TwoLosses).fit(X, Y, epochs=2, X_val=X, y_val=Y)
    assert {"loss_square", "loss_absolute", "validation_loss_square"} <= model.history_[-1].keys()
    assert "loss" not in model.history_[-1]


def test_a_step_that_diverges_in_the_middle_of_an_epoch_is_undone():
    x = X.copy()
    x[33] = np.inf
    model, healthy = (make("sgd") for _ in range(2))
    with pytest.raises(ConvergenceError, match=r"The loss is .* in epoch 1; the weights are those before that batch"):
        model.fit(x, Y, batch_size=8, shuffle=False)
    healthy.fit(X[:32], Y[:32], batch_size=8, shuffle=False, epochs=1)
    assert_same(model, healthy)


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_divergence_that_only_warns(is_joined):
    x = X.copy()
    x[33] = np.inf
    data = (x, Y) if is_joined else ([(x[i:i + 8], Y[i:i + 8]) for i in range(0, len(x), 8)],)
    model, healthy = (make("sgd") for _ in range(2))
    with pytest.warns(ConvergenceWarning, match=r"The loss is .* in epoch 1; the weights are those before"):
        model.fit(*data, batch_size=8, shuffle=False, raise_on_divergence=False)
    healthy.fit(X[:32], Y[:32], batch_size=8, shuffle=False, epochs=1)
    assert_same(model, healthy)


def test_a_timeout_ends_the_training():
    x, y = np.tile(X, (200, 1)), np.tile(Y, (200, 1))
    with pytest.raises(DeadlineError):
        make().fit(x, y, batch_size=1, epochs=1000, timeout=0.1)


def test_the_step_size_is_recorded():
    model = make(nn.Optimizer("sgd")).fit(X, Y, epochs=2)
    assert {record["learning_rate"] for record in model.history_} == {model.optimizer.rate.eta0}


def test_batches_may_be_a_list():
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 50, 10)]
    assert_same(make().fit(batches, epochs=2), make().fit(X, Y, epochs=2, batch_size=10, shuffle=False))


def test_a_callback_that_changes_the_optimizer_is_followed():
    def lower(module):
        module.optimizer.rate = 0.01

    rates = [record["learning_rate"] for record in make(0.1).fit(X, Y, epochs=3, callbacks=lower).history_]
    np.testing.assert_allclose(rates, [0.1, 0.01, 0.01])


class Convolutions(nn.Module):
    """Sizes are symbolic where the gradient is written, and those of a batch where it runs."""

    def __init__(self, share=0.0):
        self.conv, self.norm, self.pool = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.MaxPool2d(2)
        self.last = nn.Linear(12, 1)

    def forward(self, x):
        return self.last(op.Flatten(self.pool(op.Relu(self.norm(self.conv(x.reshape([-1, 1, 4, 4])))))))


@pytest.mark.parametrize("engine", ["step", "native"])
def test_convolutions_by_every_engine(engine):
    if engine == "native" and find_compiler() is None:
        pytest.skip("there is no C compiler")
    images = RNG.normal(size=(50, 16)).astype(np.float32)
    models = [Convolutions().set_optimizer(0.05).compile(nn.placeholder(["N", 16]), random_state=0, engine=name)
              .fit(images, Y, epochs=2, batch_size=8) for name in (engine, "epoch")]
    assert_same(*models, 0.0 if engine == "step" else 1e-5)


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"y_val": Y}, DataError, "X_val and y_val belong together; X_val is missing"),
    ({"resume": 3}, SettingError, "resume is the folder of a Checkpoint, or a file of it, not 3"),
    ({"callbacks": "early"}, SettingError, "callbacks is a sequence of callbacks, not 'early'"),
    ({"callbacks": 3}, SettingError, "callbacks is a sequence of callbacks, not 3"),
    ({"epochs": 2.0}, SettingError, r"epochs is a whole number of at least 1, not 2\.0; did you mean 2\?")])
def test_careless_settings(settings, error, message):
    with pytest.raises(error, match=message):
        make().fit(X, Y, **settings)


def test_numbers_that_are_none_are_named():
    x = X.copy()
    x[3, 1] = np.nan
    with pytest.raises(ConvergenceError, match=r"The loss is nan in epoch 1; .* The data hold NaN or infinite numbers"):
        make().fit(x, Y)


@pytest.mark.parametrize("use_graph", [True, False])
@pytest.mark.parametrize("call", [
    lambda model, y: model.fit(X, y, epochs=1), lambda model, y: model.fit([(X, y)], epochs=1),
    lambda model, y: model.train_one_batch(X, y)], ids=["fit", "batches", "train_one_batch"])
def test_one_hot_rows_are_told_of_once(call, use_graph):
    labels = np.eye(3, dtype=np.float32)[W]
    model = nn.Linear(4, 3).set_optimizer("sgd").compile(nn.placeholder(["N", 4]), use_graph=use_graph)
    with pytest.warns(ModelWarning, match="one-hot rows of labels, .* the square loss.* give y.argmax") as told:
        call(model, labels)
    assert len(told) == 1
    call(model, labels)
    nn.Linear(4, 3).set_optimizer("sgd").compile(nn.placeholder(["N", 4])).fit(X, labels + 0.5, epochs=1)

    class Own(nn.Linear):
        def train_one_batch(self, x, y):
            self.optimizer(loss := nn.Loss("square_error")(self.forward(x), y))
            return loss

    call(Own(4, 3).set_optimizer("sgd").compile(nn.placeholder(["N", 4]), use_graph=use_graph), labels)


def test_a_batch_without_arrays():
    with pytest.raises(DataError, match=r"^A batch is \(\), where the arrays of a step were expected, as in"):
        make().fit(X, Y, epochs=1, X_val=deque([()]))

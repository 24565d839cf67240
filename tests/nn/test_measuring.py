"""Metrics of a module's fit: the outputs that its losses compare, with their labels."""

import numpy as np
import pytest
import sklearn.metrics as theirs

from ortpartial import nn, op
from ortpartial.exceptions import DataError, SettingError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [-1.0], [0.5]])).astype(np.float32)
LABELS = (Y[:, 0] > 0).astype(np.int64)
W = RNG.integers(0, 3, 50).astype(np.float32)


class Net(nn.Module):
    def __init__(self, outputs=1):
        self.layer = nn.Linear(4, outputs)

    def forward(self, x):
        return self.layer(x)


class Single(Net):
    """A single score for labels that are real numbers; the loss alone is returned."""

    def train_one_batch(self, x, t):
        loss = nn.Loss("log_loss")(self.forward(x), t)
        self.optimizer(loss)
        return loss


class Several(Net):
    """Two outputs, of which one has two losses, and a loss of no target."""

    def train_one_batch(self, x, a, b):
        y = self.forward(x)
        loss = (nn.Loss("square_error")(y, a) + nn.Loss("absolute_error")(y, a)
                + nn.Loss("log_loss")(2 * y, b) + nn.Loss("square_error")(y, 0.0))
        self.optimizer(loss)
        return y, loss


class Written(Net):
    """A loss that the module writes itself."""

    def train_one_batch(self, x, t):
        y = self.forward(x)
        loss = op.ReduceMean(op.Abs(y - t), keepdims=0)
        self.optimizer(loss)
        return y, loss


class Silent(Net):
    def train_one_batch(self, x, t):
        loss = op.ReduceMean(op.Abs(self.forward(x) - t), keepdims=0)
        self.optimizer(loss)
        return loss


def make(kind=Net, outputs=1, **settings):
    return kind(outputs).set_optimizer("adam").compile(nn.placeholder(["N", 4]), random_state=0, **settings)


def last(module, *names):
    return [module.history_[-1][n] for n in names]


@pytest.mark.parametrize("use_graph", [True, False])
def test_default_step(use_graph):
    """Metrics are those of predictions, in parts of a batch, and change no weight."""
    fit = {"epochs": 2, "batch_size": 8, "X_val": X[:20], "y_val": Y[:20]}
    module = make(use_graph=use_graph).fit(X, Y, metrics=["r2", "train_mae"], **fit)
    plain = make(use_graph=use_graph).fit(X, Y, **fit)
    assert all(np.array_equal(a, plain.state_dict()[n]) for n, a in module.state_dict().items())
    np.testing.assert_allclose(last(module, "val_r2", "mae"), [
        theirs.r2_score(Y[:20], module.predict(X[:20])), theirs.mean_absolute_error(Y, module.predict(X))], rtol=1e-5)
    assert last(module, "validation_loss") == last(plain, "validation_loss")


def test_classes():
    module = make(outputs=2).fit(X, LABELS, epochs=2, metrics=["accuracy", "perplexity"], X_val=0.2)
    numbers = module.evaluate(X, LABELS, metrics=["accuracy", "perplexity"])
    assert np.isclose(numbers["accuracy"], (module.predict(X).argmax(1) == LABELS).mean())
    assert np.isclose(numbers["perplexity"], np.exp(numbers["loss"]), rtol=1e-5)
    assert {"val_accuracy", "val_perplexity"} <= module.history_[-1].keys()


def test_single_scores():
    t = LABELS[:, None].astype(np.float32)
    module = make(Single).fit(X, t, epochs=2, metrics=["accuracy", "roc_auc"])
    y = module.predict(X)
    np.testing.assert_allclose(last(module, "accuracy", "roc_auc"), [
        theirs.accuracy_score(LABELS, y[:, 0] > 0), theirs.roc_auc_score(LABELS, y[:, 0])])


def test_weights_of_rows():
    module = make().fit(X, Y, W, epochs=1, metrics=["r2"])
    assert np.isclose(last(module, "r2")[0], theirs.r2_score(Y, module.predict(X), sample_weight=W), rtol=1e-5)


def test_several_targets():
    def measure(t, y):
        return float(len(t))

    module = make(Several).fit(X, (Y, LABELS[:, None].astype(np.float32)), epochs=1, metrics=[measure])
    assert last(module, "a_measure", "b_measure") == [50, 50]
    with pytest.raises(SettingError, match="'accuracy' cannot be computed of the output 'a': SquareLearningLoss"):
        module.fit(X, (Y, LABELS[:, None].astype(np.float32)), metrics=["accuracy"])


def test_a_loss_that_is_written():
    module = make(Written).fit(X, Y, epochs=1, metrics=["mae"])
    assert np.isclose(last(module, "mae")[0], theirs.mean_absolute_error(Y, module.predict(X)), rtol=1e-5)


def test_what_is_not_known():
    with pytest.raises(DataError, match=r"train_one_batch computes no loss by nn.Loss, nor returns one output and"):
        make(Silent).fit(X, Y, metrics=["mae"])
    with pytest.raises(DataError, match=r"shape \(32, 1\) and the target of shape \(32, 3\) are not compared"):
        make(Written).fit(X, np.ones((50, 3), np.float32), metrics=["mae"])

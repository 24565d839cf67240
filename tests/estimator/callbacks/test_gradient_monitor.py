"""Norms of gradients: those of torch, in the history, and warnings where they vanish or explode."""

import numpy as np
import pytest
import torch
from models import linear, torch_linear, weights_of
from sklearn.linear_model import LogisticRegression
from trainings import ENGINES, W, X, Y, optimizer, same

from ortpartial.callbacks import GradientMonitor
from ortpartial.exceptions import ConvergenceWarning, DataError, SettingError
from ortpartial.learning import ElasticLearningPenalty


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
def test_gradients_are_those_of_torch(weights):
    o = optimizer(linear(), learning_penalty=ElasticLearningPenalty(l2=0.1)).fit(X, Y, weights)
    gradients = o.training_view().gradients(X, Y, weights)
    w = {n: torch.tensor(a, requires_grad=True) for n, a in o.trained_coef_.items()}
    rows = ((torch_linear(w, torch.tensor(X)) - torch.tensor(Y)) ** 2).mean(1)
    weigh = torch.ones(60) if weights is None else torch.tensor(weights)
    cost = sum(o.learning_penalty.l2 / 2 * (w[n] ** 2).sum() for n in o._spec.penalized)
    ((weigh * rows).sum() / weigh.sum() + cost).backward()
    assert gradients.keys() == weights_of(linear()).keys()
    for n, g in gradients.items():
        np.testing.assert_allclose(g, w[n].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("period", [None, 2])
def test_norms(engine, period):
    monitor = GradientMonitor(period)
    o = optimizer(engine=engine, callbacks=[monitor]).fit(X, Y)
    assert same(o, optimizer(engine=engine).fit(X, Y)), "it changes nothing"
    assert [n["iteration"] for n in monitor.norms_] == list(range(period or 6, 31, period or 6))
    assert {n["epoch"] for n in monitor.norms_} == {1, 2, 3, 4, 5}
    for norms in monitor.norms_:
        each = [norms[w] for w in o.weights_to_train]
        assert norms["global"] == pytest.approx(np.linalg.norm(each))
    means = [np.mean([n["global"] for n in monitor.norms_ if n["epoch"] == e]) for e in range(1, 6)]
    assert [r["gradient_norm"] for r in o.history_] == pytest.approx(means)


def test_batches_of_an_iterable():
    monitor = GradientMonitor(1)
    optimizer(max_iter=1, callbacks=[monitor]).fit([(X[:10], Y[:10]), (X[10:], Y[10:])])
    assert [n["iteration"] for n in monitor.norms_] == [1, 2]


@pytest.mark.parametrize(("settings", "word"), [({"vanishing": 1e3, "exploding": 1e9}, "vanishes"),
                                                ({"exploding": 1e-6}, "explodes")])
def test_warnings(settings, word):
    message = f"The gradient {word} at iteration 6: its norm is .*, that of "
    with pytest.warns(ConvergenceWarning, match=message) as caught:
        optimizer(callbacks=[GradientMonitor(**settings)]).fit(X, Y)
    assert len(caught) == 1, "once in a fit"


@pytest.mark.sklearn_callbacks
def test_errors():
    with pytest.raises(SettingError, match="an optimizer of ortpartial; LogisticRegression has none"):
        LogisticRegression().set_callbacks(GradientMonitor()).fit(X, Y[:, 0] > 0)
    with pytest.raises(DataError, match="There are no rows yet of which gradients could be computed; give X and y"):
        optimizer().training_view().gradients()

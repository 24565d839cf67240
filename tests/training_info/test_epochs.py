"""Epochs of a stored training: every row once, means over rows, evaluation without a step."""

import numpy as np
import pytest
from models import data, linear, mlp, net

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession
from ortpartial.exceptions import ConvergenceError
from ortpartial.training_info.epochs import train_epochs

X, Y, _ = data(20)
ROWS = {"x": X, "y_target": Y}


def make_session(model, **settings):
    return TrainingSession(OrtGradientForwardBackwardOptimizer(model, **settings).get_training_onnx())


def test_epochs_are_those_of_fit():
    """The last batch has fewer rows, and its loss counts less."""
    session = make_session(mlp(), learning_rate=0.05)
    losses = [means["loss"] for means, _ in train_epochs(session, ROWS, 3, 8)]
    expected = OrtGradientForwardBackwardOptimizer(mlp(), learning_rate=0.05, max_iter=3, batch_size=8, shuffle=False)
    np.testing.assert_allclose(losses, expected.fit(X, Y).train_losses_, rtol=1e-5)
    np.testing.assert_allclose(session.state["W1"], expected.trained_coef_["W1"], rtol=1e-5)


def test_a_declared_batch_is_filled_up():
    session = make_session(linear(rows=8), learning_rate=0.05)
    assert session.batch_size == 8
    read = []
    step = session.step
    session.step = lambda feeds: read.append(feeds["x"]) or step(feeds)
    validation = {n: a[:3] for n, a in ROWS.items()}
    list(train_epochs(session, ROWS, 1, 8, rng=np.random.default_rng(0), validation=validation))
    assert [len(x) for x in read] == [8, 8, 8]
    assert (np.concatenate(read)[20:] == read[0][:4]).all()
    assert len(np.unique(np.concatenate(read)[:20], axis=0)) == 20


def test_the_end_after_a_step():
    session, seen = make_session(linear()), []
    results = list(train_epochs(session, ROWS, 9, 5, after_step=lambda means: seen.append(means) or len(seen) == 6))
    assert len(results) == 2
    assert session.state["iteration"] == 6
    assert results[1][0] == seen[5]


def test_divergence():
    session = make_session(linear(), learning_rate=1e30)
    with pytest.raises(ConvergenceError, match=r"The output 'loss' is (inf|nan) in step 2 \(epoch 1\); lower the lear"):
        list(train_epochs(session, ROWS, 1, 5))


@pytest.mark.parametrize("settings", [{}, {"train_mode": True}], ids=["inference", "training"])
def test_evaluation_takes_no_step(settings):
    session = make_session(net(0.5), learning_rate=1e-3, **settings)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(6, 2, 5, 5)), "y_target": rng.normal(size=(6, 2))}
    before = session.state
    evaluated = session.evaluate(feeds)
    assert all((session.state[n] == a).all() for n, a in before.items())
    taken = session.step(feeds)
    assert evaluated.keys() == taken.keys() == set(session.outputs)
    for n, a in taken.items():
        np.testing.assert_allclose(evaluated[n], a, rtol=1e-5, atol=1e-6)
    assert session.evaluate(feeds)["loss"] != evaluated["loss"]
    assert session.shapes["x"][1:] == (2, 5, 5)

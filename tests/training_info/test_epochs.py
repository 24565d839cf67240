"""Epochs of a stored training: every row once, means over rows, evaluation without a step."""

import numpy as np
import pytest
from models import data, linear, mlp, net
from step_engines import list_step_engines

from ortpartial import (
    ElasticLearningPenalty,
    OrtGradientForwardBackwardOptimizer,
    TrainingSession,
    build,
    constant,
    variable,
)
from ortpartial.exceptions import ConvergenceError, DeadlineError
from ortpartial.training_info.epochs import train_epochs

X, Y, _ = data(20)
ROWS = {"x": X, "y_target": Y}


def make_session(model, engine="auto", **settings):
    return TrainingSession(OrtGradientForwardBackwardOptimizer(model, **settings).get_training_onnx(), engine=engine)


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


def take_over(session):
    """The session whose single steps are an error."""
    session.step = None
    return session


def trace(session, **settings):
    """The means of some epochs in new orders, the last batch of which has fewer rows, and the state after them."""
    validation = {n: a[:7] for n, a in ROWS.items()}
    rng = np.random.default_rng(3)
    return list(train_epochs(session, ROWS, 3, 8, rng=rng, validation=validation, **settings)), session.state


def test_the_order_is_that_of_a_permutation():
    """Steps by hand in the order of `Generator.permutation` come to the same bits."""
    session, rng = make_session(mlp()), np.random.default_rng(3)
    for _ in range(3):
        order = rng.permutation(20)
        for start in range(0, 20, 8):
            session.step({n: a[order[start : start + 8]] for n, a in ROWS.items()})
    state = trace(make_session(mlp()))[1]
    assert all((state[n] == a).all() for n, a in session.state.items())


@pytest.mark.parametrize("engine", ["epoch", *list_step_engines()[1:]])
def test_many_steps_in_one_run(engine):
    """Engines of epochs take no single steps, and come to the same numbers."""
    results, state = trace(take_over(make_session(mlp(), engine)))
    expected, other = trace(make_session(mlp()))
    for (means, validated), (a, b) in zip(results, expected, strict=True):
        assert means.keys() == validated.keys() == a.keys() == {"loss"}
        assert (means["loss"], validated["loss"]) == pytest.approx((a["loss"], b["loss"]), rel=1e-5)
    for n, a in other.items():
        np.testing.assert_allclose(state[n], a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("model", "settings"), [
    (mlp(), {"learning_penalty": ElasticLearningPenalty(l2=0.1)}), (linear(rows=8), {})], ids=["two numbers", "size"])
def test_single_steps_where_an_epoch_is_no_run(model, settings):
    """A step that returns two numbers, and a batch that is filled up, are the same with every engine."""
    (results, state), (expected, other) = (trace(make_session(model, e, **settings)) for e in ("epoch", "auto"))
    assert results == expected
    assert all((state[n] == a).all() for n, a in other.items())


@pytest.mark.parametrize("engine", ["auto", "epoch", *list_step_engines()[1:]])
def test_divergence(engine):
    """The step that diverges is undone."""
    session = make_session(linear(), engine, learning_rate=1e30)
    with pytest.raises(ConvergenceError, match=r"The output 'loss' is (inf|nan) in step 2 \(epoch 1\); lower the lear"):
        list(train_epochs(session, ROWS, 1, 5))
    assert session.state["iteration"] == 1
    assert all(np.isfinite(a).all() for a in session.state.values())


@pytest.mark.parametrize("engine", ["auto", "epoch"])
def test_a_timeout_ends_the_training(engine):
    session = make_session(mlp(), engine)
    next(train_epochs(session, ROWS, 1, 8))
    before = session.state["iteration"]
    with pytest.raises(DeadlineError, match=r"was not over after .* s, the timeout"):
        list(train_epochs(session, ROWS, 10**9, 8, timeout=0.2))
    assert session.state["iteration"] > before


def test_an_array_without_axes_is_the_same_for_every_row():
    x, scale, w = variable("x", "float32", ["N", 4]), variable("scale", "float32", []), constant(
        np.ones((4, 1), np.float32), hint="w")
    session = make_session(build([x, scale], {"y": x @ w * scale}), "epoch")
    rows = {**ROWS, "scale": np.float32(0.5)}
    losses = [means["loss"] for means, _ in train_epochs(session, rows, 2, 8, validation=rows)]
    assert losses[1] < losses[0]


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

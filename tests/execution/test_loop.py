"""The training loop: epochs, validation, callbacks, divergence, and where it goes on."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
from models import linear
from trainings import ENGINES, X_VAL, Y_VAL, W, X, Y, linear_engine, optimizer, same

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.estimator.predictor import Predictor
from ortpartial.estimator.spec_door import SpecDoor
from ortpartial.estimator.state import TrainingState
from ortpartial.estimator.validation import DataAdapter
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DataError, SettingError
from ortpartial.execution import FitSettings, FitTasks, Loop
from ortpartial.execution import StepRunner as Engine
from ortpartial.graph import build, constant, op, variable
from ortpartial.learning.losses import ElasticLearningLoss
from ortpartial.learning.optimizers import LearningRateSGDNesterov
from ortpartial.learning.penalties import ElasticLearningPenalty


@pytest.mark.parametrize("engine", ENGINES)
def test_head_of_the_design(engine):
    train_session = Optimizer(
        linear(), ["coef", "intercept"],
        learning_rate=LearningRateSGDNesterov(),
        learning_loss=ElasticLearningLoss(l1_weight=0.1, l2_weight=0.9),
        learning_penalty=ElasticLearningPenalty(l1=0.1, l2=0.9), engine=engine)
    train_session.fit(X, Y, W)
    state_tensors = train_session.get_state()
    losses = train_session.train_losses_
    assert [a.shape for a in state_tensors] == [(4, 1), (1,)]
    assert len(losses) == train_session.n_iter_ == 100
    assert losses[-1] < losses[0]
    assert (train_session.engine_, train_session.engine_reason_) == (engine, "asked for")


def test_fit():
    o = optimizer()
    assert o.fit(X, Y, W, X_VAL, Y_VAL) is o
    assert (len(o.train_losses_), len(o.validation_losses_), o.n_iter_) == (5, 5, 5)
    assert o.train_losses_[-1] < o.train_losses_[0]
    assert np.isclose(o.validation_losses_[-1], o.losses(X_VAL, Y_VAL).mean())


@pytest.mark.parametrize(("every", "count"), [(0.1, 10), (0.25, 4), (1, 20), (7, 3), (1000, 1), (1e-9, 20)])
def test_validation(every, count):
    o = optimizer(max_iter=20, validation_every=every).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert len(o.validation_losses_) == count
    assert same(o, optimizer(max_iter=20).fit(X, Y))


def test_train_losses_are_those_before_each_step():
    o = optimizer(shuffle=False, max_iter=1, batch_size=60)
    before = o.losses(X, Y)
    o.fit(X, Y, W)
    assert np.isclose(o.train_losses_[0], np.average(before, weights=W))


def test_fit_starts_again_and_warm_start_goes_on():
    once, again, warm = optimizer(max_iter=6), optimizer(max_iter=6), optimizer(max_iter=3, warm_start=True)
    once.fit(X, Y)
    assert same(once, again.fit(X, Y).fit(X, Y))
    assert same(once, warm.fit(X, Y).fit(X, Y))
    step_by_step = optimizer()
    for _ in range(6):
        assert step_by_step.partial_fit(X, Y) is step_by_step
    assert same(once, step_by_step)


def test_fit_takes_other_data_the_next_time():
    o = optimizer().fit(X, Y).fit(X[:33], Y[:33], W[:33])
    assert same(o, optimizer().fit(X[:33], Y[:33], W[:33]))


@pytest.mark.parametrize("seed", [0, np.random.default_rng(0), np.random.SeedSequence(0)], ids=type)
def test_random_state(seed):
    a, b = (optimizer(random_state=copy.deepcopy(seed)).fit(X, Y) for _ in range(2))
    assert same(a, b)
    assert not same(a, optimizer(random_state=1).fit(X, Y))


def test_fewer_rows_than_a_batch():
    assert same(optimizer(shuffle=False).fit(X[:3], Y[:3]), optimizer(batch_size=3, shuffle=False).fit(X[:3], Y[:3]))


@pytest.mark.parametrize("answer", [True, None, 1])
def test_callbacks(answer):
    seen = []
    o = optimizer(callbacks=[lambda o: answer, lambda o: seen.append(o.n_iter_)])
    o.fit(X, Y)
    assert seen == ([1] if answer is True else [1, 2, 3, 4, 5])


def test_interrupted():
    def interrupt(o):
        if o.n_iter_ == 2:
            raise KeyboardInterrupt

    o = optimizer(callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        o.fit(X, Y)
    assert same(o, optimizer(max_iter=2).fit(X, Y))
    o.callbacks = ()
    for _ in range(3):
        o.partial_fit(X, Y)
    assert same(o, optimizer().fit(X, Y))


def test_divergence_of_a_weight():
    """The loss of a batch is finite, and the gradient of a weight is not: 0 · NaN."""
    x = variable("x", "float32", ["N", 2])
    w, v = (constant(np.ones(2, np.float32), hint=n) for n in "wv")
    y = x * w
    model = build([x], {"y": op.ReduceSum(op.Where(op.IsNaN(y), v, y), [1])})
    o = Optimizer(model, ["w"], batch_size=2)
    with pytest.raises(ConvergenceError, match=r"The loss is [\d.]+, and a weight is NaN or infinite, at iteration 1 "):
        o.fit(np.array([[1, np.nan], [2, 3]], np.float32), np.zeros((2, 1), np.float32))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("exc", [True, False])
def test_divergence(engine, exc):
    """The weights are those of the last finite step: one more batch and they are not."""
    o = optimizer(linear(), learning_rate=30.0, engine=engine, raise_on_divergence=exc)
    with pytest.raises(ConvergenceError) if exc else pytest.warns(ConvergenceWarning) as caught:
        o.fit(X, Y)
    message = str(caught.value if exc else caught[0].message)
    found = re.match(r"The loss is .* at iteration (\d+) \(epoch (\d+)\) with LearningRateSGD\(eta0=30.0, .*\); the "
                     r"weights are those of iteration (\d+)\. Lower the rate, or scale X and y\.", message)
    at, epoch, last = map(int, found.groups())
    assert (last, epoch, o.n_iter_, len(o.train_losses_)) == (at - 1, (at - 1) // 6 + 1, epoch - 1, epoch - 1)
    assert all(np.isfinite(a).all() for a in o.get_state())
    expected = optimizer(linear(), learning_rate=30.0, engine=engine, max_iter=epoch - 1)
    expected.fit(X, Y)
    order = expected._rng.permutation(60)[: (last - 6 * (epoch - 1)) * 10]
    if len(order):
        expected.shuffle = False
        expected.partial_fit(X[order], Y[order])
    assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))
    if not exc:
        assert caught[0].filename == __file__
        with pytest.warns(ConvergenceWarning) as caught:
            o.partial_fit(1e30 * X, Y)
        assert caught[0].filename == __file__
    o.predict(X)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_single_step_that_diverges(engine, monkeypatch):
    """What it has read is still there: nothing is copied before it."""
    o = optimizer(linear(), learning_rate=LearningRateSGDNesterov(), engine=engine, batch_size=60).partial_fit(X, Y)
    before, copies, snapshot = o.get_state() + o.get_state("optimizer"), [], Engine.snapshot

    def count(self, *, copy=True):
        copies.append(copy)
        return snapshot(self, copy=copy)

    monkeypatch.setattr(Engine, "snapshot", count)
    with pytest.raises(ConvergenceError, match=r"at iteration 2 .* the weights are those of iteration 1"):
        o.partial_fit(1e30 * X, Y)
    assert not copies[0]
    assert all((a == b).all() for a, b in zip(before, o.get_state() + o.get_state("optimizer"), strict=True))


def test_goes_on_after_divergence():
    o = optimizer(linear(), learning_rate=30.0)
    with pytest.raises(ConvergenceError):
        o.fit(X, Y)
    o.set_state([np.zeros((4, 1)), np.zeros(1)])
    assert o.partial_fit(X[:10], Y[:10]).n_iter_ >= 1


def test_a_loop_without_an_optimizer():
    """It trains as an optimizer does, and settings that are replaced between two epochs count from the next one on."""
    engine = linear_engine()
    spec = engine.source.spec
    predictor = Predictor(spec, engine, DataAdapter(spec))
    door = SpecDoor(spec, engine, predictor, TrainingState(spec, engine))
    loop = Loop(engine, door, FitSettings(max_iter=5, random_state=0))
    loop.fit(X, Y, W, X_VAL, Y_VAL)
    o = optimizer(linear()).fit(X, Y, W, X_VAL, Y_VAL)
    assert (loop.train_losses, loop.validation_losses, loop.n_iter) == (o.train_losses_, o.validation_losses_, 5)
    assert all((engine.get(n) == a).all() for n, a in o.trained_coef_.items())

    def notify(_):
        loop.settings = replace(loop.settings, batch_size=60)
        return loop.n_iter == 3

    loop.settings = replace(loop.settings, callbacks=[notify])
    loop.fit(X, Y, None, None, None, FitTasks(None, loop, X, Y))
    assert (loop.n_iter, engine.iteration) == (3, 6 + 1 + 1)
    loop.partial_fit(X, Y, None)
    assert (loop.n_iter, engine.iteration) == (4, 9)


# -- metrics -------------------------------------------------------------------------------------------------------


def columns(o, name):
    return [record[name] for record in o.history_ if name in record]


def test_metrics_of_validation_and_of_training_rows():
    o = optimizer(metrics=["r2", "mae", "train_mae"], validation_every=2, max_iter=6)
    o.fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert same(o, optimizer(max_iter=6).fit(X, Y)), "metrics change no weight"
    assert [record["epoch"] for record in o.history_ if "val_r2" in record] == [2, 4, 6]
    assert columns(o, "val_r2")[-1] == o.score(X_VAL, Y_VAL)
    assert np.isclose(columns(o, "mae")[-1], np.abs(o.predict(X) - Y).mean())
    assert np.isclose(columns(o, "val_mae")[-1], np.abs(o.predict(X_VAL) - Y_VAL).mean())
    assert o.validation_losses_ == optimizer(max_iter=6, validation_every=2).fit(
        X, Y, X_val=X_VAL, y_val=Y_VAL).validation_losses_


def test_metrics_without_validation_are_those_of_the_training_rows():
    o = optimizer(metrics=["r2"]).fit(X, Y, W)
    assert len(columns(o, "r2")) == 5
    assert np.isclose(columns(o, "r2")[-1], o.score(X, Y, W))


def test_metrics_share_the_pass_of_the_loss(monkeypatch):
    opened, held = list_runs(monkeypatch)
    optimizer(metrics=["r2", "mae"], max_iter=3).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert opened == ["measured losses"] * 2, "one before the training, that they can be computed"
    assert held == [True] * 3


def test_rows_with_weights_are_held_as_others(monkeypatch):
    opened, held = list_runs(monkeypatch)
    o = optimizer(max_iter=3).fit(X, Y, X_val=[(X_VAL, Y_VAL, np.ones(len(X_VAL)))])
    assert (opened, held) == (["losses"], [False] * 3)
    assert o.validation_losses_ == optimizer(max_iter=3).fit(X, Y, X_val=X_VAL, y_val=Y_VAL).validation_losses_


def list_runs(monkeypatch):
    """Lists of the graphs of predictors that are looked up, and of runs on rows that are held."""
    opened, held = [], []
    look_up, run = Predictor._open, Predictor._run_held
    monkeypatch.setattr(Predictor, "_open", lambda self, graph, *rest: opened.append(graph) or look_up(
        self, graph, *rest))
    monkeypatch.setattr(Predictor, "_run_held", lambda self, rows, is_measured: held.append(is_measured) or run(
        self, rows, is_measured))
    return opened, held


def test_metrics_of_batches():
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)]
    o = optimizer(metrics=["r2", "train_r2"]).fit(batches, X_val=[(X_VAL[:5], Y_VAL[:5]), (X_VAL[5:], Y_VAL[5:])])
    assert np.isclose(columns(o, "val_r2")[-1], o.score(X_VAL, Y_VAL))
    assert np.isclose(columns(o, "r2")[-1], o.score(X, Y))
    once = optimizer(metrics=["r2"], max_iter=1).fit(iter(batches), X_val=batches)
    assert np.isclose(columns(once, "val_r2")[-1], once.score(X, Y))
    with pytest.raises(DataError, match="'r2' is computed of the rows that are trained, and X gives its batches once"):
        optimizer(metrics=["r2"], max_iter=1).fit(iter(batches))


def test_metrics_beside_a_validation_step():
    class Own(Optimizer):
        def validation_step(self, batch):
            return {"loss": 3.0, "other": 4.0}

    model = linear()
    for X_val in (0.25, iter([(X_VAL, Y_VAL)])):
        record = Own(model, metrics=["r2"], max_iter=1, random_state=0).fit(X, Y, X_val=X_val).history_[-1]
        assert (record["validation_loss"], record["validation_other"]) == (3, 4)
        assert np.isfinite(record["val_r2"])


def test_a_metric_that_cannot_be_computed_is_an_error_before_the_training():
    o = optimizer(metrics=["accuracy"])
    with pytest.raises(SettingError, match="metrics: 'accuracy' cannot be computed of the output 'y': SquareLearning"):
        o.fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert o.n_iter_ == 0


def test_metrics_are_shown(capsys):
    optimizer(metrics=["r2"], verbose=2, max_iter=1).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert "val_r2=" in capsys.readouterr().out


def test_a_callback_changes_metrics():
    """From the next epoch on; another fit has none of the former."""
    o = optimizer(callbacks=[lambda o: o.set_params(metrics=["mae"])], max_iter=2).fit(X, Y)
    assert [sorted({"mae", "r2"} & record.keys()) for record in o.history_] == [[], ["mae"]]
    o.set_params(metrics=(), callbacks=())
    assert o.fit(X, Y)._loop.last_metrics == {}

"""The tasks of a fit that callbacks are told of: their order, pieces of epochs, stops and errors; and the history."""

import copy
import pickle

import numpy as np
import pytest
from models import linear
from once import ON_BOTH
from trainings import ENGINES, X_VAL, Y_VAL, W, X, Y, optimizer, same

from ortpartial.exceptions import ConvergenceError, DeadlineError, SettingError
from ortpartial.execution.shape_policy import ShapePolicy


class Spy:
    """Writes down what it is told, and does what it is asked to at the end of a task."""

    def __init__(self, period=None, act=lambda estimator, context: None):
        self.batches_between_calls, self.act, self.seen = period, act, []

    def setup(self, estimator, context):
        self.seen.append(("setup", context.task_name, context.task_id))

    def on_fit_task_begin(self, estimator, context):
        self.seen.append(("begin", context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context):
        self.seen.append(("end", context.task_name, context.task_id))
        return self.act(estimator, context)

    def teardown(self, estimator, context):
        self.seen.append(("teardown", context.task_name, context.task_id))

    @property
    def ends(self):
        return [seen[1:] for seen in self.seen if seen[0] == "end"]


def within(name, act):
    """Do something at the end of tasks of this name alone."""
    return lambda estimator, context: act(estimator) if context.task_name == name else None


def test_the_tasks_of_a_fit_in_their_order():
    spy, told = Spy(period=4), []
    o = optimizer(max_iter=2, callbacks=[spy, lambda o: told.append((o.n_iter_, spy.seen[-1]))]).fit(X, Y)
    fit = [("begin", "fit", 0)]
    for epoch in range(2):
        fit += [("begin", "epoch", epoch), ("begin", "batches", 0), ("end", "batches", 0), ("begin", "batches", 1),
                ("end", "batches", 1), ("end", "epoch", epoch)]
    assert spy.seen == [("setup", "fit", 0), *fit, ("end", "fit", 0), ("teardown", "fit", 0)]
    assert told == [(1, ("end", "epoch", 0)), (2, ("end", "epoch", 1))], "functions take their turn after epochs"
    assert same(o, optimizer(max_iter=2).fit(X, Y))


def test_contexts():
    contexts = []
    spy = Spy(4, lambda estimator, context: contexts.append(context))
    optimizer(max_iter=1, callbacks=[spy]).fit(X, Y)
    first, second, epoch, fit = contexts
    assert (first.parent, second.parent, epoch.parent, fit.parent) == (epoch, epoch, fit, None)
    assert [c.max_subtasks for c in contexts] == [0, 0, 2, 1]
    assert {c.root_uuid for c in contexts} == {fit.root_uuid}
    assert {c.estimator_name for c in contexts} == {"OrtGradientForwardBackwardOptimizer"}
    assert fit.init_time <= epoch.init_time <= first.init_time
    assert "task_name='batches', task_id=1" in repr(second)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("period", [1, 2, 4, 6, 100])
@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
def test_an_epoch_in_pieces_is_the_whole_one(engine, period, weights, monkeypatch):
    """To the last bit, and so is its mean, whatever the pieces are and how many steps a run of the engine takes."""
    monkeypatch.setattr("ortpartial.execution.epoch_engine._CHUNK", 3)
    settings = {"engine": engine, "max_iter": 3, "batch_size": 8, "learning_rate": "Adam"}
    spy = Spy(period)
    o = optimizer(**settings, callbacks=[spy]).fit(X[:59], Y[:59], weights if weights is None else weights[:59])
    assert same(o, optimizer(**settings).fit(X[:59], Y[:59], weights if weights is None else weights[:59]))
    assert spy.ends.count(("batches", 0)) == 3
    assert len([e for e in spy.ends if e[0] == "batches"]) == 3 * -(-8 // period)


def test_pieces_for_several_callbacks():
    a, b, c = Spy(2), Spy(3), Spy()
    o = optimizer(max_iter=1, batch_size=6, callbacks=[a, b, c]).fit(X, Y)
    assert [e[1] for e in a.ends if e[0] == "batches"] == [0, 2, 3, 4, 6]
    assert [e[1] for e in b.ends if e[0] == "batches"] == [1, 3, 5, 6]
    assert c.ends == [("epoch", 0), ("fit", 0)]
    assert same(o, optimizer(max_iter=1, batch_size=6).fit(X, Y))


@pytest.mark.parametrize("period", [1, 3])
def test_pieces_use_the_programs_of_a_whole_epoch(period, monkeypatch):
    """A shape gets a program of its own before an epoch with which it has come often, and not within it."""
    monkeypatch.setattr("ortpartial.execution.shape_policy._PAYS_AFTER", 12)
    choices = []

    def choose(self, shapes, steps, size, choose=ShapePolicy.choose):
        choice = shapes[0][1][0], choose(self, shapes, steps, size)
        if choices[-1][-1:] != [choice]:  # That of the next piece is the same one.
            choices[-1].append(choice)
        return choice[1]

    monkeypatch.setattr(ShapePolicy, "choose", choose)
    trained = []
    for callbacks in ([], [Spy(period)]):
        o = optimizer(warm_start=True, max_iter=1, learning_rate="Adam", callbacks=callbacks)
        choices.append([])
        for rows in (17, 15, 13, 57, 57):
            o.fit(X[:rows], Y[:rows])
        trained.append(o)
    assert choices[0] == choices[1]
    assert choices[0][-4:] == [(10, False), (7, False), (10, True), (7, False)]
    assert trained[0]._engine._policy.state == trained[1]._engine._policy.state
    assert same(*trained)


def test_pieces_of_an_iterable():
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)]
    spy = Spy(4)
    o = optimizer(max_iter=2, callbacks=[spy]).fit(batches)
    assert same(o, optimizer(max_iter=2).fit(batches))
    assert spy.ends == [("batches", 0), ("batches", 1), ("epoch", 0), ("batches", 0), ("batches", 1), ("epoch", 1),
                        ("fit", 0)]
    spy = Spy(2)
    optimizer(max_iter=1, callbacks=[spy]).fit(iter(batches))
    assert spy.seen.count(("begin", "batches", 2)) == spy.seen.count(("end", "batches", 2)) == 1


@pytest.mark.parametrize("is_iterable", [False, True])
def test_a_rate_that_changes_within_an_epoch(is_iterable):
    data = ([(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)],) if is_iterable else (X, Y)
    spy = Spy(3, lambda o, context: o.set_params(learning_rate=0.025) and None)
    o = optimizer(max_iter=1, shuffle=False, callbacks=[spy]).fit(*data)
    expected = optimizer(max_iter=1, shuffle=False, learning_rate=0.05).partial_fit(X[:30], Y[:30])
    expected.set_params(learning_rate=0.025).partial_fit(X[30:], Y[30:])
    assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))
    assert o.train_losses_ == pytest.approx([np.mean(expected.train_losses_)])
    assert o.history_[0]["learning_rate"] == np.float32(0.025)


@pytest.mark.parametrize("is_iterable", [False, True])
def test_a_callback_trains_on_other_rows_within_an_epoch(is_iterable):
    data = ([(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)],) if is_iterable else (X, Y)
    spy = Spy(3, lambda o, context: o.partial_fit(X_VAL[:20], Y_VAL[:20]) and None if context.task_id == 0
              and context.task_name == "batches" else None)
    o = optimizer(max_iter=1, shuffle=False, callbacks=[spy]).fit(*data)
    expected = optimizer(shuffle=False).partial_fit(X[:30], Y[:30]).partial_fit(X_VAL[:20], Y_VAL[:20])
    expected.partial_fit(X[30:], Y[30:])
    assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))
    whole = np.mean(np.take(expected.train_losses_, [0, 2]))
    assert o.train_losses_ == pytest.approx([expected.train_losses_[1], whole])


@pytest.mark.parametrize("is_iterable", [False, True])
def test_a_stop_within_an_epoch_ends_it_and_the_fit(is_iterable, capsys):
    data = ([(X[i : i + 10], Y[i : i + 10]) for i in range(0, 60, 10)],) if is_iterable else (X, Y)
    spy = Spy(2, lambda o, context: context.task_name == "batches" and context.task_id == 1)
    o = optimizer(verbose=2, callbacks=[spy]).fit(*data)
    assert spy.ends == [("batches", 0), ("batches", 1), ("epoch", 0), ("fit", 0)]
    assert (o.get_state("optimizer")[-1], o.n_iter_, len(o.train_losses_)) == (4, 1, 1)
    assert capsys.readouterr().out.splitlines()[-1] == "training ended after 1 of 5 epochs: stopped by Spy"


def test_a_stop_after_an_epoch_names_who_asked(capsys):
    o = optimizer(verbose=2, callbacks=[Spy(act=lambda o, context: np.bool_(context.task_name == "epoch"))]).fit(X, Y)
    assert capsys.readouterr().out.splitlines()[-1] == "training ended after 1 of 5 epochs: stopped by Spy"
    assert o.n_iter_ == 1


def interrupt(o):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("settings", "act", "error"),
    [({}, lambda o: 1 / 0, ZeroDivisionError), ({}, interrupt, KeyboardInterrupt),
     ({"timeout": 0.05, "max_iter": 10**6}, lambda o: None, DeadlineError),
     ({"learning_rate": 1e30}, lambda o: None, ConvergenceError)],
    ids=["error", "interrupt", "timeout", "divergence"])
def test_teardown_after_an_error(settings, act, error):
    spies = [Spy(act=within("epoch", act)), Spy(2)]
    with pytest.raises(error):
        optimizer(linear(), callbacks=spies, **settings).fit(X, Y)
    for spy in spies:
        assert (spy.seen[-1], spy.seen.count(("teardown", "fit", 0))) == (("teardown", "fit", 0), 1)
        assert ("fit", 0) not in spy.ends, "it did not end, it was ended"


def test_errors_of_setup_and_teardown(caplog):
    """Only what has been set up is torn down, all of it, and the first error is the one that is raised."""
    first, second, third = Spy(), Spy(), Spy()
    second.setup = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        optimizer(callbacks=[first, second, third]).fit(X, Y)
    assert first.seen == [("setup", "fit", 0), ("teardown", "fit", 0)]
    assert (len(second.seen), third.seen) == (1, [])
    first, second = Spy(), Spy()
    second.teardown = lambda *_: 1 / 0
    o = optimizer(callbacks=[first, second])
    with pytest.raises(ZeroDivisionError):
        o.fit(X, Y)
    assert (first.seen[-1], o.n_iter_) == (("teardown", "fit", 0), 5)
    first.act = lambda estimator, context: interrupt(estimator)
    with pytest.raises(KeyboardInterrupt):
        o.fit(X, Y)
    assert "the teardown of a callback failed" in caplog.text


def test_data_that_do_not_fit_are_an_error_before_anything_is_set_up():
    spy = Spy()
    with pytest.raises(ValueError):
        optimizer(callbacks=[spy]).fit(X, Y[:3])
    assert spy.seen == []


def test_what_a_hook_asks_for():
    told, fitted = [], []

    class Asking(Spy):
        def on_fit_task_begin(self, estimator, context, *, X):
            told.append(X)

        def on_fit_task_end(self, estimator, context, *, y, metadata, fitted_estimator=None):
            told.append((y, metadata))
            fitted.append(fitted_estimator)

    o = optimizer(max_iter=2, callbacks=[Asking()]).fit(X, Y, W)
    assert told[0] is X
    assert told[2][0] is Y
    assert told[2][1] == {"sample_weight": W}
    assert [f.n_iter_ for f in fitted] == [1, 2, 2]
    expected = optimizer(max_iter=1).fit(X, Y, W)
    np.testing.assert_array_equal(fitted[0].predict(X), expected.predict(X))
    np.testing.assert_array_equal(fitted[1].predict(X), o.predict(X))
    assert fitted[0].callbacks == ()


class Lacking:
    def setup(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        pass


class Curious(Spy):
    def on_fit_task_end(self, estimator, context, *, loss):
        pass


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Spy, "callbacks are objects, and Spy is a class; give Spy()."),
        (Lacking(), "The callback Lacking has setup and on_fit_task_end and lacks on_fit_task_begin and teardown; a "
                    "callback has the hooks setup, on_fit_task_begin, on_fit_task_end and teardown."),
        (Curious(), "on_fit_task_end of the callback Curious asks for 'loss'; its keyword-only parameters are some of "
                    "X, y, metadata and fitted_estimator."),
        (Spy(0), "batches_between_calls of the callback Spy is None or a whole number of at least 1, not 0."),
        ("early stopping", "'early stopping' is neither."),
    ])
def test_what_is_no_callback(callback, message):
    with pytest.raises(SettingError) as error:
        optimizer(callbacks=[callback])
    assert message in str(error.value)


def test_the_same_callback_twice():
    spy = Spy()
    with pytest.raises(SettingError, match=r"^callbacks has the same Spy twice; give it once\.$"):
        optimizer(callbacks=[spy, Spy(), spy])
    epochs = []
    optimizer(max_iter=2, callbacks=(f for f in [lambda o: epochs.append(o.n_iter_)] * 2)).fit(X, Y)
    assert epochs == [1, 1, 2, 2]


def test_callbacks_that_take_the_place_of_others():
    """They are set up before the next epoch; all are torn down."""
    later = Spy()
    first = Spy(act=within("epoch", lambda o: setattr(o, "callbacks", [later])))
    optimizer(max_iter=2, callbacks=[first]).fit(X, Y)
    assert first.ends == [("epoch", 0)]
    assert later.ends == [("epoch", 1), ("fit", 0)]
    assert first.seen[-1] == later.seen[-1] == ("teardown", "fit", 0)


def test_the_same_callback_in_several_fits():
    spy = Spy()
    o = optimizer(max_iter=1, callbacks=[spy]).fit(X, Y)
    assert o.fit(X, Y)._loop.settings.callbacks == (spy,)
    assert len(spy.seen) == 12
    assert spy.seen[:6] == spy.seen[6:]


# -- the history -----------------------------------------------------------------------------------------------------


def test_history():
    o = optimizer(max_iter=4, learning_rate="Adam", validation_every=2, batch_size=20)
    assert o.history_ == []
    o.set_params(learning_rate__schedule="cosine").fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    history = o.history_
    assert [r["epoch"] for r in history] == [1, 2, 3, 4]
    assert [r["iteration"] for r in history] == [3, 6, 9, 12]
    assert [r["loss"] for r in history] == o.train_losses_
    assert [r.get("validation_loss") for r in history] == [None, o.validation_losses_[0], None, o.validation_losses_[1]]
    assert all(r["seconds"] > 0 for r in history)
    rates = [r["learning_rate"] for r in history]
    assert rates == sorted(rates, reverse=True)
    assert all(type(r) is float for r in rates)
    history[0]["note"] = 3
    history.append({})
    assert [o.history_[0]["note"], len(o.history_)] == [3, len(history) - 1], "a record stays, and the list is a copy"
    for other in (copy.deepcopy(o), pickle.loads(pickle.dumps(o)), copy.copy(o).set_params(engine="step")):
        assert other.history_ == o.history_
    o.warm_start = True
    o.partial_fit(X, Y).fit(X, Y)
    assert [r["epoch"] for r in o.history_] == list(range(1, 10))


def test_rates_in_the_history_are_those_of_their_time():
    """Computed when they are read, from what the training was like."""
    rates = []
    o = optimizer(max_iter=4, callbacks=[lambda o: rates.append(o.learning_rate_),
                                         lambda o: o.set_params(learning_rate=o.learning_rate.eta0 / 2) and None])
    o.fit(X, Y)
    assert [r["learning_rate"] for r in o.history_] == rates


def test_the_view_of_a_training():
    views = []
    spy = Spy(4, lambda o, context: views.append(o.training_view()))
    o = optimizer(max_iter=2, callbacks=[spy]).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert [(v.epoch, v.iteration) for v in views] == [(0, 4), (0, 6), (1, 6), (1, 10), (1, 12), (2, 12), (2, 12)]
    assert [dict(v.losses) for v in views[2::3]] == o.history_
    assert dict(views[0].losses) == {}
    assert views[1].loss == o.train_losses_[0]
    assert views[0].loss != views[1].loss
    assert {v.max_iter for v in views} == {2}
    assert {v.rate for v in views} == {np.float32(0.05)}
    assert views[-1].weights().keys() == o.trained_coef_.keys()
    with pytest.raises(AttributeError):
        views[0].epoch = 3
    with pytest.raises(TypeError):
        views[2].losses["loss"] = 3
    views[-1].record(norm=2.0, loss=7.0)
    assert o.history_[-1]["norm"] == 2.0
    assert o.history_[-1]["loss"] == o.train_losses_[-1]


def test_a_view_of_one_epoch_leaves_the_history_whole():
    """The rates of the epochs before it are numbers, too."""
    def look(o):
        if o.n_iter_ == 3:
            o.training_view()

    o = optimizer(linear(), learning_rate=0.125, max_iter=4, callbacks=[look]).fit(X, Y)
    assert [record["learning_rate"] for record in o.history_] == [0.125] * 4


@ON_BOTH
def test_a_callback_of_scikit_learn():
    """Of which the contexts and the fitted estimators are those of scikit-learn, as far as it can tell."""
    callback = pytest.importorskip("sklearn.callback")
    monitor = callback.ScoringMonitor(scoring="r2")
    o = optimizer(max_iter=3, callbacks=[monitor]).fit(X, Y)
    scores = {log["task_id_path"]: log["r2"] for log in monitor.get_logs().data}
    assert scores.keys() == {(0,), (0, 0), (0, 1), (0, 2)}
    assert scores[0,] == scores[0, 2] == pytest.approx(o.score(X, Y), rel=1e-5)
    assert scores[0, 0] == pytest.approx(optimizer(max_iter=1).fit(X, Y).score(X, Y), rel=1e-5)

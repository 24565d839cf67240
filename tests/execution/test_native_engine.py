"""Steps in machine code give the numbers of the other engines, within rounding."""

import os
import pickle
import signal
import threading

import numpy as np
import pytest
from models import data, linear, mlp

from ortpartial import Checkpoint, build, constant, op, variable
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DeadlineError, SettingError, UntranslatableError
from ortpartial.execution import selection
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.native import find_compiler
from ortpartial.training import select_engine

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

X, Y, W = data(53)


def train(engine, model, y=Y, weights=None, **settings):
    settings = {"max_iter": 4, "batch_size": 8, "random_state": 0, **settings}
    return Optimizer(model, engine=engine, **settings).fit(X, y, weights)


def assert_alike(a, b, tolerance=1e-5):
    for kind in ("weight", "optimizer"):
        for u, v in zip(a.get_state(kind), b.get_state(kind), strict=True):
            np.testing.assert_allclose(u, v, rtol=tolerance, atol=tolerance * max(abs(v).max(), 1e-6))
    np.testing.assert_allclose(a.train_losses_, b.train_losses_, rtol=tolerance)


@pytest.mark.parametrize("rate", ["SGD", "Nesterov", "Adam"])
@pytest.mark.parametrize("model", [linear, mlp])
def test_it_trains_as_the_others(model, rate):
    native = train("native", model(), weights=W, learning_rate=rate)
    assert native.engine_ == "native"
    assert_alike(native, train("step", model(), weights=W, learning_rate=rate))


def test_it_repeats_itself_to_the_last_bit():
    first, again = (train("native", mlp(), learning_rate="Adam") for _ in range(2))
    assert all((a == b).all() for a, b in zip(first.get_state(), again.get_state(), strict=True))


def test_without_a_compiler_it_is_another_engine(monkeypatch):
    monkeypatch.setattr("ortpartial.native.find_compiler", lambda: None)
    spec = train("step", linear()).training.spec
    kind, reason = select_engine("native", spec)
    assert kind is EpochEngine
    assert "C compiler" in reason


def test_it_refuses_mixed_precision():
    with pytest.raises(SettingError, match=r"float16.*not 'native'"):
        Optimizer(mlp(), engine="native", precision="float16")


def test_auto_compiles_what_is_short_and_comes_often(monkeypatch):
    """And goes back where a training is short again; the choice follows from the training alone."""
    settings = {"max_iter": 1_000_000, "batch_size": 53, "random_state": 0, "learning_rate": "Adam"}
    monkeypatch.setattr("ortpartial.execution.loop.Loop.fit", lambda self, *args: None)
    long, short = (Optimizer(mlp(), **{**settings, **more}) for more in ({}, {"max_iter": 100}))
    for _ in range(2):
        assert long.fit(X, Y).engine_ == "native"
        assert "1,000,000 steps" in long.engine_reason_
        assert short.fit(X, Y).engine_ == "epoch"
        long.max_iter, short.max_iter = short.max_iter, long.max_iter
        long, short = short, long
    monkeypatch.setattr("ortpartial.native.find_compiler", lambda: None)
    assert long.fit(X, Y).engine_ == "epoch"


def test_auto_chooses_once(monkeypatch):
    """The next fit of as many steps takes the engine that was chosen, without composing its step again."""
    monkeypatch.setattr("ortpartial.execution.loop.Loop.fit", lambda self, *args: None)
    counted, choose = [], selection._choose_for_length
    monkeypatch.setattr(selection, "_choose_for_length", lambda *args: (counted.append(args[1:]), choose(*args))[1])
    optimizer = Optimizer(mlp(), max_iter=1_000_000, batch_size=53, warm_start=True)
    assert [optimizer.fit(X, Y).engine_ for _ in range(3)] == ["native"] * 3
    assert len(counted) == 1


def test_auto_leaves_steps_that_take_several_threads_to_onnxruntime(monkeypatch):
    monkeypatch.setattr("ortpartial.execution.loop.Loop.fit", lambda self, *args: None)
    monkeypatch.setattr("ortpartial.execution.selection.cores", lambda: 2)
    monkeypatch.setattr("ortpartial.native.StepCost.pays_off", lambda self, steps, cores, _: cores == 1)
    for hidden, engine in ((8, "native"), (8000, "epoch")):
        assert Optimizer(mlp(10, hidden=hidden), max_iter=1_000_000, batch_size=53).fit(X, Y).engine_ == engine


def test_auto_says_what_cannot_be_compiled(monkeypatch):
    x, w = variable("X", "float32", ["N", 4]), constant(np.ones((4, 1), np.float32), hint="w")
    model = build([x], {"y": op.Det(op.Reshape(x, [-1, 1, 1])).sum() * 0 + x @ w})
    monkeypatch.setattr("ortpartial.execution.loop.Loop.fit", lambda self, *args: None)
    optimizer = Optimizer(model, max_iter=1_000_000, batch_size=53).fit(X, Y)
    assert optimizer.engine_ == "epoch"
    assert "Det" in optimizer.engine_reason_
    monkeypatch.undo()
    with pytest.raises(UntranslatableError, match=r"Det.*engine='auto'"):
        train("native", model)


def test_states_are_those_of_the_other_engines(tmp_path):
    """A pickle, and a checkpoint, go on with another engine."""
    first = train("native", mlp(), learning_rate="Adam", warm_start=True)
    again = pickle.loads(pickle.dumps(first))
    again.engine = "step"
    assert again.fit(X, Y).engine_ == "step"
    assert_alike(first.fit(X, Y), again)

    settings = {"learning_rate": "Adam", "max_iter": 6}
    train("native", mlp(), **{**settings, "max_iter": 3}, callbacks=[Checkpoint(tmp_path)])
    resumed = Optimizer(mlp(), engine="epoch", batch_size=8, random_state=0, **settings)
    assert_alike(resumed.fit(X, Y, resume=tmp_path), train("native", mlp(), **settings))


@pytest.mark.usefixtures("ctrl_c")
def test_a_deadline_and_ctrl_c_come_between_two_calls():
    """What was trained until then stays."""
    x, y = np.tile(X, (40_000, 1)), np.tile(Y, (40_000, 1))
    optimizer = train("native", mlp(), batch_size=1, max_iter=1)
    optimizer.set_params(timeout=1.5, max_iter=10_000)  # A first call takes some tenths of a second under load.
    with pytest.raises(DeadlineError, match=r"1\.5 s"):
        optimizer.fit(x, y)
    assert 0 < optimizer._engine.iteration < 10_000 * len(x)
    short = Optimizer(linear(), max_iter=10**7, timeout=0.3, engine="native", batch_size=53)
    with pytest.raises(DeadlineError):  # Epochs of one call each end between two of them.
        short.fit(X, Y)
    assert 10 < short.n_iter_ < 10**7
    optimizer.set_params(timeout=None)
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        optimizer.fit(x, y)
    timer.join()
    assert np.isfinite(optimizer.predict(X)).all()


def test_rows_that_do_not_lie_one_behind_the_other():
    wide = np.repeat(X, 2, axis=1)
    assert_alike(Optimizer(mlp(), engine="native", batch_size=8, random_state=0, max_iter=2).fit(wide[:, ::2], Y),
                 Optimizer(mlp(), engine="native", batch_size=8, random_state=0, max_iter=2).fit(X, Y), 0)


def test_weights_may_have_any_name():
    x = variable("X", "float32", ["N", 4])
    names = ("int", "NULL", "NAN", "INFINITY", "M_PI", "OP_LANES", "stdin", "state", "1", "é", "_", "x y", "x-y")
    products = [x @ constant(np.full((4, 1), i + 1, np.float32), hint=n) for i, n in enumerate(names)]
    model = build([x], {"y": op.Sum(*products)})
    assert_alike(train("native", model, max_iter=1), train("step", model, max_iter=1))


def test_rows_have_weights_where_the_first_input_is_not_read():
    a, b = (variable(n, "float32", ["N", 4]) for n in "ab")
    model = build([a, b], {"y": b @ constant(np.ones((4, 1), np.float32), hint="w")})
    settings = {"batch_size": 8, "random_state": 0, "max_iter": 2}
    native, step = (Optimizer(model, engine=engine, **settings).fit({"a": X, "b": X}, Y, W)
                    for engine in ("native", "step"))
    assert_alike(native, step)

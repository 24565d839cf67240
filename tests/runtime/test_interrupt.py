"""Deadlines and Ctrl-C end runs, and later runs work as before."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import onnx
import pytest
from models import data, mlp
from onnx import TensorProto, helper

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DataError, DeadlineError, ModelError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, variable
from ortpartial.runtime.interrupt import Interrupt
from ortpartial.runtime.session import Session

LONG = 10**9
X = np.ones((1000, 512), np.float32)


def loop():
    """`n` times a product of two matrices."""
    value = helper.make_tensor_value_info
    c, a = value("c", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [64, 64])
    nodes = [helper.make_node("Identity", ["c"], ["c_"]), helper.make_node("MatMul", ["a", "a"], ["a_"])]
    after = [value("c_", TensorProto.BOOL, []), value("a_", TensorProto.FLOAT, [64, 64])]
    body = helper.make_graph(nodes, "body", [value("i", TensorProto.INT64, []), c, a], after)
    node = helper.make_node("Loop", ["n", "c", "a"], ["y"], body=body)
    y = value("y", TensorProto.FLOAT, [64, 64])
    graph = helper.make_graph([node], "loop", [value("n", TensorProto.INT64, []), c, a], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def deep():
    """Matrix products that take seconds, before the only trained weight."""
    x, w = variable("x", "float32", ["N", 512]), constant(np.eye(512, dtype=np.float32), hint="w")
    y = x
    for _ in range(400):
        y = y @ w
    return build([x], {"y": y + constant(np.zeros(512, np.float32), hint="b")})


def run(session, n, interrupt=None):
    feeds = {"n": np.array(n), "c": np.array(True), "a": np.eye(64, dtype=np.float32)}
    return session.run(feeds, interrupt and interrupt.options)["y"]


@contextmanager
def interrupted(seconds):
    """SIGINT after some time, as from the keyboard; the block must end soon after it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell lets commands with `&` ignore it.
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    started = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.join()
        signal.signal(signal.SIGINT, former)
    assert time.monotonic() - started < seconds + 3


def test_run_before_the_deadline():
    session = Session(loop())
    with Interrupt(60) as interrupt:
        np.testing.assert_array_equal(run(session, 3, interrupt), np.eye(64))
    with Interrupt() as interrupt:
        np.testing.assert_array_equal(run(session, 3, interrupt), np.eye(64))
    assert sum(t.name == "ortpartial interrupt" for t in threading.enumerate()) == 1


def test_nested_interrupts():
    """As in a callback that trains another model: Ctrl-C ends both, and each has its own deadline."""
    session = Session(loop())
    with interrupted(0.2), Interrupt() as outer, Interrupt() as inner:
        run(session, LONG, inner)
    assert (outer.options.terminate, inner.options.terminate) == (True, True)
    with pytest.raises(DeadlineError, match=r"0\.2 s"), Interrupt(0.2) as outer, Interrupt(60) as inner:
        run(session, LONG, outer)
    assert (outer.options.terminate, inner.options.terminate) == (True, False)


def test_a_signal_ends_no_later_run():
    session = Session(loop())
    for _ in range(20):
        with interrupted(0.01), Interrupt():
            time.sleep(5)
        with Interrupt() as interrupt:
            run(session, 3, interrupt)
        assert not interrupt.options.terminate


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX has fork")
def test_after_a_fork():
    """The child starts its own listener, as threads do not survive a fork."""
    with Interrupt(60):
        pass
    if (child := os.fork()) == 0:
        try:
            with Interrupt(0.1) as interrupt:
                time.sleep(0.5)
            os._exit(0 if interrupt.options.terminate else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_deadline():
    session, started = Session(loop()), time.monotonic()
    message = r"The run was not over after 0\.2 s, the timeout\."
    with pytest.raises(DeadlineError, match=message), Interrupt(0.2) as interrupt:
        run(session, LONG, interrupt)
    assert time.monotonic() - started < 3
    np.testing.assert_array_equal(run(session, 3), np.eye(64))


def test_interrupt():
    session = Session(loop())
    for _ in range(2):
        with interrupted(0.2), Interrupt() as interrupt:
            run(session, LONG, interrupt)
    np.testing.assert_array_equal(run(session, 3), np.eye(64))


def test_other_errors_pass_through():
    session = Session(loop())
    with pytest.raises(DataError, match="n"), Interrupt(60) as interrupt:
        session.run({}, interrupt.options)
    with pytest.raises(ModelError, match="mine"), Interrupt(60):
        raise ModelError("mine")


def test_a_handler_of_the_user_is_respected():
    caught = []
    former = signal.signal(signal.SIGINT, lambda *_: caught.append(1))
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            assert run(Session(loop()), 3, interrupt).shape == (64, 64)
            assert not interrupt.options.terminate
    finally:
        signal.signal(signal.SIGINT, former)
    assert caught == [1]


def test_signals_are_forwarded_to_the_previous_descriptor():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with interrupted(0.1), Interrupt():
            time.sleep(5)
        assert signal.set_wakeup_fd(writer, warn_on_full_buffer=False) == writer
        assert os.read(reader, 9) == bytes([signal.SIGINT])
    finally:
        signal.set_wakeup_fd(former, warn_on_full_buffer=False)
        os.close(reader)
        os.close(writer)


def test_in_a_thread():
    epochs = []
    thread = threading.Thread(target=lambda: epochs.append(Optimizer(mlp(), max_iter=2).fit(*data()).n_iter_))
    thread.start()
    thread.join()
    assert epochs == [2]


def test_a_deadline_ends_a_step():
    o = Optimizer(deep(), ["b"], batch_size=1000, timeout=0.3)
    started = time.monotonic()
    for call in (lambda: o.fit(X, X), lambda: o.partial_fit(X, X), lambda: o.predict(X), lambda: o.losses(X, X)):
        with pytest.raises(DeadlineError, match=r"not over after 0\.3 s"):
            call()
    o.set_params(timeout=None)
    with interrupted(0.3):
        o.fit(X, X)
    assert time.monotonic() - started < 15
    assert (o._engine.iteration, o.train_losses_, o.get_state()[0].any()) == (0, [], False)
    assert o.predict(X[:1]).shape == (1, 512)
    assert onnx.checker.check_model(o.get_trained_onnx()) is None


def test_weights_before_the_deadline_are_kept():
    o = Optimizer(mlp(), max_iter=10**6, timeout=0.5)
    X, y, w = data()
    with pytest.raises(DeadlineError):
        o.fit(X, y, w)
    assert o.n_iter_ == len(o.train_losses_) > 10
    assert o.train_losses_[-1] < o.train_losses_[0] / 2
    o.set_params(timeout=None)
    before = o.n_iter_
    assert o.partial_fit(X, y, w).n_iter_ == before + 1


@pytest.mark.parametrize("timeout", [0, -1, np.nan, np.inf, "1", True])
def test_invalid_timeouts(timeout):
    with pytest.raises(SettingError, match="timeout is None or a number of seconds above 0, not"):
        Optimizer(mlp(), timeout=timeout)


def test_an_interrupted_epoch_keeps_its_finished_chunks(monkeypatch):
    """Ctrl-C loses only the last chunk of a long epoch."""
    monkeypatch.setattr("ortpartial.execution.epoch_engine._CHUNK", 50)
    X, y, _ = data(800_000)
    o = Optimizer(mlp(), batch_size=1, max_iter=1, engine="epoch", learning_rate=1e-3)
    before = o.get_state()
    with interrupted(1.0):
        o.fit(X, y)
    assert (o.n_iter_, o._engine.iteration > 50, o._engine.iteration % 50) == (0, True, 0)
    assert all((a != b).any() for a, b in zip(o.get_state(), before, strict=True))

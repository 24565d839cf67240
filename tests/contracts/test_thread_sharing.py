"""Threads that share an object take turns, so that no step is lost; threads with objects of their own do not wait."""

import copy
import os
import pickle
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from operator import methodcaller

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer, TrainingSession
from ortpartial.exceptions import SettingError
from ortpartial.learning import LearningRateAdam
from ortpartial.runtime import FairLock

X, Y, _ = data(20)
ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]


def optimizer(engine="auto", **settings):
    return OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, shuffle=False, random_state=0,
                                               **{"learning_rate": LearningRateAdam(1e-3), **settings})


def run_together(*functions):
    """Run functions in threads of their own, which begin at once, and raise what one of them raises."""
    errors, barrier = [], threading.Barrier(len(functions))

    def run(function):
        try:
            barrier.wait()
            function()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=[f], daemon=True) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads), "a thread waits for ever"
    if errors:
        raise errors[0]


def repeat(times, function, *arguments):
    def run():
        for _ in range(times):
            function(*arguments)

    return run


def same(a, b):
    return all((u == v).all() for kind in ("weight", "optimizer")
               for u, v in zip(a.get_state(kind), b.get_state(kind), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_optimizer_of_two_threads(engine):
    """Twice 500 steps are a thousand, to the last bit, while a third thread looks on."""
    o, alone = optimizer(engine), optimizer(engine)
    repeat(1000, alone.partial_fit, X, Y)()
    train = repeat(500, o.partial_fit, X, Y)
    run_together(train, train, repeat(50, o.predict, X), repeat(50, o.get_state, "optimizer"),
                 repeat(5, lambda: pickle.loads(pickle.dumps(o)).predict(X)))
    assert o.n_iter_ == 1000
    assert len(o.train_losses_) == 1000
    assert same(o, alone)


def test_fit_in_two_threads():
    """A whole training waits for the other."""
    o, alone = optimizer(max_iter=30, warm_start=True), optimizer(max_iter=60).fit(X, Y)
    run_together(*[lambda: o.fit(X, Y)] * 2)
    assert same(o, alone)
    batches = [(X[:10], Y[:10]), (X[10:], Y[10:])]
    run_together(*[lambda: o.fit(batches)] * 2)
    assert same(o, alone.set_params(warm_start=True).fit(batches))


def test_what_is_read_belongs_to_one_step():
    """Weights and states are never of two steps: each row of W has the same number, that of the step."""
    o = optimizer("step", learning_rate=0.25)
    o.set_state([np.zeros_like(a) for a in o.get_state()])
    expected, states = optimizer("step", learning_rate=0.25), []
    expected.set_state([np.zeros_like(a) for a in o.get_state()])
    for _ in range(200):
        states.append(np.concatenate([a.ravel() for a in expected.get_state()]).tobytes())
        expected.partial_fit(X, Y)
    seen = []
    run_together(repeat(199, o.partial_fit, X, Y), repeat(300, lambda: seen.append(o.get_state())))
    assert {np.concatenate([a.ravel() for a in s]).tobytes() for s in seen} <= set(states)


def test_others_predict_while_fit_runs():
    """Between two epochs, or while it waits for a batch: also the thread that gives the batches."""
    o = optimizer(max_iter=1)
    answers = []

    def batches():
        yield X, Y
        answers.append(o.predict(X))
        answers.append(copy.deepcopy(o).get_state())
        with pytest.raises(SettingError, match="A training waits for the batches that this thread gives"):
            o.partial_fit(X, Y)
        with pytest.raises(SettingError, match="not in another thread"):
            o.learning_rate = 0.5
        o.max_iter = 1
        yield X, Y

    run_together(lambda: o.fit(batches()))
    assert len(answers) == 2
    assert o.get_state("optimizer")[-1] == 2


def test_a_callback_has_the_turn_of_its_training(tmp_path):
    def use(o):
        o.predict(X)
        o.losses(X, Y)
        o.save(tmp_path / "model.onnx")
        o.set_params(learning_rate__eta0=1e-4)
        o.set_state(o.get_state())
        o.partial_fit(X, Y)

    o = optimizer(max_iter=3, callbacks=[use])
    run_together(lambda: o.fit(X, Y))
    assert o.get_state("optimizer")[-1] == 12


def test_settings_change_in_two_threads():
    """A model that is composed anew takes over every step that was taken."""
    o = optimizer(learning_rate=0.001)
    run_together(repeat(100, o.partial_fit, X, Y),
                 lambda: [change(o, learning_rate=0.001 + i / 1e6) for i in range(5)],
                 lambda: [change(o, engine=e) for e in ("step", "epoch", "step")])
    assert o.get_state("optimizer")[-1] == 200


def change(o, **setting):
    while True:
        try:
            o.set_params(**setting)
            return
        except SettingError:  # It trains just now.
            pass


def test_a_session_of_two_threads():
    model = optimizer().get_training_onnx(init="model")
    session, alone = TrainingSession(model), TrainingSession(model)
    feeds = {"x": X, "y_target": Y}
    repeat(400, alone.step, feeds)()
    step = repeat(200, session.step, feeds)
    run_together(step, step, repeat(50, session.evaluate, feeds), repeat(20, session.training_model),
                 repeat(5, lambda: pickle.loads(pickle.dumps(session)).step(feeds)))
    assert session.steps_taken == 400
    assert all((a == alone.state[n]).all() for n, a in session.state.items())


@pytest.mark.parametrize("engine", ["step", pytest.param("agent", marks=pytest.mark.agent)])
def test_forward_and_backward_in_threads(engine):
    """Each thread gets the gradients of its own inputs, with the weights of one call of set_state."""
    layer = OrtGradientForwardBackward(mlp(), engine=engine)
    weights = layer.get_state()

    def work(rows):
        (y,), state = layer.forward(X[:rows])
        return layer.backward([np.ones_like(y)], state)[0]

    expected = {rows: work(rows) for rows in (3, 7, 20)}

    def check(rows):
        for n, g in work(rows).items():
            np.testing.assert_array_equal(g, expected[rows][n])

    run_together(*[repeat(100, check, rows) for rows in expected], repeat(100, lambda: layer.set_state(weights)))


def test_objects_of_their_own():
    """Threads that share nothing train at once, and as if they were alone."""
    alone, objects = optimizer(), [optimizer() for _ in range(3)]
    repeat(100, alone.partial_fit, X, Y)()
    run_together(*[repeat(100, o.partial_fit, X, Y) for o in objects])
    assert all(same(o, alone) for o in objects)


def train_here(o):
    return o.partial_fit(X, Y).get_state()


def train_in_fork(o):
    queue = get_context("fork").Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the threads of the parent.
        child = get_context("fork").Process(target=lambda: queue.put(train_here(copy.deepcopy(o))))
        child.start()
    try:
        return queue.get(timeout=60)
    finally:
        child.join()


def train_in_spawn(o):
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        copied = copy.deepcopy(o).set_params(callbacks=[])
        return pool.submit(methodcaller("partial_fit", X, Y), copied).result(60).get_state()


@pytest.mark.parametrize("run", [train_here, train_in_fork, pytest.param(train_in_spawn, marks=pytest.mark.slow)])
def test_while_another_thread_trains(run):
    """Who trains in this process waits; a child has its own locks, and a copy goes on from the state at the fork."""
    o, alone = optimizer(max_iter=1, warm_start=True), optimizer()
    begun, over = threading.Event(), threading.Event()
    o.callbacks = [lambda _: begun.set() or over.wait(60)]
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(o.fit, X, Y)
        begun.wait(60)
        if run is train_here:
            threading.Timer(0.2, over.set).start()
        weights = run(o)
        over.set()
        training.result(60)
    repeat(2, alone.partial_fit, X, Y)()
    assert all((a == b).all() for a, b in zip(weights, alone.get_state(), strict=True))
    assert o.n_iter_ == (2 if run is train_here else 1)


def test_a_child_keeps_the_turn_of_the_thread_that_forks():
    turns = [FairLock(), FairLock()]
    holder, release = threading.Event(), threading.Event()

    def hold():
        with turns[1].lock:
            holder.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holder.wait()
    with turns[0].lock:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os._exit(0 if turns[1].lock.acquire(timeout=5) and turns[0].lock._is_owned() else 1)
    _, status = os.waitpid(pid, 0)
    release.set()
    thread.join()
    assert status == 0

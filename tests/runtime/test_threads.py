"""The choice of the number of threads, by the largest node and the affinity mask."""

import os
import time

import numpy as np
import pytest
from models import data, linear, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.execution.step_engine import StepEngine
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import scan
from ortpartial.graph.ops import op, variable
from ortpartial.runtime.device import cores, has_training
from ortpartial.runtime.session import Session
from ortpartial.runtime.session_options import session_options
from ortpartial.runtime.threads import choose_threads, largest_cost


def of(*shape):
    return variable("x" + "_".join(map(str, shape)), "float32", shape)


def counted(f, *arrays):
    """The number of multiplications of a numpy function: the sum of its result for ones."""
    return int(np.sum(f(*(np.ones(a) for a in arrays))))


@pytest.mark.parametrize(
    ("y", "count"),
    [
        (of(7, 50) @ of(50, 30), counted(np.matmul, (7, 50), (50, 30))),
        (of(2, 3, 7, 50) @ of(2, 3, 50, 30), counted(np.matmul, (2, 3, 7, 50), (2, 3, 50, 30))),
        (of(50) @ of(50), counted(np.matmul, 50, 50)),
        (op.Gemm(of(50, 7), of(50, 30), transA=1), counted(np.matmul, (7, 50), (50, 30))),
        (op.Gemm(of(7, 50), of(30, 50), transB=1), counted(np.matmul, (7, 50), (50, 30))),
        (op.Gemm(of(0, 50), of(50, 30)), 0),
        (op.Conv(of(2, 4, 6, 6), of(8, 4, 3, 3)), 2 * 8 * 16 * 4 * 9),
        (op.Conv(of(2, 4, 6, 6), of(8, 1, 3, 3), group=4), 2 * 8 * 16 * 9),
        (op.ConvTranspose(of(2, 8, 4, 4), of(8, 4, 3, 3)), 2 * 8 * 16 * 4 * 9),
        (op.Exp(of(7, 50)), 16 * 7 * 50),
        (op.Exp(of("N", 50)), 16 * 32 * 50),
        (op.ReduceSum(of(7, 50) * 2, [0]), 16 * 7 * 50),
        (scan(lambda s, x: s + op.Exp(x), of(50), of(9, 50)), 16 * 50),
    ],
    ids=str,
)
def test_largest_cost(y, count):
    assert largest_cost([op.ReduceSum(y)]) == max(count, 16)


def test_unknown_rank():
    x, w = variable("x", "float32", None), variable("w", "float32", None)
    assert [largest_cost([v]) for v in (op.Exp(x), x @ w, op.Conv(x, w))] == [16 * 32, 32 * 32, 16 * 32]


def test_many_small_nodes_take_one_thread_and_a_large_one_takes_all():
    y = of(64, 64)
    for _ in range(100):
        y = op.Tanh(y @ of(64, 64))
    assert choose_threads([y]) == 1
    assert choose_threads([y, op.Exp(of(600, 600))]) is None
    assert choose_threads([y, of(1000, 1000)]) is None  # The update of a large weight counts as well.


def test_few_weights_and_a_long_step():
    """A convolution of 72 weights takes all threads for large images and one thread for a small image."""
    x = variable("x", "float32", ["N", 1, 128, 128])
    y = op.Conv(x, variable("w", "float32", [8, 1, 3, 3]))
    assert choose_threads([y]) is None
    assert choose_threads([op.Conv(of(1, 1, 8, 8), variable("w", "float32", [8, 1, 3, 3]))]) == 1


def test_dynamic_sizes_are_the_number_of_rows():
    x, w = variable("x", "float32", ["N", 100]), of(100, 30)
    costs = [largest_cost([x @ w], rows) for rows in (7, 500)]
    assert costs == [counted(np.matmul, (n, 100), (100, 30)) for n in (7, 500)]
    assert [choose_threads([x @ w], rows) for rows in (1, 32, 2000)] == [1, 1, None]
    # A single row may be a long sequence.
    assert [choose_threads([x @ of(100, 2000)], rows) for rows in (1, 500)] == [None, None]


@pytest.mark.parametrize("rows", [8, 50_000])
def test_engines_choose_alike(monkeypatch, rows):
    """The number of threads depends on the batch size alone, not on the engine."""
    seen = []
    opened = Session.__init__

    def init(self, *args, **settings):
        seen.append(settings.get("threads"))
        opened(self, *args, **settings)

    monkeypatch.setattr(Session, "__init__", init)
    X, y, _ = data(rows)
    for engine in ("step", "epoch"):
        Optimizer(mlp(), engine=engine, batch_size=rows, max_iter=1).fit(X, y)
    assert seen == [1 if rows == 8 else None] * 2


def test_all_threads_are_the_cores_of_the_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert (cores(), session_options(None).intra_op_num_threads) == (3, 3)
    assert session_options(1).intra_op_num_threads == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == session_options(None).intra_op_num_threads == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux has affinity masks")
def test_no_thread_leaves_the_affinity_mask():
    def running():
        return set(os.listdir("/proc/self/task"))

    mask = os.sched_getaffinity(0)
    before = running()
    try:
        os.sched_setaffinity(0, {min(mask)})
        alone = Session(linear(), threads=None)
        assert running() <= before
        pool = Session(linear(), threads=3)
        started = running() - before
        assert [os.sched_getaffinity(int(t)) for t in started] == [{min(mask)}] * 2
    finally:
        os.sched_setaffinity(0, mask)
    X = data()[0]
    assert (alone.run({"x": X})["y"] == pool.run({"x": X})["y"]).all()


def test_a_small_network_keeps_one_core_busy():
    """Two trainings on two cores would else hinder each other: threads that wait for small nodes take a core."""
    X, y, _ = data(320, features=64)
    optimizer = Optimizer(mlp(features=64, hidden=1024), batch_size=32, max_iter=5, warm_start=True).fit(X, y)
    shares = []
    for _ in range(5):
        process, thread = time.process_time(), time.thread_time()
        optimizer.fit(X, y)
        shares.append((time.process_time() - process) / (time.thread_time() - thread))
    assert min(shares) < 1.2


@pytest.mark.skipif(has_training(), reason="onnxruntime-training 1.19.2 cannot limit for how long threads spin")
def test_threads_that_wait_give_their_cores_back():
    x = of(512, 512)
    session, feeds, waited = Session(build([x], {"y": x @ x}), threads=2), {x.hint: np.ones(x.shape, np.float32)}, []
    for _ in range(5):
        session.run(feeds)
        start = time.process_time()
        time.sleep(0.02)
        waited.append(time.process_time() - start)
    assert min(waited) < 2e-3


def test_weights_are_reproducible():
    """Two trainings with all threads, in each engine, give the same bits."""
    X, y, _ = data(1200, features=40)
    model = mlp(features=40, hidden=300)
    fits = [Optimizer(model, engine=e, batch_size=400, max_iter=3, random_state=0) for e in ("step", "epoch") * 2]
    assert isinstance(fits[0]._engine, StepEngine)
    assert fits[0]._engine.source.for_rows(400).threads() is None
    states = [o.fit(X, y).get_state() for o in fits]
    assert all((a == b).all() for s in states[1:] for a, b in zip(states[0], s, strict=True))


def test_sizes_that_are_known_by_name():
    x, w = variable("x", "float32", ["N", "L", 64]), variable("w", "float32", [64, 64])
    assert choose_threads([x @ w], 64) is None
    assert choose_threads([x @ w], sizes={"N": 4}) == 1
    assert choose_threads([x @ w], sizes={"N": 40, "L": 200}) is None

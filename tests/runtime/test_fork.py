"""Children of a process that has compiled graphs: they neither use nor free sessions of the parent, and end."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from models import data, linear
from paths import SUPPORT, environment

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ProcessError
from ortpartial.execution.prefetch import prefetch
from ortpartial.runtime.fork import Inherited
from ortpartial.runtime.interrupt import Interrupt
from ortpartial.runtime.session import Session

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX has fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

X, Y, _ = data(20)
REFUSAL = ("This process was forked after its parent had compiled a graph, and a session of onnxruntime does not "
           "survive a fork: use the start method 'spawn', or build the optimizer inside of the worker.")

#: How a use in a child may end.
OUTCOMES = {"exit": {"done"}, "drop": {"done"}, "collect": {"done"}, "use_it": {f"ProcessError: {REFUSAL}"},
            "unpickle": {"equal", "not pickled"}, "copy": {"equal", "not pickled"}, "anew": {"equal"}}


def open_children(*arguments, seconds=1200):
    """The rows of `forks.py`: door, use, way, outcome, output and status of each child."""
    done = subprocess.run([sys.executable, str(SUPPORT / "forks.py"), *arguments], env=environment(),
                          capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(rows):
    """Each outcome is one of those of its use, and each child ends as one of a process that has opened nothing."""
    ends = {way: end for door, _, way, _, *end in rows if door == "nothing"}
    assert ends.get("fork", ["written at_exit", 3]) == ["written at_exit", 3]
    cases = [row for row in rows if row[0] != "nothing"]
    for door, use, way, outcome, *end in cases:
        if (door, use) == ("nn, eager", "use_it"):  # It compiles each operator in the process that computes it.
            assert outcome == "used"
        else:
            assert outcome in OUTCOMES[use], (door, use, way)
        assert end == ends[way], (door, use, way)
    return cases


def test_a_sample():
    rows = check(open_children("fork,process", "two threads;optimizer", "exit,use_it,drop,collect,anew"))
    assert len(rows) == 20


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "process", "loader"])
def test_all(way, record_property):
    rows = check(open_children(way))
    record_property("count", f"{way}: {len(rows)} children of {len({row[0] for row in rows})} doors")


def in_child(run):
    """The status of a child that runs a function: 0 if it returns true."""
    if not (child := os.fork()):
        try:
            os._exit(0 if run() else 1)
        finally:
            os._exit(2)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang"


def raises(use):
    try:
        use()
    except ProcessError as e:
        return str(e) == REFUSAL
    return False


def test_every_method_of_a_session_refuses():
    session = Session(linear())
    binding = session.binding()
    binding.bind_input("x", X)
    binding.run()
    uses = [lambda: session.run({"x": X}), session.binding, lambda: session.run_ortvalues({}), binding.run,
            binding.numpy, lambda: binding.bind_input("x", X + 1), lambda: binding.bind_output("y")]
    assert in_child(lambda: all(raises(use) for use in uses)) == 0
    binding.run()


def test_what_stands_for_a_session_is_inspected_as_any_object():
    assert not hasattr(Inherited(), "__array__")
    with pytest.raises(ProcessError, match="does not survive a fork"):
        Inherited()(1)


def test_a_training_that_the_child_of_a_callback_goes_on_with():
    """It ends where it would wait for the thread that fetches batches, which is in the parent."""
    batches = prefetch(iter(range(9)))
    assert next(batches) == 0

    def go_on():
        try:
            list(batches)
        except ProcessError as e:
            return "the thread that fetches its batches is that of the parent" in str(e)

    assert in_child(go_on) == 0
    assert list(batches) == list(range(1, 9))


def test_ctrl_c_in_a_child_leaves_runs_of_the_parent(ctrl_c):
    with Interrupt() as interrupt:
        def catch():
            signal.signal(signal.SIGINT, lambda *_: None)
            os.kill(os.getpid(), signal.SIGINT)
            interrupt.__exit__(None, None, None)
            return True

        assert in_child(catch) == 0
        time.sleep(0.1)
        assert not interrupt.options.terminate


def test_a_data_loader_whose_data_hold_an_optimizer():
    utils = pytest.importorskip("torch.utils.data", reason="needs torch, of any version")
    optimizer = Optimizer(linear(), max_iter=1, random_state=0).fit(X, Y)
    optimizer.predict(X[:1])

    class Rows(utils.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return optimizer.predict(X[i : i + 1]) if self.uses else X[i]

    rows = Rows()
    for rows.uses in (False, True):
        iterator = iter(utils.DataLoader(rows, batch_size=1, num_workers=2, timeout=30))
        workers = iterator._workers
        if rows.uses:
            with pytest.raises(ProcessError, match="build the optimizer inside of the worker"):
                list(iterator)
        else:
            assert len(list(iterator)) == 2
        iterator._shutdown_workers()  # The error holds the iterator.
        for worker in workers:
            worker.join(30)
            assert worker.exitcode == 0
    assert np.isfinite(optimizer.predict(X)).all()

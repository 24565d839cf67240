"""A fit whose processes are killed at random moments, each going on from the last one, ends as one that never was."""

import os
import random
import signal
import time
import warnings

import numpy as np
import pytest
from models import data, mlp

from ortpartial import LearningRateAdam, OrtGradientForwardBackwardOptimizer
from ortpartial.estimator import Checkpoint
from ortpartial.execution.checkpoint import read_checkpoint

X, Y, W = data(3000)
BATCHES = [(X[i : i + 50], Y[i : i + 50], W[i : i + 50]) for i in range(0, 3000, 50)]

#: By name, the settings of an engine, and the data.
ENGINES = {
    "step": ({"engine": "step"}, (X, Y, W)),
    "epoch": ({"engine": "epoch"}, (X, Y, W)),
    "in place": ({"checkpointing": "auto"}, (X, Y, W)),
    "agent": ({"engine": "agent"}, (X, Y, W)),
    "batches": ({"engine": "step"}, (BATCHES,)),
}


def train(name, folder, resume=True):
    """Train, and write the end; callbacks are called within an epoch, and checkpoints written all the time."""
    settings, arrays = ENGINES[name]
    optimizer = OrtGradientForwardBackwardOptimizer(
        mlp(hidden=20), max_iter=12, batch_size=20, random_state=0, learning_rate=LearningRateAdam(schedule="cosine"),
        callbacks=[Checkpoint(folder / "run", seconds=0.005)] if resume else [], **settings)
    share = {"X_val": 0.1} if len(arrays) > 1 else {"X_val": BATCHES[:3]}
    optimizer.fit(*arrays, **share, resume=folder / "run" if resume else None)
    optimizer.save_checkpoint(folder / "end.safetensors")


def start(*arguments):
    """Train in a child process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads, which the child has not.
        pid = os.fork()
    if not pid:
        try:
            train(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def end_of(folder):
    """All that a training has come to, the times aside."""
    state = read_checkpoint(folder / "end.safetensors")
    for record in state["progress"]["history_"]:
        del record["seconds"]
    return {n: state[n] for n in ("engine", "progress", "random", "batches")}


def wait(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize("kills", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.agent) if n == "agent" else n for n in ENGINES])
def test_a_killed_training(name, kills, tmp_path):
    (tmp_path / "whole").mkdir()
    began = time.monotonic()
    wait(start(name, tmp_path / "whole", False))
    seconds, expected = time.monotonic() - began, end_of(tmp_path / "whole")
    draw, killed, runs = random.Random(name), 0, 0
    while killed < kills:
        folder = tmp_path / str(runs)
        folder.mkdir()
        while killed < kills and not (folder / "end.safetensors").exists():
            pid = start(name, folder)
            time.sleep(draw.uniform(0, 1.5 * seconds))
            os.kill(pid, signal.SIGKILL)
            killed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        wait(start(name, folder))
        np.testing.assert_equal(end_of(folder), expected)
        runs += 1

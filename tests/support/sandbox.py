"""A sandbox for models that may kill their process: load, build and step each in a child process.

As a program, `python sandbox.py first last engine...` prints a line of JSON for every mutant from `first` to `last` and
every engine; `python sandbox.py --models file engine...` does the same for the models pickled in a file, and `python
sandbox.py --values names engine...` for the values of those rows of `run_time_values` whose names, divided by commas,
are given, and `python sandbox.py --doors file` for the pickled models and the doors of `doors.py` that are pickled
beside each, by default all of them.
"""

import json
import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from functools import partial

import numpy as np

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import GraphError, NoGradientError, OrtPartialError
from ortpartial.runtime.device import has_training

SECONDS, MEMORY = 20, 6 << 30

#: How many times its seconds a child may sleep before it counts as hanging: a compiler that it waits for, or what it
#: reads from a disk, takes a minute on a machine that is busy.
SLEEP = 6

#: What is behind the name of a process in its /proc/*/stat: its state, and its clock ticks of itself and its children.
STATE, TIMES = 0, slice(11, 15)
RESULT, CLEAR, UNCLEAR, KILLED, HANG = "result", "clear error", "unclear error", "killed", "hang"


def step(model, feeds, targets, engine):
    """Forward and backward; a training of two epochs where there are targets."""
    if targets is not None:
        settings = {"learning_loss": {n: loss for n, (loss, _) in targets.items()}, "engine": engine}
        optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=2, batch_size=4, random_state=0, **settings)
        optimizer.fit(feeds, {n: t for n, (_, t) in targets.items()})
        return optimizer.losses(feeds, {n: t for n, (_, t) in targets.items()})
    layer = OrtGradientForwardBackward(model, engine=engine)
    ys, state = layer.forward(feeds)
    return layer.backward([np.ones_like(y) for y in ys], state)


def outcome(*arguments, run=None):
    """How a run, by default a step, ends: a kind of outcome and a sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            (run or step)(*arguments)
        except OrtPartialError as e:
            return CLEAR, f"{type(e).__name__}: {e}"
        except BaseException as e:
            place = traceback.extract_tb(e.__traceback__)[-1]
            return UNCLEAR, f"{type(e).__name__}: {e} ({os.path.basename(place.filename)}:{place.lineno} {place.name})"
    return RESULT, ""


def in_child(*arguments, seconds=SECONDS, run=outcome):
    """The outcome in a child process with limited time and memory."""
    return in_children(lambda: lambda values: run(*values), [arguments], seconds)[0]


def in_children(prepare, values, seconds=SECONDS):
    """The outcomes of values in a child process with limited time and memory; behind a value that ends it, in another.

    `prepare` returns what gives the outcome of a value.
    """
    outcomes = []
    while len(outcomes) < len(values):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            write_outcomes(prepare, values[len(outcomes) :], writer)
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as lines:
            is_ready, line = True, b"-"
            while len(outcomes) < len(values) and is_ready and line:
                is_ready = wait_for(lines, pid, seconds)
                line = lines.readline() if is_ready else b""
                if line:
                    outcomes.append(tuple(json.loads(line)))
        if not is_ready:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not is_ready:
            outcomes.append((HANG, f"after {seconds} s"))
        elif not line:
            name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "it ended without a word"
            outcomes.append((KILLED, name))
    return outcomes


def wait_for(lines, pid, seconds):
    """Wait for a line of a child: until it has computed for some seconds, or slept for several times as many.

    The clock on the wall says nothing of a child that has no processor: with a priority of 19 beside twelve busy
    processes, the second of imports before the first layer of torch takes more than a minute.
    """
    (_, computed), slept = read_process(pid), 0
    while not select.select([lines], [], [], 1)[0]:
        state, now = read_process(pid)
        slept = slept + 1 if state in "SDZ" else 0
        if now - computed > seconds or slept > SLEEP * seconds:
            return False
    return True


def read_process(pid):
    """The state of a process, and the seconds that it and its children have computed."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return fields[STATE], sum(map(int, fields[TIMES])) / os.sysconf("SC_CLK_TCK")


def write_outcomes(prepare, values, writer):
    """In a child: write a line of JSON for the outcome of each value, and end."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        run = prepare()
        for value in values:
            os.write(writer, json.dumps([str(v)[:1500] for v in run(value)]).encode() + b"\n")
    finally:
        os._exit(0)


def cases(arguments):
    """Name, model, feeds and targets of what the arguments of the program ask for."""
    if arguments[0] == "--models":
        with open(arguments[1], "rb") as f:
            yield from pickle.load(f)
    else:
        from mutants import mutants

        yield from mutants(int(arguments[0]), int(arguments[1]))


def routes(row, engine):
    """How a value reaches an operator: a name, and what runs a value."""
    from run_time_values import feeds, model

    def differentiable(open_model, computed):
        try:
            return open_model(model(row, computed=computed), None)
        except (GraphError, NoGradientError):
            return open_model(model(row, computed=computed, weight="behind"), ["w"])

    def layer(computed):
        opened = differentiable(partial(OrtGradientForwardBackward, engine=engine), computed)
        return lambda value: run_layer(opened, feeds(value, computed=computed))

    def training(computed):
        settings = {"engine": engine, "max_iter": 1, "batch_size": 4, "learning_rate": 1e-9, "random_state": 0}
        opened = differentiable(partial(OrtGradientForwardBackwardOptimizer, **settings), computed)
        return lambda value: run_training(opened, feeds(value, computed=computed))

    if engine != "epoch":
        yield "input", lambda: layer(computed=False)
    if row.valid.shape[:1] == (4,):
        yield "input of fit", lambda: training(computed=False)
    yield "computed", lambda: training(computed=True)


def run_layer(layer, feeds):
    ys, state = layer.forward(feeds)
    layer.backward([np.ones_like(y) for y in ys], state)


def run_training(optimizer, feeds):
    try:
        optimizer.predict(feeds)
    finally:
        optimizer.fit(feeds, np.zeros((4, 4), np.float32))


def prepared(prepare):
    """What gives the outcome of a value; the error of `prepare`, if it fails, is that of all values."""
    opened = []

    def run(value):
        if not opened:
            opened.append(prepare())
        opened[0](value)

    return lambda value: outcome(value, run=run)


def print_values(names, engines):
    """Print a line for each value, and behind them for the valid one once more: an error breaks nothing."""
    from run_time_values import ROWS

    for name, row in ROWS.items():
        if names and name not in names:
            continue
        values = [*row.values(), row.valid]
        for engine in engines:
            for route, prepare in routes(row, engine):
                outcomes = in_children(partial(prepared, prepare), values)
                for value, (kind, text) in zip(values, outcomes, strict=True):
                    case = f"{name}, {route}, {' '.join(str(value.tolist()).split())[:200]}"
                    print(json.dumps([case, engine, kind, text]), flush=True)


def main(arguments):
    # The children inherit what a first step initializes once per process.
    from models import data, linear

    X, y, _ = data(4)
    step(linear(), {"x": X}, {"y": ("square_error", y)}, "step")
    if arguments[0] == "--values":
        names, *engines = arguments[1:]
        print_values(names.split(",") if names else (), [e for e in engines if e != "agent" or has_training()])
        return
    if arguments[0] == "--doors":
        from doors import OnnxLayer, enter, list_doors

        OnnxLayer(linear())  # Imports the exporter of torch, some 800 modules, once, and not in each child.
        for name, model, feeds, doors in cases(["--models", arguments[1]]):
            for door in doors or list_doors(model):
                run = partial(outcome, run=enter)
                # All of its work is in a child, as loading may end the process; a few doors share one.
                kind, text = run(door, model, feeds) if doors else in_child(door, model, feeds, run=run)
                print(json.dumps([name, door, kind, text]), flush=True)
        return
    for name, model, feeds, targets in cases(arguments):
        for engine in arguments[2:]:
            if engine == "agent" and not has_training():
                continue
            start = time.perf_counter()
            kind, text = in_child(model, feeds, targets, engine)
            print(json.dumps([name, engine, kind, text, round(time.perf_counter() - start, 2)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

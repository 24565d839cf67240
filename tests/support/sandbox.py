"""A sandbox for models that may kill their process: load, build and step each in a child process.

As a program, `python sandbox.py first last engine...` prints a line of JSON for every mutant from `first` to `last` and
every engine; `python sandbox.py --models file engine...` does the same for the models pickled in a file.
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

import numpy as np

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import OrtPartialError
from ortpartial.runtime.device import has_training

SECONDS, MEMORY = 20, 6 << 30
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


def outcome(*arguments):
    """How a step ends: a kind of outcome and a sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            step(*arguments)
        except OrtPartialError as e:
            return CLEAR, f"{type(e).__name__}: {e}"
        except BaseException as e:
            place = traceback.extract_tb(e.__traceback__)[-1]
            return UNCLEAR, f"{type(e).__name__}: {e} ({os.path.basename(place.filename)}:{place.lineno} {place.name})"
    return RESULT, ""


def in_child(*arguments, seconds=SECONDS, run=outcome):
    """The outcome in a child process with limited time and memory."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.write(writer, pickle.dumps(tuple(str(v)[:1500] for v in run(*arguments))))
        finally:
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], seconds)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    raw = os.read(reader, 1 << 16) if ready else b""
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if not ready:
        return HANG, f"after {seconds} s"
    if os.WIFSIGNALED(status):
        return KILLED, signal.Signals(os.WTERMSIG(status)).name
    return pickle.loads(raw) if raw else (KILLED, "it ended without a word")


def cases(arguments):
    """Name, model, feeds and targets of what the arguments of the program ask for."""
    if arguments[0] == "--models":
        with open(arguments[1], "rb") as f:
            yield from pickle.load(f)
    else:
        from mutants import mutants

        yield from mutants(int(arguments[0]), int(arguments[1]))


def main(arguments):
    # The children inherit what a first step initializes once per process.
    from models import data, linear

    X, y, _ = data(4)
    step(linear(), {"x": X}, {"y": ("square_error", y)}, "step")
    for name, model, feeds, targets in cases(arguments):
        for engine in arguments[2:]:
            if engine == "agent" and not has_training():
                continue
            start = time.perf_counter()
            kind, text = in_child(model, feeds, targets, engine)
            print(json.dumps([name, engine, kind, text, round(time.perf_counter() - start, 2)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

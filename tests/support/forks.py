"""Children of a process that holds trainings: each door is used, dropped, collected, copied or built anew in a child.

As a program, `python forks.py ways doors uses` prints a line of JSON for every door, use and way: these, the outcome,
what the child wrote at its end, and its exit status. Ways are `fork` (`os.fork`), `process` (`multiprocessing`) and
`loader` (torch's DataLoader); they and the uses are divided by commas, doors by semicolons, and none stands for all.
The first lines are those of children of a process that has opened nothing.
"""

import atexit
import copy
import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import pickle
import select
import signal
import sys
import tempfile
import warnings
from contextlib import suppress

SECONDS, STATUS = 30, 3


def list_few_doors():
    """By name, what opens a training, and what uses it, with few imports, so that children end soon."""
    from models import data, linear, mlp

    from ortpartial import OrtGradientForwardBackwardOptimizer
    from ortpartial.runtime import Session

    x, y, _ = data(20)
    return {
        "two threads": (lambda: Session(linear(), threads=2), lambda s: list(s.run({"x": x}).values())),
        "optimizer": (lambda: OrtGradientForwardBackwardOptimizer(mlp(), max_iter=1, random_state=0),
                      lambda o: o.fit(x, y).predict(x)),
    }


def list_doors():
    """By name, what opens a training, and what uses it."""
    import numpy as np
    from models import mlp
    from trajectories import ENGINES, STORED, X, Y, make_batches, make_module, make_optimizer, make_own_loss

    from ortpartial import (
        OnnxLayer,
        OnnxRegressor,
        OrtGradientForwardBackward,
        TrainingKit,
        TrainingSession,
        add_lora,
        artifacts,
    )
    from ortpartial.runtime import has_training

    def fit(optimizer):
        return optimizer.fit(X, Y).predict(X)

    def differentiate(layer):
        (y,), state = layer.forward([X])
        return list(layer.backward([np.ones_like(y)], state)[0].values())

    def open_kit():
        folder = tempfile.mkdtemp()
        make_optimizer(mlp).export_step(folder, targets=(), batch_size=8)
        return TrainingKit(folder)

    def run_layer(layer):
        import torch

        torch.set_num_threads(1)
        x = torch.from_numpy(X)
        layer(x).sum().backward()
        return [p.grad.numpy() for p in layer.parameters()]

    def lora():
        return add_lora(mlp(), "*", rank=2, random_state=0)

    def open_artifacts():
        return artifacts.load(STORED / "mlp")

    doors = {f"engine {name}": (lambda s=settings: make_optimizer(mlp, **s), fit) for name, settings in ENGINES.items()}
    for engine in ("step", *(["agent"] if has_training() else [])):
        doors[f"forward and backward, {engine}"] = (
            lambda e=engine: OrtGradientForwardBackward(mlp(), engine=e), differentiate)
    return {
        **doors,
        "batches": (lambda: make_optimizer(mlp), lambda o: o.fit([(X[:9], Y[:9]), (X[9:], Y[9:])]).predict(X)),
        **list_few_doors(),
        "own loss": (make_own_loss, lambda o: o.fit(X, Y).get_state()),
        "OnnxRegressor": (lambda: OnnxRegressor(hidden_layer_sizes=(8,), max_iter=2, random_state=0),
                          lambda e: (e if hasattr(e, "optimizer_") else e.fit(X, Y[:, 0])).predict(X)),
        "LoRA": (lambda: make_optimizer(lora, learning_rate=1e-3), fit),
        "nn": (lambda: make_module("adam"), lambda m: [*m.fit(X, Y, epochs=1).state_dict().values(), m.eval()(X)]),
        "nn, eager": (lambda: make_module("adam", use_graph=False), lambda m: m.eval()(X)),
        "TrainingSession": (lambda: TrainingSession(make_optimizer(mlp).get_training_onnx(init="model")),
                            lambda s: list(s.step({"x": X, "y_target": Y}).values())),
        "TrainingKit": (open_kit, lambda k: k.train({"x": X, "y_target": Y}, 2)),
        "artifacts": (open_artifacts, lambda m: m.step(*make_batches("mlp")[0])),
        "OnnxLayer": (lambda: OnnxLayer(mlp()), run_layer),
    }


def digest(arrays):
    """A hash of the bits of arrays."""
    import numpy as np

    arrays = arrays if isinstance(arrays, list) else [arrays]
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:16]


class Case:
    """A training that has run, one that has not, and the numbers of a first run."""

    def __init__(self, begin, use):
        self.begin, self.use, self.training, self.fresh = begin, use, begin(), begin()
        self.expected, self.pickled = digest(use(self.training)), b""
        with suppress(Exception):  # A session is not pickled, nor is a module.
            self.pickled = pickle.dumps(self.fresh)

    def run(self, name):
        """The outcome of a use in a child."""
        try:
            return getattr(self, name)()
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    def exit(self):
        return "done"

    def use_it(self):
        return self.compare(self.training, "used")

    def drop(self):
        self.training = self.fresh = None
        return "done"

    def collect(self):
        cycle = [self.training, self.fresh]
        cycle.append(cycle)
        self.training = self.fresh = cycle = None
        gc.collect()
        return "done"

    def unpickle(self):
        return self.compare(pickle.loads(self.pickled)) if self.pickled else "not pickled"

    def copy(self):
        return self.compare(copy.deepcopy(self.fresh)) if self.pickled else "not pickled"

    def anew(self):
        return self.compare(self.begin())

    def compare(self, training, equal="equal"):
        return equal if digest(self.use(training)) == self.expected else "other numbers"


USES = ["exit", "use_it", "drop", "collect", "unpickle", "copy", "anew"]


def end():
    """The end of a child as Python has it: buffers are written, functions run, and there is a status."""
    atexit.register(lambda: sys.stdout.write(" at_exit"))
    sys.stdout.write("written")
    sys.exit(STATUS)


def run_forked(case, use):
    """The outcome of a use in a child of `os.fork`, what it wrote at its end, and its status."""
    return watch(case, use, start_fork)


def run_process(case, use):
    """The same in a process of multiprocessing."""
    return watch(case, use, start_process)


def watch(case, use, start):
    reader, writer = os.pipe()
    output = tempfile.TemporaryFile()  # noqa: SIM115 (open until the child has ended)

    def child():
        os.dup2(output.fileno(), 1)
        sys.stdout.flush()
        outcome = case.run(use) if case else "done"
        os.write(writer, outcome.encode())
        end()

    sys.stdout.flush()
    pid, join = start(child)
    os.close(writer)
    # Both ends of the pipe close with the child.
    with os.fdopen(reader, "rb", buffering=0) as results:
        outcome = results.read(4000) if select.select([results], [], [], SECONDS)[0] else b"hang"
        is_over = bool(select.select([results], [], [], SECONDS)[0])
    if not is_over or outcome == b"hang":
        os.kill(pid, signal.SIGKILL)
    status = join()
    output.seek(0)
    return outcome.decode(), output.read().decode(), status if is_over else "hang at the end"


def start_fork(child):
    if pid := os.fork():
        return pid, lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return child()


def start_process(child):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()

    def join():
        process.join()
        return process.exitcode

    return process.pid, join


def run_loader(case, use):
    """The outcomes of a use in two workers of a DataLoader, whose data set holds the training."""
    from torch.utils.data import DataLoader

    class Rows:
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return case.run(use) if case else "done"

    iterator = iter(DataLoader(Rows(), batch_size=1, num_workers=2, timeout=SECONDS, multiprocessing_context="fork"))
    workers, outcomes = iterator._workers, {outcome for (outcome,) in iterator}
    del iterator
    for worker in workers:
        worker.join(SECONDS)
    statuses = {worker.exitcode for worker in workers}
    return " and ".join(sorted(outcomes)), "", statuses.pop() if len(statuses) == 1 else str(statuses)


WAYS = {"fork": run_forked, "process": run_process, "loader": run_loader}


def main(ways, doors="", uses=""):
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the threads of the parent.
    ways, uses = ways.split(","), uses.split(",") if uses else USES
    for way in ways:
        print(json.dumps(["nothing", "exit", way, *WAYS[way](None, "exit")]), flush=True)
    listed = list_few_doors()
    if not doors or not {*doors.split(";")} <= {*listed}:
        listed = list_doors()
    gc.freeze()  # A child would copy every page that its collector passes over.
    for door in doors.split(";") if doors else listed:
        case = Case(*listed[door])
        for way, name in itertools.product(ways, uses):
            print(json.dumps([door, name, way, *WAYS[way](case, name)]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

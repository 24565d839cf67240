"""A race between contestants: one process each, in turns on the same cores."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from models import Task

HERE = Path(__file__).parent
#: Seconds that a turn takes at least, and that all turns of a contestant take; it has at least two turns.
TURN, PATIENCE = 0.1, 5.0
#: Weights are equal where the largest difference in a tensor is at most this, relative to its largest number:
#: scikit-learn's Adam has its ε in another place, which is a thousandth or two after 20 steps.
SAME = 5e-3


class Cannot(Exception):
    """A contestant does not take part, for the given reason."""


def pinned(cores: int) -> Callable[[], None]:
    """Pin a new process to the first of its cores."""
    def pin() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    return pin


class Process(AbstractContextManager["Process"]):
    """A contestant in a process of its own, on some cores, with one thread per core."""

    script = "worker.py"

    def __init__(self, name: str, cores: int = 1, **environment: str):
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(cores))
        self.name, self.cores, self.folder = name, cores, tempfile.TemporaryDirectory()
        # Caches of compiled code from earlier processes are not used.
        compiled = {"TORCHINDUCTOR_CACHE_DIR": self.folder.name}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / self.script)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=None if "BENCH_TRACE" in os.environ else subprocess.DEVNULL, preexec_fn=pinned(cores),
            env={**os.environ, **threads, **compiled, **environment})

    def ask(self, **what: Any) -> dict[str, Any]:
        """Send a command; returns the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
            said = self.process.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            raise Cannot(f"Its process died with status {self.process.wait()}.")
        answer = json.loads(said)
        if "cannot" in answer:
            raise Cannot(answer["cannot"])
        return answer

    def make(self, task: Task) -> dict[str, Any]:
        return self.ask(make=self.name, task=asdict(task))

    def weights(self) -> dict[str, np.ndarray]:
        path = Path(self.folder.name) / "weights.npz"
        self.ask(weights=str(path))
        with np.load(path) as arrays:
            return dict(arrays)

    def __exit__(self, *_: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.folder.cleanup()


def check(processes: Iterable[Process], task: Task) -> dict[str, str]:
    """The contestants that do not reach torch's weights in an epoch of a fixed order, and why."""
    task, expected, out = replace(task, shuffle=False, steps=min(task.steps, 20)), None, {}
    # The reference is torch, or the first contestant where torch is left out.
    for p in sorted(processes, key=lambda p: p.name != "torch"):
        try:
            p.make(task)
            p.ask(epoch=True)
        except Cannot as e:
            out[p.name] = str(e)
            continue
        try:
            found = p.weights()
        except Cannot as e:  # It trains differently.
            out[p.name] = f"{e} Its weights are not compared."
            continue
        expected = found if expected is None else expected
        worst = float(np.max([abs(found[n] - e).max() / abs(e).max() for n, e in expected.items()]))  # nan, if any is
        if not worst <= SAME:
            out[p.name] = f"It comes to other weights: they differ by {worst:.1e}."
    return out


def race(processes: Iterable[Process], task: Task, rounds: int) -> dict[str, dict[str, float]]:
    """Median microseconds per step of each contestant, in turns: wall time, processor time, and cores in use."""
    ready = []
    for p in processes:
        try:
            p.make(task)
            p.ask(epoch=True)
            ready.append(p)
        except Cannot:
            continue
    found: dict[str, list[dict[str, Any]]] = {p.name: [] for p in ready}
    for _ in range(rounds):
        for p in ready:
            before = found[p.name]
            if len(before) < 2 or sum(a["seconds"] for a in before) < PATIENCE:
                before.append(p.ask(turn=TURN))
    return {name: {**{what: statistics.median(a[key] for a in answers) / task.steps * 1e6
                      for what, key in (("us", "seconds"), ("cpu_us", "cpu"))},
                   "cores": sum(a["cpu"] for a in answers) / sum(a["seconds"] for a in answers)}
            for name, answers in found.items()}


def first(name: str, task: Task, cores: int, loss: float | None = None, epochs: int = 5) -> dict[str, float]:
    """In new processes: seconds to import, to the end of the first step, and to a loss; and peak megabytes.

    Without a loss, after so many epochs.
    """
    with Process(name, cores) as p:
        imported = p.ask(**{"import": name})["seconds"]
        made = p.make(replace(task, steps=1))["seconds"]
        step = made + p.ask(epoch=True)["seconds"]
    with Process(name, cores) as p:
        p.ask(**{"import": name})
        total = p.make(replace(task, shuffle=False))["seconds"]
        for k in range(1, 2 * epochs + 1):
            answer = p.ask(epoch=True)
            total += answer["seconds"]
            if answer["loss"] <= loss * 1.001 if loss is not None else k == epochs:
                break
        else:
            total = float("nan")
        return {"import": imported, "first": step, "to_loss": total, "loss": answer["loss"],
                "megabytes": p.ask(memory=True)["memory"]}

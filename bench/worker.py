"""
A process in which one contestant trains; `bench.py` starts it and says what to do, a line of JSON for each.

    {"import": PEER}                  import what it needs
    {"make": PEER, "task": {...}}     make it ready, data apart
    {"epoch": true}                   let it train for an epoch
    {"turn": SECONDS}                 let it train for epochs, as many as take so long; the seconds are those of one
    {"weights": PATH}                 write its weights
    {"memory": true}                  say how much memory there was at most

Every answer has the seconds that passed and those that the processor worked, or says what the contestant cannot do.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import statistics
import sys
import time
import traceback
from typing import Any

import numpy as np
from models import Task
from peers import IMPORTS, PEERS, Cannot, Peer


class Worker:
    """What the lines are done with."""

    peer: Peer

    def ready(self, line: dict[str, Any]) -> None:
        """What belongs to no measurement."""
        self.line = line
        if "make" in line:
            self.task = Task(**line["task"])
            _ = self.task.start, self.task.data
            vars(self).pop("peer", None)
        gc.collect()

    def do(self) -> dict[str, Any]:
        line = self.line
        if "import" in line:
            importlib.import_module(IMPORTS[line["import"]])
        elif "make" in line:
            self.peer = PEERS[line["make"]](self.task)
        elif "epoch" in line:
            return {"loss": self.peer.epoch()}
        elif "turn" in line:
            return self.turn(line["turn"])
        elif "weights" in line:
            np.savez(line["weights"], **self.peer.weights())
        return {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}

    def turn(self, least: float) -> dict[str, float]:
        """The median of epochs; the first of several does not count: a process that has waited is cold."""
        found: list[dict[str, float]] = []
        while sum(f["seconds"] for f in found) < least:
            start, used = time.perf_counter(), time.process_time()
            self.peer.epoch()
            found.append({"seconds": time.perf_counter() - start, "cpu": time.process_time() - used})
        return {what: statistics.median(f[what] for f in found[1:] or found) for what in found[0]}

    def answer(self, line: dict[str, Any]) -> dict[str, Any]:
        """What is found, and how long it took."""
        self.ready(line)
        gc.disable()
        start, used = time.perf_counter(), time.process_time()
        try:
            found = self.do()
        except Exception as e:  # whatever a contestant says, it is told
            if "BENCH_TRACE" in os.environ:
                traceback.print_exc()
            found = {"cannot": sentence(e)}
        times = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - used}
        gc.enable()
        return {**times, **found}


def sentence(e: Exception) -> str:
    """The first line of what an error says, and not too much of it."""
    if isinstance(e, ModuleNotFoundError):
        return f"{e.name} is not installed."
    first = (str(e).strip().splitlines() or [""])[0]
    text = first if len(first) < 160 else first[:160].rsplit(" ", 1)[0] + " ..."
    return text if isinstance(e, Cannot) else f"{type(e).__name__}: {text}"


if __name__ == "__main__":
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    worker = Worker()
    for asked in sys.stdin:
        print(json.dumps(worker.answer(json.loads(asked))), file=said, flush=True)

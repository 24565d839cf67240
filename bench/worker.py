"""
A process in which one contestant trains. `bench.py` starts it and sends commands, one line of JSON each.

    {"import": PEER}                  import its libraries
    {"make": PEER, "task": {...}}     set it up, without the data
    {"epoch": true}                   train for an epoch
    {"turn": SECONDS}                 train for as many epochs as fit; the seconds are those of one
    {"weights": PATH}                 write its weights
    {"memory": true}                  the peak memory

Every answer has the wall time and the processor time in seconds, or says what the contestant cannot do.
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
    """Executes the commands."""

    peer: Peer

    def ready(self, line: dict[str, Any]) -> None:
        """Prepare what is not to be measured."""
        self.line = line
        if "make" in line:
            self.task = Task(**line["task"])
            _ = self.task.start, self.task.data, self.task.trained
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
        """The median over epochs; the first of several is left out, as the caches of a waiting process are cold."""
        result: list[dict[str, float]] = []
        while sum(f["seconds"] for f in result) < least:
            start, used = time.perf_counter(), time.process_time()
            self.peer.epoch()
            result.append({"seconds": time.perf_counter() - start, "cpu": time.process_time() - used})
        return {what: statistics.median(f[what] for f in result[1:] or result) for what in result[0]}

    def answer(self, line: dict[str, Any]) -> dict[str, Any]:
        """Execute a command; returns the result and the time it took."""
        self.ready(line)
        gc.disable()
        start, used = time.perf_counter(), time.process_time()
        try:
            result = self.do()
        except Exception as e:  # any error of a contestant is reported
            if "BENCH_TRACE" in os.environ:
                traceback.print_exc()
            result = {"cannot": sentence(e)}
        times = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - used}
        gc.enable()
        return {**times, **result}


def sentence(e: Exception) -> str:
    """The first line of an error message, shortened."""
    if isinstance(e, ModuleNotFoundError):
        return f"{e.name} is not installed."
    first = (str(e).strip().splitlines() or [""])[0]
    text = first if len(first) < 160 else first[:160].rsplit(" ", 1)[0] + " ..."
    return text if isinstance(e, Cannot) else f"{type(e).__name__}: {text}"


def serve(worker: Worker) -> None:
    """Answer commands until there are no more."""
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not an answer
    for asked in sys.stdin:
        print(json.dumps(worker.answer(json.loads(asked))), file=said, flush=True)


if __name__ == "__main__":
    serve(Worker())

"""
Profile of a training step by operator, from onnxruntime's profiler.

    python bench/nodes.py FOLDER MODEL RATE BATCH [steps]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from models import Task, model
from peers import Ours

from ortpartial import build, variable
from ortpartial.subgraph import scan


def session(path: str | bytes, **settings: Any) -> onnxruntime.InferenceSession:
    """A session like that of the step engine, with as many threads as there are cores to use."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.inter_op_num_threads = 3, 1
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    for name, value in settings.items():
        setattr(options, name, value)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def profile(task: Task, steps: int = 20) -> dict[str, Any]:
    """The number of nodes that run in a step; for every operator its count, microseconds per step, and share."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Ours(task, "epoch").optimizer._engine  # for large weights, "step" runs two graphs
        # A program runs a graph for the size of its batch; `save_onnx_graph` writes that for all sizes.
        onnx.save(engine.source.for_rows(task.batch).compose().build(), f"{folder}/step.onnx")
        run = session(f"{folder}/step.onnx", enable_profiling=True, profile_file_prefix=f"{folder}/profile")
        X, y = task.data
        arrays = {"x": X[: task.batch], "y_target": y[: task.batch], "iteration": np.int64(1),
                  **{w: engine.get(w) for w in engine.source.first}}
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        feeds = {i.name: np.asarray(arrays.get(i.name, 0), kinds[i.type]) for i in run.get_inputs()}
        for i in run.get_inputs():
            if i.name not in arrays:  # optimizer state, or sample weights
                feeds[i.name] = np.ones([task.batch if isinstance(s, str) else s for s in i.shape], kinds[i.type])
        for _ in range(steps):
            run.run(None, feeds)
        events = json.loads(Path(run.end_profiling()).read_text())
    by_operator: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for e in events:
        if e.get("cat") == "Node" and e["name"].endswith("_kernel_time"):
            by_operator[e["args"]["op_name"]][0] += 1 / steps
            by_operator[e["args"]["op_name"]][1] += e["dur"] / steps
    total = sum(us for _, us in by_operator.values())
    ranked = sorted(by_operator.items(), key=lambda f: -f[1][1])
    return {"nodes": round(sum(n for n, _ in by_operator.values())),
            "operators": [{"operator": o, "nodes": round(n), "us": us, "share": us / total} for o, (n, us) in ranked]}


def floor(times: int = 20_000) -> tuple[float, float]:
    """Microseconds of a Scan iteration with one node, and of one more small node."""
    s, xs = variable("s", "float32", [1]), variable("xs", "float32", ["T"])

    def chain(nodes: int) -> float:
        def body(s: Any, x: Any) -> Any:
            for i in range(nodes):
                s = s - x if i % 2 else s * x
            return s

        last = scan(body, s, xs)
        run = session(build([s, xs], {"last": last}).SerializeToString(), intra_op_num_threads=1)
        feeds, best = {"s": np.ones(1, np.float32), "xs": np.ones(times, np.float32)}, float("inf")
        for _ in range(5):
            start = time.perf_counter()
            run.run(None, feeds)
            best = min(best, time.perf_counter() - start)
        return best / times * 1e6

    one, many = chain(1), chain(21)
    return one, (many - one) / 20


if __name__ == "__main__":
    folder, name, rate, batch, *steps = sys.argv[1:]
    report = profile(Task(name, rate, int(batch), 1, folder), *map(int, steps))
    one, more = floor()
    print(json.dumps({"model": model(name).title, "rate": rate, "batch": int(batch), **report,
                      "floor": one + (report["nodes"] - 1) * more, "iteration": one, "node": more}))

"""
Where does the time of a step go? The joined step of ortpartial under onnxruntime's own profiler, by operator.

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
from ortpartial.training.step import step_graph


def session(path: str | bytes, **settings: Any) -> onnxruntime.InferenceSession:
    """A session as the step engine has it, with as many threads as there are cores to use."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.inter_op_num_threads = 3, 1
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    for name, value in settings.items():
        setattr(options, name, value)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def profile(task: Task, steps: int = 20) -> dict[str, Any]:
    """Nodes that run in a step, and of every operator how many there are, microseconds a step, and its share."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Ours(task, "epoch").optimizer._engine  # of big weights, "step" runs in two graphs
        # What a program runs is made for the size of its batch; what `save_onnx_graph` writes is for all sizes.
        onnx.save(step_graph(engine.spec.for_batch(task.batch)), f"{folder}/step.onnx")
        run = session(f"{folder}/step.onnx", enable_profiling=True, profile_file_prefix=f"{folder}/profile")
        X, y = task.data
        given = {"x": X[: task.batch], "y_target": y[: task.batch], "iteration": np.int64(1),
                 **{w: engine.get(w) for w in engine.spec.weights}}
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        feeds = {i.name: np.asarray(given.get(i.name, 0), kinds[i.type]) for i in run.get_inputs()}
        for i in run.get_inputs():
            if i.name not in given:  # the state of an optimizer, or the weights of the rows
                feeds[i.name] = np.ones([task.batch if isinstance(s, str) else s for s in i.shape], kinds[i.type])
        for _ in range(steps):
            run.run(None, feeds)
        events = json.loads(Path(run.end_profiling()).read_text())
    found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for e in events:
        if e.get("cat") == "Node" and e["name"].endswith("_kernel_time"):
            found[e["args"]["op_name"]][0] += 1 / steps
            found[e["args"]["op_name"]][1] += e["dur"] / steps
    total = sum(us for _, us in found.values())
    ranked = sorted(found.items(), key=lambda f: -f[1][1])
    return {"nodes": round(sum(n for n, _ in found.values())),
            "operators": [{"operator": o, "nodes": round(n), "us": us, "share": us / total} for o, (n, us) in ranked]}


def floor(times: int = 20_000) -> tuple[float, float]:
    """Microseconds that onnxruntime takes for an iteration of Scan with one node, and for one more small node."""
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
    found = profile(Task(name, rate, int(batch), 1, folder), *map(int, steps))
    one, more = floor()
    print(json.dumps({"model": model(name).title, "rate": rate, "batch": int(batch), **found,
                      "floor": one + (found["nodes"] - 1) * more, "iteration": one, "node": more}))

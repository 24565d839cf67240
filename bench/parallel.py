"""
Time of an epoch with one process and with two, on the cores of this machine.

    python bench/parallel.py

Every figure is the median over rounds; in each round, all settings take turns. One process is measured with one thread
and with one per core; two processes have one thread each. The figures are written to bench/results/, too.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import numpy as np
from machine import write_results

#: Sizes of a row, layers (channels of convolutions, or widths), batches, and the number of rows.
MODELS = {
    "conv 1-32-64-64, 28 x 28": ((1, 28, 28), (32, 64, 64), (16, 64), 256),
    "MLP 784-1024-1024-10": ((784,), (1024, 1024, 10), (256, 1024), 4096),
    "MLP 20-100-1": ((20,), (100, 1), (32, 1024), 4096),
}
ROUNDS, EPOCHS = 3, 3


def model_of(row: tuple[int, ...], widths: tuple[int, ...]):
    """A multilayer perceptron, or convolutions and the mean over the image."""
    from ortpartial import build, constant, op, variable

    rng = np.random.default_rng(0)
    x = y = variable("x", "float32", ["N", *row])
    for i, (m, n) in enumerate(itertools.pairwise((row[0], *widths))):
        shape = (n, m, 3, 3) if len(row) > 1 else (m, n)
        W = constant((rng.normal(size=shape) / m**0.5 / 3).astype(np.float32), hint=f"W{i}")
        b = constant(np.zeros(n, np.float32), hint=f"b{i}")
        y = op.Conv(y, W, b, pads=[1, 1, 1, 1]) if len(row) > 1 else y @ W + b
        y = op.Relu(y) if i < len(widths) - 1 else y
    return build([x], {"y": op.ReduceMean(y, [2, 3], keepdims=0) if len(row) > 1 else y})


def measure(name: str, batch: int, port: int) -> None:
    """One process of a training: prints the seconds per epoch, without the first."""
    from ortpartial import OrtGradientForwardBackwardOptimizer

    rank, size, alone = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "ALONE" in os.environ
    if not alone:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    row, widths, _, rows = MODELS[name]
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows, *row)).astype(np.float32)
    y = rng.normal(size=(rows, widths[-1])).astype(np.float32)
    o = OrtGradientForwardBackwardOptimizer(model_of(row, widths), learning_rate=1e-3, batch_size=batch, max_iter=1,
                                            distributed=not alone, random_state=0, warm_start=True)
    o.fit(X, y)
    times = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        o.partial_fit(X, y)
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps(statistics.median(times)))
    if not alone:
        dist.destroy_process_group()


def run(name: str, batch: int, size: int, alone: bool) -> float:
    """Seconds per epoch with some processes of one thread each, or with one process that uses all threads."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    started = []
    for rank in range(size):
        # With one process per core, each uses one thread.
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
                       "LOCAL_WORLD_SIZE": str(os.cpu_count()), **({"ALONE": "1"} if alone else {})}
        started.append(subprocess.Popen([sys.executable, __file__, name, str(batch), str(port)], env=environment,
                                        stdout=subprocess.PIPE, text=True))
    said = [p.communicate()[0] for p in started]
    if any(p.returncode for p in started):
        sys.exit("a process failed")
    return float(said[0])


def main() -> None:
    """All models and batches, in turns."""
    cores = os.cpu_count() or 1
    settings = {"1 process, 1 thread": (1, False), f"1 process, {cores} threads": (1, True), "2 processes": (2, False)}
    print(f"milliseconds an epoch on {cores} cores; in brackets, times the first column\n")
    print(f"{'model':26} {'batch':>5}  " + "  ".join(f"{s:>20}" for s in settings))
    entries = []
    for name in MODELS:
        for batch in MODELS[name][2]:
            times: dict[str, list[float]] = {s: [] for s in settings}
            for _ in range(ROUNDS):
                for s, (size, alone) in settings.items():
                    times[s].append(run(name, batch, size, alone))
            medians = {s: 1000 * statistics.median(t) for s, t in times.items()}
            entries.append({"model": name, "batch": batch, "ms": medians})
            first = next(iter(medians.values()))
            cells = [f"{m:.1f} ({m / first:.2f})" for m in medians.values()]
            print(f"{name:26} {batch:5}  " + "  ".join(f"{c:>20}" for c in cells), flush=True)
    write_results("parallel", {"parallel": entries})


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 1 else main()

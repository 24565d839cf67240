"""Does it pay to train with two processes? Seconds an epoch of one process and of two, on the cores of this machine.

    python bench/parallel.py

Every figure is the median of the rounds; in each round the settings take their turns. One process is measured with one
thread and with as many as there are cores, two processes have one thread each.
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

MODELS = {"MLP 784-1024-1024-10": (784, [1024, 1024], 10), "MLP 20-100-1": (20, [100], 1)}
BATCHES = {"MLP 784-1024-1024-10": (256, 1024), "MLP 20-100-1": (32, 1024)}
ROUNDS, EPOCHS = 3, 3
ROWS = 4096


def model_of(inputs: int, hidden: list[int], outputs: int):
    """A multilayer perceptron."""
    from ortpartial import build, constant, op, variable

    rng = np.random.default_rng(0)
    x = y = variable("x", "float32", ["N", inputs])
    sizes = [inputs, *hidden, outputs]
    for i, (m, n) in enumerate(itertools.pairwise(sizes)):
        y = y @ constant((rng.normal(size=(m, n)) / m**0.5).astype(np.float32), hint=f"W{i}")
        y = y + constant(np.zeros(n, np.float32), hint=f"b{i}")
        y = op.Relu(y) if n != outputs else y
    return build([x], {"y": y})


def measure(name: str, batch: int, port: int) -> None:
    """One process of a training: prints the seconds of an epoch after a first one."""
    from ortpartial import OrtGradientForwardBackwardOptimizer

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size > 1:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(ROWS, MODELS[name][0])).astype(np.float32)
    y = X[:, : MODELS[name][2]]
    o = OrtGradientForwardBackwardOptimizer(model_of(*MODELS[name]), learning_rate=1e-3, batch_size=batch, max_iter=1,
                                            distributed=size > 1, random_state=0, warm_start=True)  # fmt: skip
    o.fit(X, y)
    times = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        o.partial_fit(X, y)
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps(statistics.median(times)))
    if size > 1:
        dist.destroy_process_group()


def run(name: str, batch: int, size: int, threads: int) -> float:
    """Seconds an epoch with so many processes of so many threads."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    started = []
    for rank in range(size):
        cores = set(range(threads)) if size == 1 else {rank % (os.cpu_count() or 1)}
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
                       "OMP_NUM_THREADS": str(threads)}  # fmt: skip
        started.append(subprocess.Popen(
            [sys.executable, __file__, name, str(batch), str(port)], env=environment, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores)))  # fmt: skip
    said = [p.communicate()[0] for p in started]
    if any(p.returncode for p in started):
        sys.exit("a process failed")
    return float(said[0])


def main() -> None:
    """All models and batches, in turns."""
    cores = os.cpu_count() or 1
    settings = {"1 process, 1 thread": (1, 1), f"1 process, {cores} threads": (1, cores), "2 processes": (2, 1)}
    print(f"milliseconds an epoch of {ROWS} rows on {cores} cores; in brackets, times the first column\n")
    print(f"{'model':22} {'batch':>5}  " + "  ".join(f"{s:>20}" for s in settings))
    for name in MODELS:
        for batch in BATCHES[name]:
            times: dict[str, list[float]] = {s: [] for s in settings}
            for _ in range(ROUNDS):
                for s, (size, threads) in settings.items():
                    times[s].append(run(name, batch, size, threads))
            medians = {s: 1000 * statistics.median(t) for s, t in times.items()}
            first = next(iter(medians.values()))
            cells = [f"{m:.1f} ({m / first:.2f})" for m in medians.values()]
            print(f"{name:22} {batch:5}  " + "  ".join(f"{c:>20}" for c in cells), flush=True)


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 1 else main()

"""Seconds from a model to the end of its first `fit`: reading, gradient, rewrites, compilation and one epoch.

    python bench/first_fit.py [--repeat 31] [--against FOLDER]

FOLDER holds another checkout of the project: the two take turns, each in a process of its own, and ratios are printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

HERE = Path(__file__).resolve()


def chain(n: int = 300):
    """A chain of n operators between a product and the output, a bias added at every tenth of them."""
    from ortpartial import build, constant, op, variable

    rng = np.random.default_rng(0)
    x = variable("X", "float32", ["N", 20])
    h = x @ constant(rng.normal(size=(20, 20)).astype(np.float32) / 5, hint="w")
    for i in range(n - 1):
        if i % 10 == 9:
            h = h + constant(np.zeros(20, np.float32), hint=f"b{i}")
        else:
            h = (op.Tanh, op.Sigmoid, op.Softplus)[i % 3](h)
    return build([x], {"y": h}), 20


def network(hidden: int = 100):
    """20 inputs, a hidden layer of Relu and one output."""
    from ortpartial import build, constant, op, variable

    rng = np.random.default_rng(0)
    x = variable("X", "float32", ["N", 20])
    first, second = (constant(rng.normal(size=s).astype(np.float32) / 5, hint=f"w{s[1]}")
                     for s in ((20, hidden), (hidden, 1)))
    h = op.Relu(x @ first + constant(np.zeros(hidden, np.float32), hint="b1"))
    return build([x], {"y": h @ second + constant(np.zeros(1, np.float32), hint="b2")}), 1


def wide(width: int = 512, hidden: int = 4096, layers: int = 6):
    """25 million weights, of which one copy is kept: a chain of layers with Relu between them."""
    from ortpartial import build, constant, op, variable

    rng = np.random.default_rng(0)
    x = h = variable("X", "float32", ["N", 20])
    sizes = [20, *[width, hidden] * layers, 1]
    for i, size in enumerate(itertools.pairwise(sizes)):
        h = op.Relu(h) if i else h
        h = h @ constant(rng.normal(size=size).astype(np.float32) / np.sqrt(size[0]).astype(np.float32), hint=f"w{i}")
    return build([x], {"y": h}), 1


def measure(repeat: int) -> dict[str, float]:
    """The median seconds of first fits of every model; the first one of the process is left out."""
    from ortpartial import OrtGradientForwardBackwardOptimizer

    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 20)).astype(np.float32)
    medians = {}
    for model, rows in ((network, 10), (chain, 10), (wide, 100)):
        proto, width = model()
        y, seconds = rng.normal(size=(100, width)).astype(np.float32), []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            OrtGradientForwardBackwardOptimizer(proto, max_iter=1, batch_size=rows).fit(X, y)
            seconds.append(time.perf_counter() - start)
        medians[model.__name__] = median(seconds[1:])
    return medians


def main() -> None:
    """Measure this checkout, or it and another in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=31)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.json:
        print(json.dumps(measure(args.repeat)))
        return
    folders = [HERE.parents[1], *([args.against] if args.against else [])]
    runs: list[list[dict[str, float]]] = [[] for _ in folders]
    for _ in range(3):
        for folder, results in zip(folders, runs, strict=True):
            command = [sys.executable, str(HERE), "--json", "--repeat", str(args.repeat)]
            environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
            out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            results.append(json.loads(out))
    for model in runs[0][0]:
        here, *other = (median(run[model] for run in results) for results in runs)
        print(f"{model:8} {here * 1e3:8.1f} ms" + "".join(f"  {o * 1e3:8.1f} ms  {here / o:.2f}" for o in other))


if __name__ == "__main__":
    main()

"""
Time of a step while features become rare: the moments of their weights decay, and must not stay denormal.

    python bench/sparse.py [steps, 5000] [features, 2000] [seconds of waiting for torch, 60]

A network of 256 units reads rows of which few features are not 0, frequent ones and rare ones; the first batch
has all of them. Adam takes the steps by `partial_fit`, one batch of 16 rows each. Milliseconds of the processor are
medians over each tenth of the steps, and the last line compares the slowest tenth with the first. torch takes the same
steps, as long as it is waited for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.learning_rate import LearningRateAdam

ROWS, UNITS = 16, 256

Step = Callable[[np.ndarray, np.ndarray], object]


def batch(features: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with some features, and their targets; the last ones of 2000 are in a batch once in 5000 steps."""
    rng = np.random.default_rng(k)
    shares = np.arange(1, features + 1) ** -1.5
    X = (rng.normal(size=(ROWS, features)) * (rng.uniform(size=(ROWS, features)) < (shares if k else 1))).astype("f")
    return X, X[:, :3].sum(axis=1, keepdims=True)


def with_ortpartial(W: np.ndarray, v: np.ndarray) -> Step:
    x = variable("x", "float32", ["N", len(W)])
    model = build([x], {"y": op.Relu(x @ constant(W, hint="W")) @ constant(v, hint="v")})
    return OrtGradientForwardBackwardOptimizer(model, learning_rate=LearningRateAdam(), batch_size=ROWS).partial_fit


def with_torch(W: np.ndarray, v: np.ndarray) -> Step:
    import torch

    torch.set_num_threads(1)
    weights = [torch.nn.Parameter(torch.tensor(a)) for a in (W, v)]
    optimizer = torch.optim.Adam(weights)

    def step(X: np.ndarray, y: np.ndarray) -> None:
        optimizer.zero_grad()
        h = torch.relu(torch.from_numpy(X) @ weights[0]) @ weights[1]
        torch.nn.functional.mse_loss(h, torch.from_numpy(y)).backward()
        optimizer.step()

    return step


def measure(step: Step, features: int, steps: int, patience: float) -> list[float]:
    """Milliseconds a step in each tenth of the steps."""
    times, end = [], time.perf_counter() + patience
    for k in range(steps):
        X, y = batch(features, k)
        start = time.process_time()
        step(X, y)
        times.append((time.process_time() - start) * 1e3)
        if time.perf_counter() > end:
            break
    return [float(np.median(part)) for part in (times[i : i + steps // 10] for i in range(0, len(times), steps // 10))]


def main(steps: int = 5000, features: int = 2000, patience: int = 60) -> None:
    rng = np.random.default_rng(0)
    W = (rng.normal(size=(features, UNITS)) / features**0.5).astype(np.float32)
    v = (rng.normal(size=(UNITS, 1)) / UNITS**0.5).astype(np.float32)
    print(f"ms a step, in each tenth of {steps} steps of {features}-{UNITS}-1")
    tenths = measure(with_ortpartial(W, v), features, steps, float("inf"))
    for name, times in (("ortpartial", tenths), ("torch", measure(with_torch(W, v), features, steps, patience))):
        print(f"{name:10}" + "".join(f"{t:8.2f}" for t in times), flush=True)
    print(f"slowest tenth / first tenth of ortpartial: {max(tenths) / tenths[0]:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

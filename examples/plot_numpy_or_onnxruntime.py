"""
An expression in numpy and in onnxruntime
=========================================

An expression of the notation is a graph, and `Session` runs it on onnxruntime. Calling a graph costs some microseconds,
so numpy is faster on few numbers. On many numbers a graph is faster where one operator replaces several passes of
numpy, as Softmax does; a single pass takes the same time in both. One core each. ::

    python examples/plot_numpy_or_onnxruntime.py [folder for the figure] [device]
"""

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import build, op, variable
from ortpartial.runtime import Session


def np_softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# The same formula twice: over arrays, and over values of the notation.
FUNCTIONS = {
    "2x + 1": (lambda x: 2 * x + 1, lambda x: 2 * x + 1),
    "exp(-x²)": (lambda x: np.exp(-x * x), lambda x: op.Exp(-x * x)),
    "tanh(x)": (np.tanh, op.Tanh),
    "softmax(x)": (np_softmax, lambda x: op.Softmax(x, axis=1)),
    "Σ x²": (lambda x: (x * x).sum(axis=1), lambda x: op.ReduceSumSquare(x, [1], keepdims=0)),
}
ROWS = [1, 10, 100, 1_000, 10_000]


def seconds(call, *arguments):
    """The median time of a call, over 10 ms of calls and at least three."""
    call(*arguments)
    times, end = [], time.perf_counter() + 0.01
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - start)
    return np.median(times)


rng, ratios, largest = np.random.default_rng(0), {}, 0.0
print("times as fast as numpy, by rows of 50 numbers:")
print(" " * 11 + "".join(f"{n:>9}" for n in ROWS))
for name, (in_numpy, in_onnx) in FUNCTIONS.items():
    x = variable("x", "float32", ["N", 50])
    session = Session(build([x], {"y": in_onnx(x)}), device=[*sys.argv[2:], "cpu"][0])
    ratios[name] = []
    for n in ROWS:
        feeds = {"x": rng.normal(size=(n, 50)).astype(np.float32)}
        expected, found = in_numpy(feeds["x"]), session.run(feeds)["y"]
        largest = max(largest, np.max(np.abs(found - expected) / (1 + np.abs(expected))))
        ratios[name].append(seconds(in_numpy, feeds["x"]) / seconds(session.run, feeds))
    print(f"{name:11}" + "".join(f"{r:9.2f}" for r in ratios[name]))
print(f"largest difference between the two: {largest:.7f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, ax = plt.subplots(figsize=(7, 4))
    for name, r in ratios.items():
        ax.loglog(np.array(ROWS) * 50, r, "o-", label=name)
    ax.axhline(1, color="gray", linestyle=":", label="equally fast")
    ax.set(xlabel="numbers in x", ylabel="time of numpy / of onnxruntime", title="Above the line a graph is faster")
    ax.legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "numpy_or_onnxruntime.png")

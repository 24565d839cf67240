"""
How long does a training step take, side by side with what else one would take? Microseconds, on one core.

    make bench        or        python bench/bench.py [rounds]

A linear model (20 features) and a network 20-100-1 (Relu) are trained with the square loss and plain SGD by

* agent, step and epoch: the public `fit` of ortpartial, checks of the data, shuffling and bookkeeping included;
* torch: its eager mode, `torch.nn`, `torch.optim.SGD`;
* sklearn: `MLPRegressor.partial_fit`, an epoch a call; `SGDRegressor.partial_fit` for the linear model, which steps
  after every row in compiled code, so that a "step" is the time of as many rows as the batch has;
* numpy: the formulas, written by hand.

Every contestant shuffles 200 batches and trains on all of them; that is one measurement. They take turns for some
rounds, and the medians are compared. Before that, all but scikit-learn, which starts from weights of its own, have to
come to the same weights in an epoch of a fixed order.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import gc
import json
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import sklearn
import threadpoolctl
import torch
from sklearn.linear_model import SGDRegressor
from sklearn.neural_network import MLPRegressor

import ortpartial
from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.runtime import has_training, runtime_version

FEATURES, HIDDEN, RATE = 20, 100, 1e-3
BATCHES = (1, 10, 32, 256, 1024)
STEPS = 200
MODELS = {"linear": "linear model, 20 features", "mlp": "network 20-100-1"}


def weights(kind: str) -> dict[str, np.ndarray]:
    """The weights that all contestants start from."""
    rng = np.random.default_rng(0)
    shapes = {"W1": (FEATURES, 1), "b1": (1,)}
    if kind == "mlp":
        shapes = {"W1": (FEATURES, HIDDEN), "b1": (HIDDEN,), "W2": (HIDDEN, 1), "b2": (1,)}
    return {n: rng.uniform(-1, 1, s).astype(np.float32) / np.float32(s[0] ** 0.5) for n, s in shapes.items()}


def onnx_model(kind: str) -> onnx.ModelProto:
    """The model as ONNX."""
    x = variable("x", "float32", ["N", FEATURES])
    w = {n: constant(a, hint=n) for n, a in weights(kind).items()}
    y = x @ w["W1"] + w["b1"]
    return build([x], {"y": op.Relu(y) @ w["W2"] + w["b2"] if kind == "mlp" else y})


class Ours:
    """`fit` with warm_start, so that a second call goes on from the first and finds everything compiled."""

    def __init__(self, engine, kind, X, y, batch, shuffle=True):
        self.data = X, y
        self.optimizer = OrtGradientForwardBackwardOptimizer(
            onnx_model(kind), list(weights(kind)), learning_rate=RATE, max_iter=1, batch_size=batch, shuffle=shuffle,
            engine=engine, warm_start=True, random_state=0)  # fmt: skip

    def epoch(self):
        self.optimizer.fit(*self.data)

    def weights(self):
        return self.optimizer.get_state()


class Torch:
    """The loop of every tutorial."""

    def __init__(self, kind, X, y, batch, shuffle=True):
        self.X, self.y, self.batch, self.shuffle = torch.from_numpy(X), torch.from_numpy(y), batch, shuffle
        if kind == "mlp":
            linear = torch.nn.Linear
            self.model = torch.nn.Sequential(linear(FEATURES, HIDDEN), torch.nn.ReLU(), linear(HIDDEN, 1))
        else:
            self.model = torch.nn.Linear(FEATURES, 1)
        with torch.no_grad():
            for p, a in zip(self.model.parameters(), weights(kind).values(), strict=True):
                p.copy_(torch.from_numpy(a.T.copy()))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)

    def epoch(self):
        X, y, model, optimizer, total = self.X, self.y, self.model, self.optimizer, 0.0
        order = torch.randperm(len(X)) if self.shuffle else torch.arange(len(X))
        for rows in order.split(self.batch):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(X[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total

    def weights(self):
        return [p.detach().numpy().T for p in self.model.parameters()]


class Numpy:
    """The gradient by hand."""

    def __init__(self, kind, X, y, batch, shuffle=True):
        self.X, self.y, self.batch, self.shuffle = X, y, batch, shuffle
        self.w, self.rng = weights(kind), np.random.default_rng(0)
        self.step = self.mlp if kind == "mlp" else self.linear

    def epoch(self):
        total, order = 0.0, self.rng.permutation(len(self.X)) if self.shuffle else np.arange(len(self.X))
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            total += self.step(self.X[rows], self.y[rows], **self.w)
        return total

    def linear(self, x, t, W1, b1):
        e = x @ W1 + b1 - t
        dy = e * (2 * RATE / len(e))
        W1 -= x.T @ dy
        b1 -= dy.sum(axis=0)
        return float((e * e).mean())

    def mlp(self, x, t, W1, b1, W2, b2):
        h = np.maximum(x @ W1 + b1, 0)
        e = h @ W2 + b2 - t
        dy = e * (2 * RATE / len(e))
        dh = (dy @ W2.T) * (h > 0)
        W2 -= h.T @ dy
        b2 -= dy.sum(axis=0)
        W1 -= x.T @ dh
        b1 -= dh.sum(axis=0)
        return float((e * e).mean())

    def weights(self):
        return list(self.w.values())


class Sklearn:
    """An epoch by `partial_fit`."""

    def __init__(self, kind, X, y, batch):
        self.X, self.y = X, y[:, 0]
        if kind == "mlp":
            self.model = MLPRegressor(hidden_layer_sizes=[HIDDEN], solver="sgd", batch_size=batch, momentum=0, alpha=0,
                                      learning_rate_init=RATE, nesterovs_momentum=False, random_state=0)  # fmt: skip
        else:
            self.model = SGDRegressor(penalty=None, learning_rate="constant", eta0=RATE, random_state=0)

    def epoch(self):
        self.model.partial_fit(self.X, self.y)


ENGINES = [*(["agent"] if has_training() else []), "step", "epoch"]
CONTESTANTS = [*ENGINES, "torch", "sklearn", "numpy"]


def contestant(name, *arguments, **options):
    """One of them, ready to train."""
    if name in ENGINES:
        return Ours(name, *arguments, **options)
    return {"torch": Torch, "sklearn": Sklearn, "numpy": Numpy}[name](*arguments, **options)


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a target that both models can learn something of."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    return X, (X[:, :1] - np.abs(X[:, 1:2]) + 0.1 * rng.normal(size=(rows, 1))).astype(np.float32)


def check_same_numbers(kind: str) -> float:
    """Largest difference of any weight after an epoch in a fixed order, relative to the largest of its tensor."""
    X, y = data(2050)
    found = {}
    for name in (c for c in CONTESTANTS if c != "sklearn"):
        run = contestant(name, kind, X, y, 10, shuffle=False)
        run.epoch()
        found[name] = run.weights()
    expected = found.pop("numpy")
    pairs = [pair for w in found.values() for pair in zip(w, expected, strict=True)]
    worst = max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)
    if worst > 1e-4:
        sys.exit(f"The contestants do not compute the same for the {kind}: weights differ by {worst:.1e}.")
    return worst


def seconds(function) -> float:
    """Time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(kind: str, batch: int, rounds: int) -> dict[str, float]:
    """Median microseconds a step of each contestant."""
    X, y = data(batch * STEPS)
    runs = {name: contestant(name, kind, X, y, batch) for name in CONTESTANTS}
    times = {name: [] for name in runs}
    for run in runs.values():
        run.epoch()
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run.epoch))
    return {name: statistics.median(t) / STEPS * 1e6 for name, t in times.items()}


#: Loads a file, trains for one step and prints the milliseconds, without those of the imports.
LOAD = """
import sys, time
import numpy as np
from ortpartial import OrtGradientForwardBackwardOptimizer
X, y = np.ones((10, 20), np.float32), np.ones((10, 1), np.float32)
start = time.perf_counter()
OrtGradientForwardBackwardOptimizer(sys.argv[1], max_iter=1, engine="epoch").fit(X, y)
print((time.perf_counter() - start) * 1e3)
"""


def loading(rounds: int) -> float:
    """Median milliseconds from an ONNX file of the network to the end of its first step, in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.onnx"
        onnx.save(onnx_model("mlp"), path)
        command = [sys.executable, "-c", LOAD, str(path)]
        runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(rounds)]
        return statistics.median(float(run.stdout) for run in runs)


def table(figures: dict[int, dict[str, float]]) -> str:
    """Microseconds a step, and as a share of torch's."""
    lines = ["batch" + "".join(f"{name:>18}" for name in CONTESTANTS)]
    for batch, times in figures.items():
        cells = (f"{t:10.1f} ({t / times['torch']:4.2f}x)" for t in times.values())
        lines.append(f"{batch:5d}" + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)


def targets(figures: dict[str, dict[int, dict[str, float]]], load: float) -> list[dict[str, object]]:
    """What the library promises, what was measured, and whether it holds."""
    wanted = [("agent", batch, 0.4) for batch in BATCHES if batch <= 32] if "agent" in ENGINES else []
    wanted += [("step", 10, 0.1), ("step", 1024, 0.65)]
    wanted += [("epoch", batch, 0.06 if batch <= 32 else 0.5) for batch in BATCHES if batch <= 32 or batch == 1024]
    found = []
    for kind in MODELS:
        for engine, batch, most in wanted:
            ratio = figures[kind][batch][engine] / figures[kind][batch]["torch"]
            what = f"{kind}: {engine} at batch {batch}, as a multiple of torch eager"
            found.append({"target": what, "most": most, "measured": ratio})
    what = "mlp: milliseconds to load, build and take the first step, in a new process"
    found.append({"target": what, "most": 100, "measured": load})
    return [{**f, "holds": f["measured"] <= f["most"]} for f in found]


def machine() -> dict[str, object]:
    """Where this runs, and on what."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else []
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {"cpu": names[0] if names else platform.processor() or platform.machine(), "cores_used": usable,
            "python": platform.python_version(), "ortpartial": ortpartial.__version__,
            "onnxruntime": runtime_version() + (" (training)" if has_training() else ""), "onnx": onnx.__version__,
            "torch": torch.__version__, "scikit-learn": sklearn.__version__, "numpy": np.__version__}  # fmt: skip


def main(rounds: int = 9) -> None:
    start, where = time.perf_counter(), machine()
    used = time.process_time()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
    print("Microseconds a step, and in brackets as a multiple of torch eager; medians of "
          f"{rounds} rounds of {STEPS} steps\n{', '.join(f'{k} {v}' for k, v in where.items())}")  # fmt: skip
    figures: dict[str, dict[int, dict[str, float]]] = {}
    with threadpoolctl.threadpool_limits(1):
        for kind, title in MODELS.items():
            print(f"\n{title} (weights after an epoch agree to {check_same_numbers(kind):.0e})", flush=True)
            gc.collect()
            gc.disable()
            figures[kind] = {batch: measure(kind, batch, rounds) for batch in BATCHES}
            gc.enable()
            print(table(figures[kind]), flush=True)
        share = (time.process_time() - used) / (time.perf_counter() - start)
        load = loading(5)
    found = targets(figures, load)
    if share < 0.95:
        print(f"\nOther programs took {1 - share:.0%} of the core meanwhile: figures are too high and ratios rough.")
    print("\nTargets")
    for f in found:
        print(f"  {'holds' if f['holds'] else 'MISSED'}  {f['measured']:7.3g} <= {f['most']:<5g} {f['target']}")
    name = re.sub(r"[^a-z0-9]+", "-", str(where["cpu"]).lower()).strip("-")
    path = Path(__file__).parent / "results" / f"{name}-onnxruntime-{runtime_version()}.json"
    path.parent.mkdir(exist_ok=True)
    result = {"machine": where, "rounds": rounds, "steps": STEPS, "share_of_core": share, "microseconds": figures,
              "load_milliseconds": load, "targets": found}  # fmt: skip
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nWritten to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}; "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""
Time of a step by every engine, and by the engine that "auto" takes.

    taskset -c 0 python bench/engines.py [--models linear 1k ...] [--batches 1 32 ...] [--dtypes float32 float64]
                                         [--rates SGD] [--seconds 2] [--steps 10000000]

Chains of layers from a linear regression to 30 million weights and a small convolution train in one process, all
engines in turn, with one thread for each core of the process: `taskset` says how many. A turn is a `fit` of many
epochs, of which the shortest counts: time of the processor on one core, else that of the clock. "auto" chooses for a
training of so many steps. The results of a whole table are written to bench/results/.

    python bench/engines.py --guard

compares eight cells with numpy in the same process and writes the ratios to bench/results/guard.json, to which
`tests/contracts/test_bench.py` holds those of every later version.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from machine import ENGINES, RESULTS, compare_engines, machine, runtime_version, write_results
from onnx import ModelProto
from threadpoolctl import threadpool_limits

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.exceptions import OrtPartialError
from ortpartial.runtime import cores

#: The widths of chains of layers with Relu between them.
WIDTHS = {
    "linear": (20, 1), "1k": (20, 40, 1), "10k": (64, 96, 32, 1), "100k": (64, 256, 256, 10),
    "1M": (256, 768, 768, 256, 10), "8M": (512, 2048, 2048, 1024, 256), "30M": (1024, 4096, 4096, 2048, 512)}
MODELS = (*WIDTHS, "convolution")
#: The most multiplications of a step: cells that take more than about a second are left out.
MOST = 2 * 10**9
#: Seconds of a turn, and of an epoch, so that what an epoch costs beside its steps does not count.
TURN, EPOCH = 0.15, 0.01
GUARD = RESULTS / "guard.json"
#: The cells of the guard: engine, network, dtype and rows of a batch.
CELLS = (("step", "linear", "float32", 1), ("epoch", "linear", "float32", 1), ("step", "1k", "float32", 32),
         ("epoch", "1k", "float32", 1), ("native", "1k", "float32", 32), ("step", "100k", "float32", 32),
         ("epoch", "10k", "float64", 16), ("step", "convolution", "float32", 16))


@dataclass(frozen=True)
class Net:
    """A network: its name, and the type of its numbers."""

    name: str
    dtype: str

    @property
    def row(self) -> tuple[int, ...]:
        return WIDTHS[self.name][:1] if self.name in WIDTHS else (1, 16, 16)

    def weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Matrix or kernels, and bias, of every layer."""
        rng = np.random.default_rng(0)
        shapes = (list(itertools.pairwise(WIDTHS[self.name])) if self.name in WIDTHS
                  else [(8, 1, 3, 3), (16, 8, 3, 3), (256, 10)])
        return [((rng.normal(size=s) * np.sqrt(1 / np.prod(s[1:] if len(s) == 4 else s[:1]))).astype(self.dtype),
                 np.full(s[0] if len(s) == 4 else s[1], 0.01, self.dtype)) for s in shapes]

    def build(self) -> ModelProto:
        x = h = variable("x", self.dtype, ["N", *self.row])
        weights = self.weights()
        for i, (w, b) in enumerate(weights):
            w, b = constant(w, hint=f"w{i}"), constant(b, hint=f"b{i}")
            if w.rank == 4:
                h = op.MaxPool(op.Relu(op.Conv(h, w, b, pads=[1] * 4)), kernel_shape=[2, 2], strides=[2, 2])
                continue
            h = (h if h.rank == 2 else op.Flatten(h)) @ w + b
            h = op.Relu(h) if i < len(weights) - 1 else h
        return build([x], {"y": h})

    def draw(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(1)
        X, y = (rng.normal(size=(rows, *shape)) for shape in (self.row, self.weights()[-1][1].shape))
        return X.astype(self.dtype), y.astype(self.dtype)


class Contestant:
    """A training by an engine, whose shortest epoch is kept."""

    def __init__(self, engine: str, net: Net, batch: int, rate: str = "SGD", planned: int = 10**7):
        self.engine, self.net, self.batch, self.planned = engine, net, batch, planned
        #: Least seconds of a step, by the clock and of the processor.
        self.wall = self.cpu = float("inf")
        one_copy = mock.patch("ortpartial.training.engine_selection.needs_one_copy", return_value=engine == "in place")
        with one_copy if engine != "auto" else nullcontext():
            self.optimizer = OrtGradientForwardBackwardOptimizer(
                net.build(), learning_rate=1e-4 if rate == "SGD" else rate, batch_size=batch, warm_start=True,
                engine="step" if engine == "in place" else engine, random_state=0, callbacks=[self._note])
        self.data, self.steps = net.draw(batch), 1
        self.take_turn(0.0)
        if engine == "native" and self.optimizer.engine_ != engine:
            raise OrtPartialError(self.optimizer.engine_reason_)
        self.take_turn(0.0)
        self.use_steps(max(3, min(2000, int(EPOCH / self.wall), 10**8 // self.data[0].nbytes)))

    def use_steps(self, steps: int) -> None:
        """Train epochs of so many steps from now on."""
        self.data, self.steps = self.net.draw(self.batch * steps), steps
        self.take_turn(0.0)
        self.wall = self.cpu = float("inf")

    def take_turn(self, seconds: float) -> None:
        """Train for so long, and for two epochs at least."""
        self._end, self._last = time.perf_counter() + seconds, (0.0, 0.0)
        self.optimizer.set_params(max_iter=max(2, self.planned // self.steps)).fit(*self.data)

    def _note(self, optimizer: Any) -> bool:
        """Note the time of an epoch; whether the turn is over."""
        now, (wall, cpu) = (time.perf_counter(), time.process_time()), self._last
        if wall:  # The first epoch of a fit includes its beginning.
            self.wall = min(self.wall, (now[0] - wall) / self.steps)
            self.cpu = min(self.cpu, (now[1] - cpu) / self.steps)
        self._last = (time.perf_counter(), time.process_time())
        return wall > 0 and now[0] >= self._end


def measure(net: Net, batch: int, engines: Sequence[str], rate: str, seconds: float, planned: int) -> dict[str, Any]:
    """Microseconds of a step by each engine, in turns, and the engine that "auto" took."""
    contestants: dict[str, Contestant] = {}
    for engine in engines:
        try:
            contestants[engine] = Contestant(engine, net, batch, rate, planned)
        except OrtPartialError as e:
            print(f"  without {engine}: {e}", file=sys.stderr)
    steps = min(c.steps for c in contestants.values())
    for c in contestants.values():
        c.use_steps(steps)
    end, turns = time.perf_counter() + seconds, 0
    while turns < 2 or time.perf_counter() < end:
        for c in contestants.values():
            c.take_turn(min(TURN, seconds / 10))
        turns += 1
    us = {e: (c.cpu if cores() == 1 else c.wall) * 1e6 for e, c in contestants.items()}
    taken = contestants["auto"].optimizer if "auto" in us else None
    return {"model": net.name, "dtype": net.dtype, "batch": batch, "rate": rate, "us": us,
            "auto": taken and ("in place" if taken.engine_ == "step" else taken.engine_)}


def run(args: argparse.Namespace) -> None:
    """Print and write the table."""
    print(f"{cores()} cores, " + ", ".join(f"{k} {v}" for k, v in machine().items()))
    print("microseconds of a step, and as a multiple of the fastest engine's\n"
          f"{'model':12}{'dtype':8}{'rate':6}{'batch':>6}" + "".join(f"{e:>18}" for e in args.engines))
    rows = []
    for name, dtype, rate, batch in itertools.product(args.models, args.dtypes, args.rates, args.batches):
        if batch * sum(w.size for w, _ in Net(name, dtype).weights()) > MOST:
            continue
        rows.append(row := measure(Net(name, dtype), batch, args.engines, rate, args.seconds, args.steps))
        ratios = compare_engines(row)
        print(f"{name:12}{dtype:8}{rate:6}{batch:6}" + "".join(
            f"{f'{us:.1f} ({ratios[e]:.2f})':>18}" if (us := row["us"].get(e)) else f"{'-':>18}" for e in args.engines),
            row["auto"], flush=True)
    missed = [r for r in rows if compare_engines(r).get("auto", 1) > 1.03]
    print(f"\nauto is within 1.03 of the fastest engine in {len(rows) - len(missed)} of {len(rows)} cells")
    if set(args.models) == set(MODELS):
        write_results(f"engines-{cores()}", {"cores": cores(), "engines": rows})


def numpy_epoch(net: Net, batch: int, steps: int) -> Callable[[], None]:
    """The same steps of a chain of layers, written by hand in numpy."""
    weights, (X, y) = net.weights(), net.draw(batch * steps)

    def epoch() -> None:
        for k in np.random.default_rng(0).permutation(len(X)).reshape(steps, batch):
            inputs = [X[k]]
            for w, b in weights[:-1]:
                inputs.append(np.maximum(inputs[-1] @ w + b, 0))
            w, b = weights[-1]
            g = (inputs[-1] @ w + b - y[k]) * (2 / y[k].size)
            for x, (w, b) in zip(inputs[::-1], weights[::-1], strict=True):
                behind = (g @ w.T) * (x > 0)
                w -= 1e-4 * (x.T @ g)
                b -= 1e-4 * g.sum(0)
                g = behind

    return epoch


def find_ratio(cell: Sequence[Any], turns: int = 8) -> float:
    """Our time of the processor over numpy's, both the least of some turns, whose data fit into a cache."""
    engine, name, dtype, batch = cell
    ours = Contestant(engine, Net(name, dtype), batch)
    ours.use_steps(steps := min(ours.steps, 100))
    # A convolution has the chain of the same size beside it.
    epoch, least = numpy_epoch(Net(name if name in WIDTHS else "10k", dtype), batch, steps), float("inf")
    for _ in range(turns):
        ours.take_turn(0.01)
        for _ in range(2):
            start = time.process_time()
            epoch()
            least = min(least, (time.process_time() - start) / steps)
    return ours.cpu / least


def find_slower(recorded: dict[str, float], most: float, tries: int = 3) -> Iterator[str]:
    """The cells whose ratio is so many times the recorded ratio in all of some tries."""
    for cell in CELLS:
        key, ratios = " ".join(map(str, cell)), []
        for _ in range(tries):
            ratios.append(find_ratio(cell))
            if ratios[-1] <= most * recorded[key]:
                break
        else:
            yield f"{key}: {min(ratios):.3g} of numpy's time, recorded is {recorded[key]:.3g}"


def name_machine() -> str:
    """The processor and the runtime, between which ratios differ."""
    this = machine()
    return f"{this['cpu']} ({this['features']}), onnxruntime {runtime_version(this)}"


def guarded(kept: dict[str, Any]) -> tuple[dict[str, float], float]:
    """The ratios to compare with, and how many times they are allowed: more on a machine that has recorded none."""
    if (key := name_machine()) in kept:
        return kept[key], 1.3
    return {c: max(ratios[c] for ratios in kept.values()) for c in next(iter(kept.values()))}, 2.5


def record_guard() -> None:
    """Write the ratios of this machine: of each cell the median of five."""
    kept = json.loads(GUARD.read_text())["guard"] if GUARD.exists() else {}
    with threadpool_limits(1):
        ratios = {" ".join(map(str, cell)): float(np.median([find_ratio(cell) for _ in range(5)])) for cell in CELLS}
    kept[name_machine()] = {c: float(f"{r:.3g}") for c, r in ratios.items()}
    GUARD.write_text(json.dumps({"guard": kept}, indent=1) + "\n")
    print("\n".join(f"{cell:40}{ratio:8.3f}" for cell, ratio in ratios.items()))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of a step by every engine.")
    add = parser.add_argument
    add("--models", nargs="+", default=list(MODELS), choices=MODELS)
    add("--batches", nargs="+", type=int, default=[1, 32, 200, 1024])
    add("--dtypes", nargs="+", default=["float32", "float64"])
    add("--rates", nargs="+", default=["SGD"])
    add("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    add("--seconds", type=float, default=2.0, help="of a cell")
    add("--steps", type=int, default=10**7, help="of the training that engine auto chooses for")
    add("--guard", action="store_true", help="record the ratios of the guard")
    args = parser.parse_args(argv)
    record_guard() if args.guard else run(args)


if __name__ == "__main__":
    main()

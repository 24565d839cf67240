"""
Time of a training step of an `OnnxLayer` beside the same module in torch's eager mode, and of `artifacts` beside
onnxruntime.training.

    taskset -c 0 python bench/layer.py [rounds]

Chains of linear layers, LeNet, a transformer encoder of two layers (width 64, rows of 32 tokens), and LSTM and GRU
(width 64) are exported by `OnnxLayer.from_torch` and take turns with the module itself: forward, torch's loss, backward
and torch's SGD. "loss" is a layer whose graph holds the loss, which is exported with it. A round is some steps of each,
and medians of the ratios of processor time in a round are given. All must compute the same gradients. "native" is left
out where a compiled product or convolution has no chance; "auto" takes it after some thousand calls. Where
onnxruntime-training is installed, stored artifacts of it are trained by both, call by call, ours in machine code, too.
The results are written to bench/results/.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import gc
import itertools
import operator
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import write_results
from torch import nn

from ortpartial import artifacts
from ortpartial.runtime import has_training, runtime_version
from ortpartial.torch import OnnxLayer


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with Relu between them."""
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Sequential:
    """Two convolutions, each followed by a maximum, and three linear layers."""
    return nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), mlp(400, 120, 84, 10))


#: By name: the module, the sizes of a row, the classes (1 for numbers), the batches, the most steps in a round, and the
#: most rows that "native" is measured with.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, tuple[int, ...], int, int]] = {
    "mlp 20-100-1": (lambda: mlp(20, 100, 1), (20,), 1, (1, 10, 32, 256), 200, 256),
    "mlp 64-128-64-10": (lambda: mlp(64, 128, 64, 10), (64,), 10, (1, 10, 32, 256), 100, 256),
    "mlp 784-1024-1024-10": (lambda: mlp(784, 1024, 1024, 10), (784,), 10, (1, 32, 256), 8, 0),
    "LeNet": (lenet, (1, 28, 28), 10, (1, 32, 256), 8, 1),
    "encoder, 2 layers": (lambda: Encoder(64), (32, 64), 1, (1, 32), 8, 0),
    "LSTM 64, 16 steps": (lambda: Recurrent(nn.LSTM, 64), (16, 64), 1, (1, 32, 256), 8, 1),
    "LSTM 64, 128 steps": (lambda: Recurrent(nn.LSTM, 64), (128, 64), 1, (1, 32), 8, 1),
    "LSTM 256, 16 steps": (lambda: Recurrent(nn.LSTM, 256), (16, 256), 1, (1, 32), 8, 0),
    "GRU 64, 16 steps": (lambda: Recurrent(nn.GRU, 64), (16, 64), 1, (1, 32, 256), 8, 1),
    "GRU 64, 128 steps": (lambda: Recurrent(nn.GRU, 64), (128, 64), 1, (1, 32), 8, 1),
    "GRU 256, 16 steps": (lambda: Recurrent(nn.GRU, 256), (16, 256), 1, (1, 32), 8, 0),
}
#: Artifacts of onnxruntime-training 1.19.2 that the tests store.
STORED = Path(__file__).parents[1] / "tests" / "data" / "artifacts"


class Recurrent(nn.Module):
    """A recurrent layer and a linear head on the mean of its outputs."""

    def __init__(self, kind: Callable[..., nn.Module], width: int):
        super().__init__()
        self.layer, self.head = kind(width, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0].mean(1))


class Encoder(nn.Module):
    """Two layers of a transformer and a linear head on the mean of the tokens."""

    def __init__(self, width: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


class WithLoss(nn.Module):
    """A module and its loss: the squared error of numbers, the cross-entropy of classes."""

    def __init__(self, module: nn.Module, classes: int):
        super().__init__()
        self.module, self.loss = module, nn.MSELoss() if classes == 1 else nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.loss(self.module(x), t)


def make_runs(module: nn.Module, classes: int, rows: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
              with_native: bool) -> dict[str, nn.Module]:
    """The module with its loss, by torch and by layers."""
    whole = WithLoss(module, classes).eval()
    example = rows(2)
    is_known = has_training() and not any(isinstance(m, nn.RNNBase) for m in module.modules())
    engines = ["step", *["agent"] * is_known, *["native"] * with_native]
    runs: dict[str, nn.Module] = {"torch": whole}
    runs |= {e: WithLoss(OnnxLayer.from_torch(module, example[0], engine=e), classes).eval() for e in engines}
    return {**runs, "loss": OnnxLayer.from_torch(whole, example)}


def seconds(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], times: int) -> float:
    """The mean time of a training step."""
    # Weights that stay as they are have gradients that can be compared.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    start = time.process_time()
    for _ in range(times):
        optimizer.zero_grad()
        module(*batch).backward()
        optimizer.step()
    return (time.process_time() - start) / times


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of any gradient, relative to the largest element of its tensor."""
    theirs = dict(b.named_parameters())
    return max(float((p.grad - theirs[n].grad).abs().max() / theirs[n].grad.abs().max().clamp(min=1e-6))
               for n, p in a.named_parameters())


def measure(runs: dict[str, nn.Module], batch: tuple[torch.Tensor, torch.Tensor], rounds: int, times: int
            ) -> dict[str, list[float]]:
    """Microseconds of each contestant in each round, in turns."""
    for run in runs.values():
        seconds(run, batch, 10)
    gc.collect()
    gc.disable()
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(seconds(run, batch, times) * 1e6)
    gc.enable()
    return taken


def measure_artifacts(name: str, rounds: int, times: int = 300) -> dict[str, list[float]]:
    """Microseconds of a step of stored artifacts in three calls, by onnxruntime.training and by ours."""
    from onnxruntime.training import api

    folder, shape = STORED / name, {"mlp": (64,), "cnn": (1, 8, 8)}[name]
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    theirs = api.Module(str(folder / "training_model.onnx"), state)
    runs = {"onnxruntime.training": (theirs, api.Optimizer(str(folder / "optimizer_model.onnx"), theirs))}
    runs |= {e: ((module := artifacts.load(folder, engine=e)), module.optimizer) for e in ("step", "native")}
    rng = np.random.default_rng(0)
    batch = rng.random((8, *shape), np.float32), rng.integers(0, 4, 8)

    def step(module: Any, optimizer: Any, times: int) -> float:
        start = time.process_time()
        for _ in range(times):
            module(*batch)
            optimizer.step()
            module.lazy_reset_grad()
        return (time.process_time() - start) / times * 1e6

    taken: dict[str, list[float]] = {n: [] for n in runs}
    for i in range(rounds + 1):
        for n, (module, optimizer) in runs.items():
            optimizer.set_learning_rate(1e-6)
            t = step(module, optimizer, times)
            if i:
                taken[n].append(t)
    return taken


def show(label: str, taken: dict[str, list[float]], first: str) -> dict[str, Any]:
    """Print and return medians, and medians of the ratios to the first."""
    ratios = {e: statistics.median(map(operator.truediv, t, taken[first])) for e, t in taken.items()}
    us = {e: statistics.median(t) for e, t in taken.items()}
    print(f"  {label:12s} {'   '.join(f'{e} {us[e]:8.1f} ({ratios[e]:4.2f}x)' for e in taken)}", flush=True)
    return {"us": us, "ratios": ratios}


def main(rounds: int = 7) -> None:
    torch.set_num_threads(1)
    print(f"Microseconds of a training step, medians of {rounds} rounds, and medians of its ratio to torch eager\n"
          f"torch {torch.__version__}, onnxruntime {runtime_version()}")
    cells: dict[str, Any] = {}
    for name, (make, sizes, classes, batches, times, native) in NETS.items():
        torch.manual_seed(0)
        module = make()

        def rows(n: int, sizes: tuple[int, ...] = sizes, classes: int = classes) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.randn(n, *sizes), torch.randn(n, 1) if classes == 1 else torch.randint(classes, (n,))

        print(f"\n{name}")
        for n in batches:
            batch = rows(n)
            # Layers for each batch: only the first two sizes have graphs of their own at once.
            runs = make_runs(module, classes, rows, n <= native)
            taken = measure(runs, batch, rounds, max(8, times * 32 // (32 + n)) if times > 8 else 1 + times // (1 + n))
            worst = max(difference(run, runs["torch"]) for run in runs.values())
            if worst > 1e-3:
                sys.exit(f"The gradients differ by {worst:.1e}.")
            cells[f"{name}, batch {n}"] = {**show(f"batch {n}", taken, "torch"), "difference": worst}
    if has_training():
        print("\nartifacts, batch 8")
        for name in ("mlp", "cnn"):
            cells[f"artifacts, {name}"] = show(name, measure_artifacts(name, rounds), "onnxruntime.training")
    best = {cell: min(r for e, r in row["ratios"].items() if e not in ("torch", "onnxruntime.training"))
            for cell, row in cells.items()}
    slower = [f"{cell}: {r:.2f}x" for cell, r in best.items() if r > 1]
    print(f"\nslower by every engine: {'; '.join(slower) or 'nowhere'}")
    write_results("layer", {"layers": cells})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

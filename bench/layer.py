"""
Time of a training step of an `OnnxLayer` beside the same module in torch's eager mode.

    taskset -c 0 python bench/layer.py [rounds]

The networks 20-100-1 and 64-128-64-10 (Relu) and a transformer encoder of two layers (width 64, rows of 32 tokens) are
exported by `OnnxLayer.from_torch` and take turns with the module itself: forward, torch's loss, backward and torch's
SGD. "loss" is a layer whose graph holds the loss, which is exported with it. A round is some steps of each, and medians
of the rounds are compared. All must compute the same gradients.
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

import torch
from torch import nn

from ortpartial.runtime import has_training, runtime_version
from ortpartial.torch import OnnxLayer


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with Relu between them."""
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


#: By name: the module, the sizes of a row, the classes (1 for numbers), the batches, and the most steps in a round.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, tuple[int, ...], int]] = {
    "mlp 20-100-1": (lambda: mlp(20, 100, 1), (20,), 1, (1, 10, 32, 256, 1024), 200),
    "mlp 64-128-64-10": (lambda: mlp(64, 128, 64, 10), (64,), 10, (1, 10, 32, 256, 1024), 100),
    "encoder, 2 layers": (lambda: Encoder(64), (32, 64), 1, (1, 32), 8),
}


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


def make_runs(module: nn.Module, classes: int, rows: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
              ) -> dict[str, nn.Module]:
    """The module with its loss, by torch and by layers."""
    whole = WithLoss(module, classes).eval()
    example = rows(2)
    engines = ["step", "agent"] if has_training() else ["step"]
    runs: dict[str, nn.Module] = {"torch": whole}
    runs |= {e: WithLoss(OnnxLayer.from_torch(module, example[0], engine=e), classes).eval() for e in engines}
    return {**runs, "loss": OnnxLayer.from_torch(whole, example)}


def seconds(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], times: int) -> float:
    """The mean time of a training step."""
    # Weights that stay as they are have gradients that can be compared.
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    start = time.perf_counter()
    for _ in range(times):
        optimizer.zero_grad()
        module(*batch).backward()
        optimizer.step()
    return (time.perf_counter() - start) / times


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


def main(rounds: int = 15) -> None:
    torch.set_num_threads(1)
    print(f"Microseconds of a training step, medians of {rounds} rounds, and medians of its ratio to torch eager\n"
          f"torch {torch.__version__}, onnxruntime {runtime_version()}")
    slower = []
    for name, (make, sizes, classes, batches, times) in NETS.items():
        torch.manual_seed(0)
        module = make()

        def rows(n: int, sizes: tuple[int, ...] = sizes, classes: int = classes) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.randn(n, *sizes), torch.randn(n, 1) if classes == 1 else torch.randint(classes, (n,))

        print(f"\n{name}")
        for n in batches:
            batch = rows(n)
            # Layers for each batch: only the first two sizes have graphs of their own at once.
            runs = make_runs(module, classes, rows)
            taken = measure(runs, batch, rounds, max(8, times * 32 // (32 + n)) if times > 8 else times)
            worst = max(difference(run, runs["torch"]) for run in runs.values())
            if worst > 1e-3:
                sys.exit(f"The gradients differ by {worst:.1e}.")
            ratios = {e: statistics.median(map(operator.truediv, t, taken["torch"])) for e, t in taken.items()}
            cells = (f"{e} {statistics.median(t):8.1f} ({ratios[e]:4.2f}x)" for e, t in taken.items())
            print(f"  batch {n:4d}   {'   '.join(cells)}", flush=True)
            slower += [f"{name}, batch {n}, {e}: {ratios[e]:.2f}x" for e in ("step", "loss") if ratios[e] > 1]
    print(f"\nslower than torch: {'; '.join(slower) or 'nowhere'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

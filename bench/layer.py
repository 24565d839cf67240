"""
Time of an `OnnxLayer`, forward and backward, beside the same module in torch's eager mode.

    taskset -c 0 python bench/layer.py [rounds]

The network 20-100-1 (Relu) and a transformer encoder of two layers (width 64, 32 rows of 32 tokens), exported by
`OnnxLayer.from_torch` and run with both engines, take turns with the module itself: a round is some forwards and
backwards of each, and medians of the rounds are compared. Before that, all must compute the same gradients.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import gc
import statistics
import sys
import time

import torch
from torch import nn

from ortpartial.runtime import has_training, runtime_version
from ortpartial.torch import OnnxLayer

#: By name: the module, the sizes of a row, the batches, and the number of forwards and backwards in a round.
NETS = {
    "mlp 20-100-1": (lambda: nn.Sequential(nn.Linear(20, 100), nn.ReLU(), nn.Linear(100, 1)), (20,), (1, 32, 256), 300),
    "encoder, 2 layers": (lambda: Encoder(64), (32, 64), (1, 32), 8),
}
#: The layer should take no longer than torch at this batch, in graphs of more nodes than this.
BATCH, NODES = 32, 10


class Encoder(nn.Module):
    """Two layers of a transformer and a linear head on the mean of the tokens."""

    def __init__(self, width: int):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean(1))


def step(module: nn.Module, x: torch.Tensor) -> None:
    """Forward and backward."""
    module.zero_grad()
    module(x).sum().backward()


def seconds(module: nn.Module, x: torch.Tensor, times: int) -> float:
    """The mean time of a forward and backward."""
    start = time.perf_counter()
    for _ in range(times):
        step(module, x)
    return (time.perf_counter() - start) / times


def difference(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of any gradient, relative to the largest element of its tensor."""
    theirs = dict(b.named_parameters())
    return max(float((p.grad - theirs[n].grad).abs().max() / theirs[n].grad.abs().max().clamp(min=1e-6))
               for n, p in a.named_parameters())


def measure(runs: dict[str, nn.Module], x: torch.Tensor, rounds: int, times: int) -> dict[str, float]:
    """Median microseconds of each contestant, in turns."""
    times_by_engine: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(10):
            step(run, x)
    gc.collect()
    gc.disable()
    for _ in range(rounds):
        for name, run in runs.items():
            times_by_engine[name].append(seconds(run, x, times))
    gc.enable()
    return {name: statistics.median(t) * 1e6 for name, t in times_by_engine.items()}


def main(rounds: int = 15) -> None:
    torch.set_num_threads(1)
    print(f"Microseconds of a forward and backward, medians of {rounds} rounds, and as a multiple of torch eager\n"
          f"torch {torch.__version__}, onnxruntime {runtime_version()}")
    engines = ["step", "agent"] if has_training() else ["step"]
    missed = []
    for name, (make, sizes, batches, times) in NETS.items():
        torch.manual_seed(0)
        module = make().eval()
        example = torch.randn(2, *sizes)
        nodes = len(OnnxLayer.from_torch(module, example).to_onnx().graph.node)
        print(f"\n{name}: {nodes} nodes")
        for batch in batches:
            # A layer for each batch: only the first two sizes have graphs of their own at once.
            runs: dict[str, nn.Module] = {"torch": module}
            runs |= {e: OnnxLayer.from_torch(module, example, engine=e).eval() for e in engines}
            x = torch.randn(batch, *sizes)
            times_by_engine = measure(runs, x, rounds, times)
            worst = max(difference(runs[e], module) for e in engines)
            if worst > 1e-3:
                sys.exit(f"The gradients differ by {worst:.1e}.")
            cells = (f"{e} {t:9.1f} ({t / times_by_engine['torch']:4.2f}x)" for e, t in times_by_engine.items())
            print(f"  batch {batch:3d}   {'   '.join(cells)}", flush=True)
            best = min(times_by_engine[e] for e in engines) / times_by_engine["torch"]
            if batch == BATCH and nodes > NODES and best > 1:
                missed.append(f"{name}: {best:.2f}x")
    print(f"\nno more than torch at batch {BATCH} above {NODES} nodes: {'; '.join(missed) or 'holds'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

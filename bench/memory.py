"""
Peak memory of a training, beside torch.

    python bench/memory.py [convolutions | transformer] ...

A network of bottlenecks (convolutions, 25 million weights) and a transformer encoder (30 million) take some steps with
SGD, momentum and Adam, at a batch where weights take most of the memory and at one where activations do. Every
contestant has a process of its own, which prints the peak of its resident memory, beyond that after its imports and in
total. Both must reach the same losses. With all models, the figures are written to bench/results/, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from machine import write_results

STEPS = 4
RATES = ("SGD", "momentum", "Adam")
#: By name, two batches: one where weights take most of the memory, and one where activations do.
MODELS = {"convolutions": (1, 16), "transformer": (1, 16)}
CLASSES, TOKENS, WORDS, SIZE = 100, 128, 20_000, 160


def module(kind: str):
    """The network in torch."""
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        """x + three convolutions of it, through fewer channels."""

        def __init__(self, n: int, inner: int, out: int, stride: int):
            super().__init__()
            self.a, self.b = nn.Conv2d(n, inner, 1), nn.Conv2d(inner, inner, 3, stride, 1)
            self.c = nn.Conv2d(inner, out, 1)
            self.short = nn.Identity() if n == out and stride == 1 else nn.Conv2d(n, out, 1, stride)

        def forward(self, x):
            return torch.relu(0.2 * self.c(torch.relu(self.b(torch.relu(self.a(x))))) + self.short(x))

    class Encoder(nn.Module):
        """Tokens and places, six layers, and a linear head on the mean of the tokens."""

        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, 512), nn.Embedding(TOKENS, 512)
            layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            self.head = nn.Linear(512, CLASSES)

        def forward(self, x):
            return self.head(self.layers(self.words(x) + self.places.weight).mean(1))

    torch.manual_seed(0)
    if kind == "transformer":
        encoder = Encoder()
        with torch.no_grad():
            for p in encoder.parameters():  # Exporters merge equal weights, such as those of layers before training.
                p.copy_(p + 0.02 * torch.randn(p.shape))
        return encoder
    layers, n = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(blocks):
            layers.append(Bottleneck(n, inner, n := 4 * inner, stride if i == 0 else 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, CLASSES))


def data(kind: str, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all steps."""
    rng, n = np.random.default_rng(0), STEPS * batch
    X = rng.integers(0, WORDS, (n, TOKENS)) if kind == "transformer" else rng.random((n, 3, SIZE, SIZE), np.float32)
    return X, rng.integers(0, CLASSES, n)


def prepare(kind: str, folder: str) -> int:
    """Write the model for both contestants; returns the number of weights."""
    import torch

    net = module(kind).train()
    example = torch.from_numpy(data(kind, 2)[0][:2])
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(net, (example,), f"{folder}/{kind}.onnx", dynamo=False, opset_version=17, input_names=["x"],
                          output_names=["y"], dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
    return sum(p.numel() for p in net.parameters())


def status(name: str) -> float:
    """A memory figure of this process in MB. VmHWM is the peak; ru_maxrss would include that of the parent."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1000


def train_torch(kind: str, _: str, rate: str, X: np.ndarray, y: np.ndarray, batch: int) -> list[float]:
    """Train in torch's eager mode; returns the losses of the steps."""
    import torch

    net = module(kind).train()
    make = {"SGD": lambda p: torch.optim.SGD(p, 1e-3), "momentum": lambda p: torch.optim.SGD(p, 1e-3, 0.9),
            "Adam": lambda p: torch.optim.Adam(p, 1e-4)}
    optimizer, losses = make[rate](net.parameters()), []
    for i in range(0, len(X), batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(X[i : i + batch])),
                                                 torch.from_numpy(y[i : i + batch]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_here(kind: str, folder: str, rate: str, X: np.ndarray, y: np.ndarray, batch: int, **settings) -> list[float]:
    """Train in ortpartial; returns the mean loss of the steps."""
    from ortpartial import OrtGradientForwardBackwardOptimizer
    from ortpartial.learning_rate import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov

    rates = {"SGD": LearningRateSGD(1e-3), "momentum": LearningRateSGDNesterov(1e-3, nesterov=False),
             "Adam": LearningRateAdam(1e-4)}
    o = OrtGradientForwardBackwardOptimizer(
        f"{folder}/{kind}.onnx", learning_loss="softmax_cross_entropy", learning_rate=rates[rate], max_iter=1,
        batch_size=batch, shuffle=False, **settings)
    return o.fit(X, y).train_losses_


#: Engine "step" holds big weights and their states once, engine "auto" in two copies.
CONTESTANTS: dict[str, dict[str, str]] = {"torch": {}, "step": {"engine": "step"}, "auto": {}}


def contestant(name: str, kind: str, folder: str, rate: str, batch: int) -> None:
    """Train in this process and print the figures."""
    X, y = data(kind, batch)
    if name == "torch":
        import torch  # noqa: F401 - its memory does not count
    else:
        import ortpartial  # noqa: F401
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak is counted from here on.
    train = train_torch if name == "torch" else train_here
    losses = train(kind, folder, rate, X, y, batch, **CONTESTANTS[name])
    print(json.dumps({"before": before, "peak": status("VmHWM"), "loss": float(np.mean(losses))}))


def run(*arguments: object) -> dict[str, float]:
    """Run a contestant in a process of its own; returns its figures."""
    command = [sys.executable, __file__, "--contestant", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main(kinds: list[str]) -> None:
    print("MB beyond what the imports take, at the most (the whole process in brackets), and as a share of torch's")
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds or MODELS:
            weights = prepare(kind, folder)
            print(f"\n{kind}, {weights / 1e6:.1f} million weights")
            for batch in MODELS[kind]:
                for rate in RATES:
                    figures = {name: run(name, kind, folder, rate, batch) for name in CONTESTANTS}
                    losses = [f["loss"] for f in figures.values()]
                    if max(losses) - min(losses) > 2e-3 * max(losses):
                        sys.exit(f"The contestants do not compute the same: losses of {losses}.")
                    entries.append({"model": kind, "weights": weights, "batch": batch, "rate": rate, "megabytes": {
                        name: {"grown": f["peak"] - f["before"], "peak": f["peak"]} for name, f in figures.items()}})
                    grown = {name: f["peak"] - f["before"] for name, f in figures.items()}
                    cells = (f"{name} {m:6.0f} ({figures[name]['peak']:6.0f}) {m / grown['torch']:5.2f}x"
                             for name, m in grown.items())
                    print(f"  batch {batch:3d} {rate:9} {'   '.join(cells)}", flush=True)
    if not kinds:
        write_results("memory", {"memory": entries})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        name, kind, folder, rate, batch = sys.argv[2:]
        contestant(name, kind, folder, rate, int(batch))
    else:
        main(sys.argv[1:])

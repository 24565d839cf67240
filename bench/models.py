"""The trainings of the benchmark: sizes of every network, data, and settings of the optimizers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

#: η of every optimizer, and the other numbers of Nesterov's and of Adam.
RATES = {"sgd": 0.01, "nesterov": 0.003, "adam": 0.001}
MOMENTUM, BETA1, BETA2 = 0.9, 0.9, 0.999


@dataclass(frozen=True)
class Model:
    """A network: its title, the shape of a row, its outputs, its loss, and the batches to measure.

    `widths` are those of a chain of layers with Relu between them, `tokens` the number of words where a row is a text.
    """

    title: str
    row: tuple[int, ...]
    outputs: int
    loss: str
    batches: tuple[int, ...] = (1, 10, 32, 256, 1024)
    steps: int | None = None
    widths: tuple[int, ...] = ()
    tokens: int = 0

    def steps_at(self, batch: int) -> int:
        """Steps of an epoch: enough to be measured, and for small batches enough to hide the cost of a call."""
        return self.steps or min(2000, max(8, 50_000 // batch))

    def data(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows with targets that can be learned: X, and y of shape (rows, 1) or labels of shape (rows,)."""
        rng = np.random.default_rng(1)
        if self.tokens:
            X = rng.integers(0, self.tokens, (rows, *self.row))
            return X, X[:, 0] % self.outputs
        X = rng.normal(size=(rows, *self.row)).astype(np.float32)
        x = X.reshape(rows, -1)
        if self.loss == "labels":
            return X, x[:, : self.outputs].argmax(1)
        y = x[:, :1] - np.abs(x[:, 1:2]) + 0.1 * rng.normal(size=(rows, 1))
        return X, (y > 0 if self.loss == "binary" else y).astype(np.float32)


def dense(*widths: int, loss: str, title: str = "") -> Model:
    """A chain of layers."""
    return Model(title or "-".join(map(str, widths)), widths[:1], widths[-1], loss, widths=widths)


MODELS = {
    "linear": dense(20, 1, loss="square", title="linear regression, 20 features"),
    "logistic": dense(20, 1, loss="binary", title="logistic regression, 20 features"),
    "20-100-1": dense(20, 100, 1, loss="square"),
    "64-256-256-10": dense(64, 256, 256, 10, loss="labels"),
    "lenet": Model("LeNet, 28 x 28", (1, 28, 28), 10, "labels", (64,), 10),
    "resnet18": Model("ResNet-18, 64 x 64, statistics frozen", (3, 64, 64), 10, "labels", (8,), 4),
    "encoder": Model("encoder, 2 layers of width 64, 32 tokens", (32, 64), 1, "square", (32,), 10),
    "bert": Model("BERT-small, 64 tokens", (64,), 2, "labels", (8,), 3, tokens=30522),
}
#: Those that take less time, for many versions of the runtime.
FURTHER = {"bert-tiny": Model("BERT-tiny, 64 tokens", (64,), 2, "labels", (8,), 2, tokens=5000)}
SMALL = [name for name, m in MODELS.items() if m.widths]
LARGE = [name for name, m in MODELS.items() if not m.widths]


def model(name: str) -> Model:
    """The model of this name; widths, as in 20-100-1, name a chain of layers."""
    models = MODELS | FURTHER
    if name not in models and not re.fullmatch(r"\d+(-\d+)+", name):
        raise SystemExit(f"{name!r} is no model: choose {', '.join(models)}, or widths as in 20-100-100-1.")
    widths = [] if name in models else [int(w) for w in name.split("-")]
    return models.get(name) or dense(*widths, loss="square" if widths[-1] == 1 else "labels")


@dataclass(frozen=True)
class Task:
    """A training: model, optimizer, batch, number of steps, and the folder of its files."""

    name: str
    rate: str
    batch: int
    steps: int
    folder: str
    shuffle: bool = True
    device: str = "cpu"

    @property
    def model(self) -> Model:
        return model(self.name)

    @property
    def epsilon(self) -> float:
        """Adam's ε, larger where gradients are zero but for rounding, as of the bias of keys: all must step alike."""
        return 1e-8 if self.model.widths else 1e-5

    @property
    def onnx(self) -> str:
        """Path of the network as ONNX."""
        return str(Path(self.folder) / f"{self.name}.onnx")

    @cached_property
    def start(self) -> dict[str, np.ndarray]:
        """The initial parameters and buffers of the network, by their names in torch."""
        with np.load(Path(self.folder) / f"{self.name}.npz") as arrays:
            return dict(arrays)

    @cached_property
    def trained(self) -> list[str]:
        """The names of the parameters in the ONNX file."""
        return json.loads((Path(self.folder) / f"{self.name}.json").read_text())

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        return self.model.data(self.batch * self.steps)

    def order(self, rng: np.random.Generator) -> np.ndarray:
        """The rows of an epoch in their order, one batch per line."""
        rows = np.arange(self.batch * self.steps)
        return (rng.permutation(rows) if self.shuffle else rows).reshape(self.steps, self.batch)

"""
Time of an epoch whose batches have 27 lengths, beside as many batches of their mean length, and beside torch.

    taskset -c 0 python bench/lengths.py [epochs] [batches] [layers]

A DistilBERT with random weights, of three layers unless said otherwise, is exported with symbolic numbers of rows and
tokens, and trained by Adam on batches of 16 rows. The epochs of both data sets take turns. The first epoch includes
compilation; the ratio is that of the medians of all later ones, and should be at most 1.3.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import io
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.runtime import runtime_version
from ortpartial.torch import OnnxLayer

ROWS, LENGTHS, WORDS = 16, range(6, 33), 500
NAMES = ("input_ids", "attention_mask")
#: An epoch of many lengths may take this multiple of one of their mean length.
LIMIT = 1.3

Batch = tuple[dict[str, np.ndarray], np.ndarray]


class Logits(torch.nn.Module):
    """The classifier without the dict around its output."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = DistilBertForSequenceClassification(DistilBertConfig(
            vocab_size=WORDS, max_position_embeddings=64, n_layers=layers, n_heads=4, dim=64, hidden_dim=128,
            num_labels=2, attn_implementation="eager")).eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits


def export(net: torch.nn.Module) -> bytes:
    """The network as an ONNX model of any number of rows and tokens."""
    ids, file = torch.ones(2, 9, dtype=torch.int64), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (ids, ids), file, dynamo=False, input_names=list(NAMES), output_names=["logits"],
                          dynamic_axes={n: {0: "N", 1: "L"} for n in NAMES} | {"logits": {0: "N"}})
    return file.getvalue()


def make_batches(lengths: list[int]) -> list[Batch]:
    """A batch of random words and labels for every length."""
    rng = np.random.default_rng(0)
    return [({"input_ids": rng.integers(0, WORDS, (ROWS, n)), "attention_mask": np.ones((ROWS, n), np.int64)},
             rng.integers(0, 2, ROWS)) for n in lengths]


def train_torch(net: torch.nn.Module) -> Callable[[list[Batch]], None]:
    """An epoch of a torch module."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)

    def run(batches: list[Batch]) -> None:
        for x, y in batches:
            optimizer.zero_grad()
            scores = net(*(torch.from_numpy(x[n]) for n in NAMES))
            torch.nn.functional.cross_entropy(scores, torch.from_numpy(y)).backward()
            optimizer.step()

    return run


def contestants(layers: int) -> dict[str, Callable[[list[Batch]], None]]:
    """An epoch of each way to run the model, by name."""
    net = Logits(layers)
    model = export(net)

    def make() -> OrtGradientForwardBackwardOptimizer:
        return OrtGradientForwardBackwardOptimizer(
            model, learning_loss="softmax_cross_entropy", learning_rate="Adam", max_iter=1, warm_start=True)

    fitted, partly, predicting = make(), make(), make()

    def partial_fit(batches: list[Batch]) -> None:
        for x, y in batches:
            partly.set_params(batch_size=len(y)).partial_fit(x, y)

    def predict(batches: list[Batch]) -> None:
        for x, _ in batches:
            predicting.predict(x)

    return {"fit": lambda batches: fitted.fit(batches) and None, "partial_fit": partial_fit, "predict": predict,
            "OnnxLayer": train_torch(OnnxLayer(model).eval()), "torch": train_torch(net)}


def seconds(run: Callable[[list[Batch]], None], batches: list[Batch]) -> float:
    """The time of an epoch."""
    start = time.perf_counter()
    run(batches)
    return time.perf_counter() - start


def main(epochs: int = 5, count: int = 40, layers: int = 3) -> None:
    torch.set_num_threads(1)
    lengths = np.random.default_rng(1).permutation(np.resize(LENGTHS, count)).tolist()
    mean = round(sum(lengths) / count)
    data = {"many": make_batches(lengths), "mean": make_batches([mean] * count)}
    print(f"Seconds of an epoch of {count} batches of {len(set(lengths))} lengths and of length {mean}; medians from "
          f"the second of {epochs} epochs on\ntorch {torch.__version__}, onnxruntime {runtime_version()}")
    missed = []
    for name, run in contestants(layers).items():
        first = {kind: seconds(run, batches) for kind, batches in data.items()}
        rest = {kind: [] for kind in data}
        for _ in range(epochs - 1):
            for kind, batches in data.items():
                rest[kind].append(seconds(run, batches))
        many, one = (statistics.median(rest[kind]) for kind in data)
        print(f"  {name:12s} first {first['many']:6.2f} and {first['mean']:6.2f}   later {many:6.3f} and {one:6.3f}   "
              f"ratio {many / one:4.2f}", flush=True)
        if many / one > LIMIT and name != "torch":
            missed.append(name)
    print(f"at most {LIMIT} times: {'not ' + ', '.join(missed) if missed else 'holds'}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

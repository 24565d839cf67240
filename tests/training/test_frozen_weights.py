"""Frozen weights of many bytes are in memory once: a step borrows the arrays of the model."""

import sys

import numpy as np
import pytest
from tiny_decoders import make_decoder

from ortpartial import OrtGradientForwardBackwardOptimizer, add_lora
from ortpartial.graph.build import build
from ortpartial.learning_loss import NextTokenLearningLoss
from ortpartial.model import external_data
from ortpartial.runtime.session import Session

IDS = np.random.default_rng(0).integers(0, 24, (2, 8))


@pytest.mark.parametrize(("engine", "checkpointing"), [("step", None), ("step", "auto"), ("epoch", None)])
def test_packed_weights_are_borrowed(engine, checkpointing, monkeypatch):
    for module, name, size in ((sys.modules[build.__module__], "_BIG", 256),
                               (sys.modules[build.__module__], "_MANY", 0),
                               (external_data, "BIG", 256), (external_data, "_MANY", 0)):
        monkeypatch.setattr(module, name, size)
    opened, init = [], Session.__init__

    def record(self, model, **settings):
        opened.append((model, settings.get("arrays", {})))
        init(self, model, **settings)

    monkeypatch.setattr(Session, "__init__", record)
    optimizer = OrtGradientForwardBackwardOptimizer(
        add_lora(make_decoder(), rank=2, random_state=0), "adapter", learning_loss=NextTokenLearningLoss(),
        engine=engine, checkpointing=checkpointing, batch_size=1, random_state=0)
    first = optimizer.partial_fit(IDS, IDS).train_losses_[-1]
    for _ in range(5):
        optimizer.partial_fit(IDS, IDS)
    assert optimizer.train_losses_[-1] < first
    (graph, arrays), *_ = opened  # The shape of the output is inferred, and nothing is run for it.
    model = optimizer._spec.model
    assert {n for n in arrays if n.endswith("Q4")} == {n for n in model.arrays if n.endswith("Q4")} != set()
    assert all(a is model.arrays[n] for n, a in arrays.items() if n.endswith("Q4"))
    assert max(len(t.raw_data) for t in graph.graph.initializer) < 256

"""
A training stored in its model and continued elsewhere
======================================================

Since version 1.7, an ONNX model may describe its training beside the graph for inference: how weights are initialized,
and what a step computes, from the loss to the update. Here a network is trained for some epochs, written to one file
with its training, and trained further from that file alone, without the code and the settings. The weights are those of
a training without a break. The step is also available as a plain ONNX graph, which any runtime executes. ::

    python examples/plot_training_handed_on.py [folder for the figure] [device]
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, build, constant, lowered_step, op, variable

device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
X, y = load_digits(return_X_y=True)
X, y = (X / 16).astype(np.float32), y.astype(np.int64)
ROWS, BEFORE, AFTER = 50, 8, 12

rng = np.random.default_rng(0)
x = variable("x", "float32", ["N", 64])
W1 = constant(rng.normal(size=(64, 30)).astype(np.float32) / 8, hint="W1")
W2 = constant(rng.normal(size=(30, 10)).astype(np.float32) / 5, hint="W2")
b1, b2 = (constant(np.zeros(n, np.float32), hint=name) for n, name in ((30, "b1"), (10, "b2")))
network = build([x], {"scores": op.Relu(x @ W1 + b1) @ W2 + b2})

trainer = OrtGradientForwardBackwardOptimizer(
    network, learning_loss="softmax_cross_entropy", learning_rate="Nesterov", batch_size=ROWS, shuffle=False,
    max_iter=BEFORE, warm_start=True, device=device)
trainer.fit(X, y)

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "network_and_its_training.onnx"
    path.write_bytes(trainer.get_training_onnx().SerializeToString())

    # Elsewhere, only the file is known: it tells what a step reads and changes.
    session = TrainingSession(path, device=device)
    step = lowered_step(path)
print(session)
print(f"the step as a plain graph has {len(step.graph.node)} nodes")

losses = []
for _ in range(AFTER):
    batches = [slice(start, start + ROWS) for start in range(0, len(X), ROWS)]
    sums = [session.step({"x": X[b], "scores_target": y[b]})["loss"] * len(X[b]) for b in batches]
    losses.append(sum(sums) / len(X))

trainer.max_iter = AFTER
trainer.fit(X, y)
difference = max(abs(session.state[name] - w).max() / abs(w).max() for name, w in trainer.trained_coef_.items())
print(f"loss {trainer.train_losses_[0]:.3f} -> {trainer.train_losses_[BEFORE - 1]:.3f} -> {losses[-1]:.3f}")
print(f"largest difference from a training without a break: {difference:.7f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(figsize=(6, 4))
    axes.semilogy(range(1, BEFORE + AFTER + 1), trainer.train_losses_, color="0.7", lw=5, label="without a break")
    axes.semilogy(range(1, BEFORE + 1), trainer.train_losses_[:BEFORE], "oC1-", label="before the model was handed on")
    axes.semilogy(range(BEFORE + 1, BEFORE + AFTER + 1), losses, "sC0-", label="by the training inside of the model")
    axes.set(xlabel="epoch", ylabel="loss", title="One training, handed on after 8 epochs", xticks=range(2, 21, 2))
    axes.legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "training_handed_on.png")

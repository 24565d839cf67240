"""
Loss curves in bfloat16
=======================

With `precision="bfloat16"` the operands of products are rounded to 8 bits; weights, sums, losses and the update stay in
float32, and no loss scale is needed. On a processor with AVX512-BF16 engine "native" computes such products, up to
twice as fast as in float32; any other engine computes the same numbers with products in float32. Torch's autocast
also rounds the results of products, and the gradients. The three curves are a hair's breadth apart. ::

    python examples/plot_mixed_precision.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable

X, y = load_digits(return_X_y=True)
X, test_X, y, test_y = (X[:1400] / 16).astype(np.float32), (X[1400:] / 16).astype(np.float32), y[:1400], y[1400:]
EPOCHS, BATCH, RATE = 12, 50, 0.3
weights = [(np.random.default_rng(0).normal(size=s) / 8).astype(np.float32) for s in ((64, 96), 96, (96, 10), 10)]


def network(x, u, b, v, c, tanh):
    """One formula for both libraries."""
    return tanh(x @ u + b) @ v + c


def train_in_torch(w):
    """The mean loss of each epoch under autocast, on batches in their order."""
    sgd, losses = torch.optim.SGD(w, lr=RATE), []
    for _ in range(EPOCHS):
        losses.append(0.0)
        for i in range(0, len(X), BATCH):
            sgd.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                scores = network(torch.tensor(X[i : i + BATCH]), *w, torch.tanh)
                loss = torch.nn.functional.cross_entropy(scores, torch.tensor(y[i : i + BATCH]))
            loss.backward()
            sgd.step()
            losses[-1] += loss.item() * BATCH / len(X)
    return losses


x = variable("x", "float32", ["N", 64])
model = build([x], {"scores": network(x, *map(constant, weights), op.Tanh)})
settings = {"learning_loss": "softmax_cross_entropy", "learning_rate": RATE, "max_iter": EPOCHS, "batch_size": BATCH,
            "shuffle": False, "device": [*sys.argv[2:], "cpu"][0], "engine": "epoch"}
curves = {}
for name in (None, "bfloat16"):
    optimizer = OrtGradientForwardBackwardOptimizer(model, precision=name, **settings).fit(X, y)
    curves[name or "float32"] = optimizer.train_losses_
    print(f"{name or 'float32':10} accuracy {(optimizer.predict(test_X).argmax(1) == test_y).mean():.3f}")
tensors = [torch.tensor(w, requires_grad=True) for w in weights]
curves["torch, autocast"] = train_in_torch(tensors)
scores = network(torch.tensor(test_X), *tensors, torch.tanh)
print(f"{'autocast':10} accuracy {(scores.argmax(1).numpy() == test_y).mean():.3f}")
largest = max(abs(a / b - 1) for a, b in zip(curves["bfloat16"], curves["float32"], strict=True))
print(f"the losses in bfloat16 are those in float32 within {largest:.4f} of them")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, ax = plt.subplots(figsize=(7, 4))
    for (name, losses), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        ax.semilogy(range(1, EPOCHS + 1), losses, style, label=name)
    ax.set(xlabel="epoch", ylabel="loss", title="Digits in float32, bfloat16 and under autocast")
    ax.legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "mixed_precision.png")

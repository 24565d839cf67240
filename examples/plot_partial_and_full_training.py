"""
Partial or full training
========================

*Partial* training takes the graph that you deploy, and the loss is a setting: another loss, other labels or weights of
tokens need no other graph. *Full* training takes a graph that computes its own loss from features and labels. It is for
a loss that is no formula of one prediction and its target: one that compares rows, as below, or that an exporter has
written, as of a transformer with labels. `add_loss_output` leads from one to the other, to the same weights. ::

    python examples/plot_partial_and_full_training.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import OrtGradientForwardBackwardOptimizer, OrtGradientOptimizer, add_loss_output
from ortpartial.graph import build, constant, op, variable

# Copies of a row have four numbers in common, and four that are noise.
rng = np.random.default_rng(0)
common = rng.normal(size=(200, 4))
X, copies, new = (np.hstack([common, rng.normal(size=(200, 4))]).astype(np.float32) for _ in range(3))
labels = (common[:, 0] > 0).astype(np.int64)
W1, W2 = (constant(rng.normal(size=s).astype(np.float32) / 3, hint=n) for n, s in (("W1", (8, 16)), ("W2", (16, 2))))
settings = {"learning_rate": "Adam", "max_iter": 30, "random_state": 0, "device": [*sys.argv[2:], "cpu"][0]}

# The same classifier both ways: the loss is a setting, or part of the graph.
x = variable("x", "float32", ["N", 8])
model = build([x], {"scores": op.Tanh(x @ W1) @ W2})
partial = OrtGradientForwardBackwardOptimizer(model, learning_loss="softmax_cross_entropy", **settings)
full = OrtGradientOptimizer(add_loss_output(model, "softmax_cross_entropy"), **settings)
pairs = zip(partial.fit(X, labels).get_state(), full.fit(X, labels).get_state(), strict=True)
print(f"largest difference of a weight: {max(abs(a - b).max() for a, b in pairs)}")

# A loss of whole batches: each row is to be more like its own copy than like those of other rows.
other = variable("other", "float32", ["N", 8])
one, two = (op.LpNormalization(op.Tanh(v @ W1), axis=1) for v in (x, other))
likeness = 10 * one @ op.Transpose(two, perm=[1, 0])
places = op.Range(0, op.Squeeze(op.Shape(x, end=1)), 1)
loss = op.SoftmaxCrossEntropyLoss(likeness, places, n_outputs=1)[0]
contrastive = OrtGradientOptimizer(build([x, other], {"code": one, "other_code": two, "loss": loss}),
                                   **{**settings, "batch_size": 50, "max_iter": 100})
contrastive.fit({"x": X, "other": copies})
codes = contrastive.predict({"x": X, "other": new})
shares = [((a @ b.T).argmax(axis=0) == np.arange(200)).mean() for a, b in (list(codes.values()), (X, new))]
print(f"new copies found among 200 rows: {shares[0]:.2f}, by the numbers as they are {shares[1]:.2f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(1, 2, figsize=(9, 4.6))
    titles = {"Partial training: the loss is a setting": 2.5, "Full training: the loss is in the graph": 3.6}
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "C0"}
    for ax, (title, bottom) in zip(axes, titles.items(), strict=True):
        ax.set(xlim=(-1.7, 4.2), ylim=(5.3, -0.5), title=title)
        ax.set_axis_off()
        ax.add_patch(plt.Rectangle((-1.1, 0.55), 2.2, bottom - 0.55, facecolor="C0", alpha=0.15))
        ax.text(-1, 0.75, "ONNX graph", fontsize=8, va="center")
        for text, x, y in (("features", 0, 0), ("model", 0, 1.1), ("predictions", 0, 2.1), ("loss", 0, 3.2),
                           ("gradient and update", 0, 4.6), ("labels, weights of rows", 2.9, 3.2)):
            ax.text(x, y, text, ha="center", va="center", bbox=box, zorder=3)
        for start, end in (((0, 0), (0, 0.87)), ((0, 1.1), (0, 1.87)), ((0, 2.1), (0, 2.97)), ((0, 3.2), (0, 4.37)),
                           ((2.9, 3.2), (0.35, 3.2))):
            ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.3"}, zorder=2)
        ax.plot([-0.9, -1.5, -1.5], [4.6, 4.6, 1.1], color="C1", linewidth=1)
        ax.annotate("", (-0.4, 1.1), (-1.53, 1.1), arrowprops={"arrowstyle": "-|>", "color": "C1"})
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "partial_and_full_training.png")

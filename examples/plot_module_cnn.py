"""
A convolutional network on digits
=================================

Convolutions, batch normalization and Dropout in training mode. The mode is the module's: `fit` trains in training mode,
`predict` and the ONNX model compute in evaluation mode, with the running statistics. ::

    python examples/plot_module_cnn.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from ortpartial import nn
from ortpartial.learning_rate import LearningRateAdam


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class CNN(nn.Module):
    def __init__(self):
        self.features = nn.Sequential(block(1, 12), nn.MaxPool2d(2), block(12, 24), nn.MaxPool2d(2), nn.Flatten())
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(96, 10))

    def forward(self, images):
        return self.classifier(self.features(images))


X, y = load_digits(return_X_y=True)
X = (X.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
order = np.random.default_rng(0).permutation(len(X))
train, test = order[:1400], order[1400:]

model = CNN().set_optimizer(LearningRateAdam(3e-3))
model.compile(nn.placeholder(["N", 1, 8, 8]), random_state=0, device=[*sys.argv[2:], "cpu"][0])
print(model.summary())
model.fit(X[train], y[train], epochs=8, batch_size=64, X_val=X[test], y_val=y[test])

predicted = model.predict(X[test]).argmax(axis=1)
print(f"accuracy {(predicted == y[test]).mean():.3f} on {len(test)} new digits")
print("the ONNX model:", ", ".join(node.op_type for node in model.to_onnx().graph.node))

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    wrong = np.flatnonzero(predicted != y[test])[:6]
    fig, axes = plt.subplot_mosaic([["loss"] * 3 + list("abc"), ["loss"] * 3 + list("def")], figsize=(10, 4))
    for name, label in {"loss": "training", "validation_loss": "new digits"}.items():
        axes["loss"].plot([r["epoch"] for r in model.history_], [r[name] for r in model.history_], label=label)
    axes["loss"].set(xlabel="epoch", ylabel="cross entropy", yscale="log", title="Losses")
    axes["loss"].legend()
    for ax in map(axes.get, "abcdef"):
        ax.axis("off")
    for ax, i in zip(map(axes.get, "abcdef"), wrong, strict=False):
        ax.imshow(X[test][i, 0], cmap="Greys")
        ax.set_title(f"{predicted[i]} for {y[test][i]}", fontsize=10)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "module_cnn.png")

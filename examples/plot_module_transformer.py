"""
A small transformer that sorts
==============================

A sequence of digits goes in, the same digits come out in order. Two layers of attention learn it from examples drawn at
random. Layers and weights have the names of torch, so that `load_state_dict` of either takes what the other has. ::

    python examples/plot_module_transformer.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import nn, op
from ortpartial.learning_rate import LearningRateAdamW

LENGTH, SIZE = 6, 32


class Sorter(nn.Module):
    def __init__(self):
        self.digit, self.place = nn.Embedding(10, SIZE), nn.Parameter([LENGTH, SIZE], nn.Normal(0, 0.5))
        self.layers = [nn.TransformerEncoderLayer(SIZE, 4, 64, dropout=0, batch_first=True) for _ in range(2)]
        self.out = nn.Linear(SIZE, 10)

    def forward(self, digits):
        x = self.digit(digits) + self.place
        for layer in self.layers:
            x = layer(x)
        return op.Transpose(self.out(x), perm=[0, 2, 1])  # the loss takes classes as axis 1


rng = np.random.default_rng(0)
X = rng.integers(0, 10, (2000, LENGTH))
X_val = rng.integers(0, 10, (500, LENGTH))

model = Sorter().set_optimizer(LearningRateAdamW(2e-3, weight_decay=0.01, schedule="cosine"))
model.compile(nn.placeholder(["N", LENGTH], "int64"), random_state=0, device=[*sys.argv[2:], "cpu"][0])
right = []


def validate(model):
    sorted_ = model.predict(X_val).argmax(axis=1)
    right.append((sorted_ == np.sort(X_val)).all(axis=1).mean())


model.fit(X, np.sort(X), epochs=6, batch_size=32, callbacks=validate)
print(f"{sum(p.size for p in model.parameters()):,} parameters; sequences that are sorted without a mistake: "
      f"{right[0]:.3f} -> {right[-1]:.3f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    logits = model.predict(X_val[:1])[0]
    p = np.exp(logits - logits.max(axis=0))
    fig, (left, axis) = plt.subplots(1, 2, figsize=(9, 3.6))
    left.plot(range(1, len(right) + 1), right, marker="o")
    left.set(xlabel="epoch", ylabel="share of the validation", title="Sorted without a mistake", ylim=(0, 1.02))
    axis.imshow(p / p.sum(axis=0), cmap="Greys", aspect="auto")
    axis.set_xticks(range(LENGTH), X_val[0])
    axis.set_yticks(range(10))
    axis.grid(False)
    axis.set(xlabel="what goes in", ylabel="what comes out", title="Probabilities of the digits")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "module_transformer.png")

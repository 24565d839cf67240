"""
A character-level language model: LSTM
======================================

The model reads a text character by character and predicts the next one. Its sizes are symbolic, `["N", "T"]`: one graph
is trained on many windows of 32 characters, and predicts one text of any length, from which it writes on. ::

    python examples/plot_module_char_rnn.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn import datasets

from ortpartial import nn, op
from ortpartial.learning_rate import LearningRateAdam


class CharRNN(nn.Module):
    def __init__(self, characters, size=64):
        self.embed = nn.Embedding(characters, 24)
        self.lstm = nn.LSTM(24, size, batch_first=True)
        self.out = nn.Linear(size, characters)

    def forward(self, text):
        states, _ = self.lstm(self.embed(text))
        return op.Transpose(self.out(states), perm=[0, 2, 1])  # the loss takes classes as axis 1


# What scikit-learn says of its data sets.
loaders = [datasets.load_breast_cancer, datasets.load_diabetes, datasets.load_iris, datasets.load_wine]
text = " ".join(" ".join(load().DESCR for load in loaders).split())
characters = sorted(set(text))
codes = np.array([characters.index(c) for c in text])
windows = np.lib.stride_tricks.sliding_window_view(codes, 33)[::10]

model = CharRNN(len(characters)).set_optimizer(LearningRateAdam(0.01), gradient_clipping=1.0)
model.compile(nn.placeholder(["N", "T"], "int64"), targets=nn.placeholder(["N", "T"], "int64"), random_state=0,
              device=[*sys.argv[2:], "cpu"][0])
model.fit(windows[:, :-1], windows[:, 1:], epochs=6, batch_size=32)
losses = [record["loss"] for record in model.history_]
print(f"{len(text)} characters; bits for each: {losses[0] / np.log(2):.2f} -> {losses[-1] / np.log(2):.2f}")

rng = np.random.default_rng(0)
written = [characters.index(c) for c in "The data"]
for _ in range(150):
    logits = model.predict([written[-32:]])[0, :, -1] / 0.5
    p = np.exp(logits - logits.max())
    written.append(rng.choice(len(characters), p=p / p.sum()))
sample = "".join(characters[c] for c in written)
print(sample)

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    probabilities = np.exp(model.predict([written[:-1]])[0])
    probabilities /= probabilities.sum(axis=0)
    fig, ax = plt.subplots(figsize=(10, 2.6))
    p = probabilities[written[1:], range(len(written) - 1)][:80]
    ax.bar(range(80), p, color=["C0" if c != " " else "lightgray" for c in sample[1:81]])
    ax.set_xticks(range(80), list(sample[1:81]), fontfamily="monospace", fontsize=8)
    ax.set(ylabel="probability", title="What the model wrote, and how sure it was of each character")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "module_char_rnn.png")

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


def write(length=68):
    """Go on from a few words, at each character with one that the model finds likely."""
    rng, written = np.random.default_rng(0), [characters.index(c) for c in "The data"]
    while len(written) < length:
        logits = model.predict([written[-32:]])[0, :, -1] / 0.5
        p = np.exp(logits - logits.max())
        written.append(rng.choice(len(characters), p=p / p.sum()))
    return "".join(characters[c] for c in written)


bits, samples = [], {0: write()}
for epoch in range(1, 7):
    model.fit(windows[:, :-1], windows[:, 1:], epochs=1, batch_size=32)
    bits.append(model.history_[-1]["loss"] / np.log(2))
    samples[epoch] = write()
print(f"{len(text)} characters; bits for each: {bits[0]:.2f} -> {bits[-1]:.2f}")
print(*(f"epoch {epoch}: {sample}" for epoch, sample in samples.items()), sep="\n")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, (ax, page) = plt.subplots(1, 2, figsize=(8.4, 3), width_ratios=[1, 2.1])
    ax.plot(range(1, 7), bits, "o-")
    ax.set(xlabel="epoch", ylabel="bits a character", title="It learns the text")
    page.set_title("and what it writes after each epoch")
    page.axis("off")
    for epoch, sample in samples.items():
        page.text(0, 0.9 - 0.15 * epoch, f"{epoch}  {sample}", fontfamily="monospace", fontsize=8.5, parse_math=False)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "module_char_rnn.png")

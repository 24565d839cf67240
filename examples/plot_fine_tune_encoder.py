"""
Fine-tuning the last block of an exported encoder
=================================================

A transformer encoder that reads an image as eight rows was trained on the digits 0 to 4 and exported to ONNX; only
the ONNX file is left. `OnnxLayer` makes a module of it again: its last block is trained with a new layer of
torch for the digits 5 to 9, from few examples, and the blocks before it stay as they are. ::

    python examples/plot_fine_tune_encoder.py [folder for the figure]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

from ortpartial.torch import OnnxLayer, export

digits, labels = load_digits(return_X_y=True)
X, y = torch.tensor(digits / 16).float().reshape(-1, 8, 8), torch.tensor(labels)
old, new, few = (X[y < 5], y[y < 5]), (X[y > 4], y[y > 4] - 5), 60


class Encoder(nn.Module):
    """Two blocks of attention over the rows of an image."""

    def __init__(self):
        super().__init__()
        block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.embed, self.place = nn.Linear(8, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.blocks(self.embed(x) + self.place).mean(1)


def fit(model, X, y, epochs, batch=32):
    """Train; returns the accuracy after each epoch on test images of the digits 5 to 9."""
    optimizer, accuracies = torch.optim.Adam(model.parameters(), lr=3e-3), []
    for _ in range(epochs):
        for rows in torch.randperm(len(X)).split(batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.train()(X[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracies.append(float((model.eval()(new[0][few:]).argmax(1) == new[1][few:]).float().mean()))
    return accuracies


torch.manual_seed(0)
encoder = Encoder()
fit(nn.Sequential(encoder, nn.Linear(32, 5)), *old, epochs=5)
exported = export(encoder, X[:2])  # an ordinary ONNX model
last = [t.name for t in exported.graph.initializer if t.name.startswith("blocks.layers.1.")]
curves = {}
for title, names in {"new layer alone": [], "and the last block": last}.items():
    torch.manual_seed(1)
    model = nn.Sequential(OnnxLayer(exported, trainable=names), nn.Linear(32, 5))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    curves[title] = fit(model, new[0][:few], new[1][:few], epochs=30, batch=20)
    changed = sum(not torch.equal(t, before[n]) for n, t in model[0].state_dict(prefix="0.").items())
    print(f"{title}: accuracy {curves[title][-1]:.3f}, {changed} of {len(before) - 2} tensors of the encoder changed")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.style.use("ortpartial.figure")
    fig, ax = plt.subplots(figsize=(6, 3.5))
    for title, curve in curves.items():
        ax.plot(range(1, 31), curve, label=title)
    ax.set(xlabel="epoch", ylabel="accuracy", xlim=(1, None), title=f"Digits 5 to 9 from {few} examples")
    ax.legend()
    Path(sys.argv[1]).mkdir(exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "fine_tune_encoder.png")

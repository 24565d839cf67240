"""
A torch layer and an ONNX layer in one network
==============================================

`OnnxLayer` turns any ONNX graph into a torch module: its initializers are parameters, and gradients flow through
it. Here the first layer of a network is torch's and the second is ONNX, and one of torch's optimizers trains both on
handwritten digits. A network of the same weights in torch alone takes the same steps. ::

    python examples/plot_torch_and_onnx_layers.py [folder for the figure]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from ortpartial import build, constant, op, variable
from ortpartial.torch import OnnxLayer

images, labels = load_digits(return_X_y=True)
X, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, test = slice(0, 1200), slice(1200, None)

# The second layer, in the notation; any ONNX file will do.
rng = np.random.default_rng(0)
x = variable("x", "float32", ["N", 32])
weight = constant((rng.normal(size=(32, 10)) / 6).astype(np.float32), hint="scores.weight")
bias = constant(np.zeros(10, np.float32), hint="scores.bias")
layer = OnnxLayer(build([x], {"scores": op.Tanh(x) @ weight + bias}))

torch.manual_seed(0)
first, last = nn.Linear(64, 32), nn.Linear(32, 10)
model = nn.Sequential(first, layer)
twin = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), last)
with torch.no_grad():
    twin[0].load_state_dict(first.state_dict())
    last.weight.copy_(layer.scores.weight.T)
    last.bias.copy_(layer.scores.bias)


def fit(network, epochs=15):
    """The usual training loop; returns the loss of each batch."""
    optimizer, losses = torch.optim.SGD(network.parameters(), lr=0.3, momentum=0.9), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for rows in torch.randperm(1200, generator=generator).split(64):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(X[train][rows]), y[train][rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


losses, expected = fit(model), fit(twin)
accuracy = (model(X[test]).argmax(1) == y[test]).float().mean()
difference = (layer.scores.weight.T - last.weight).abs().max() / last.weight.abs().max()
print(f"parameters  {', '.join(n for n, _ in model.named_parameters())}; engine {layer.engine_}")
print(f"accuracy    {accuracy:.3f} on digits that were not trained on")
print(f"largest difference from the network in torch alone, after {len(losses)} steps: {difference:.1e}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.style.use("ortpartial.figure")
    fig, ax = plt.subplots(figsize=(6, 3.5))
    steps = range(1, len(losses) + 1)
    ax.semilogy(steps, expected, color="0.7", linewidth=3, label="torch alone")
    ax.semilogy(steps, losses, linewidth=1, label="torch, then ONNX")
    ax.set(xlabel="step", ylabel="loss of the batch", title="Two layers, of which the second is an ONNX graph")
    ax.legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "torch_and_onnx_layers.png")

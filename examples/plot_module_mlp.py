"""
A model written in Python: an MLP
=================================

A `Module` is built before any data is there: its layers in `__init__`, what they compute in `forward`, in the notation
of the library. `compile` writes the graph on a placeholder, which holds no data, and draws the weights. The model is
trained, saved as one ONNX file that holds its training, and loaded back to go on. ::

    python examples/plot_module_mlp.py [folder for the figure] [device]
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.datasets import make_moons

from ortpartial import nn, op


class MLP(nn.Module):
    def __init__(self, inputs, hidden, classes):
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.out(op.Relu(self.second(op.Relu(self.first(x)))))


X, y = make_moons(1200, noise=0.15, random_state=0)
X, y, X_val, y_val = X[:800], y[:800], X[800:], y[800:]

device = [*sys.argv[2:], "cpu"][0]
model = MLP(inputs=2, hidden=32, classes=2).set_optimizer("adam")
model.compile(nn.placeholder(["N", 2]), random_state=0, device=device)
print(model.summary())
model.fit(X, y, epochs=60, batch_size=32, X_val=X_val, y_val=y_val)
print(f"right {(model.predict(X_val).argmax(1) == y_val).mean():.3f} of the validation")

# One file: the model, its weights and the state of Adam. Any onnxruntime runs it, and a module goes on from it.
with tempfile.TemporaryDirectory() as folder:
    model.save(path := Path(folder) / "moons.onnx", state={"epochs": 60})
    again = MLP(2, 32, 2).set_optimizer("adam").compile(nn.placeholder(["N", 2]), device=device)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, state {again.load(path, include_state=True)}")
assert all((again.state_dict()[name] == w).all() for name, w in model.state_dict().items())

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for name, label in {"loss": "training", "validation_loss": "validation"}.items():
        left.plot([r["epoch"] for r in model.history_], [r[name] for r in model.history_], label=label)
    left.set(xlabel="epoch", ylabel="loss", yscale="log", title="Cross entropy")
    left.legend()
    a, b = np.meshgrid(np.linspace(-1.6, 2.6, 150), np.linspace(-1.1, 1.6, 150))
    logits = model.predict(np.column_stack([a.ravel(), b.ravel()]))
    margin = (logits[:, 1] - logits[:, 0]).reshape(a.shape)
    right.contourf(a, b, margin, levels=[-99, 0, 99], colors=["C0", "C1"], alpha=0.2)
    for label in (0, 1):
        right.scatter(*X_val[y_val == label].T, s=6, color=f"C{label}", label=f"class {label}")
    right.set(title="Decision, and rows of the validation")
    right.legend()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "module_mlp.png")

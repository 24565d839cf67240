"""
A neural network in five lines
==============================

A network is written as a formula over ONNX operators: `op.Tanh` is Tanh as the ONNX specification has it, `@` and `+`
are MatMul and Add, and `build` turns the formula into an ordinary ONNX model. It is trained with the softmax
cross-entropy and Adam on three spirals, which no straight line can separate. ::

    python examples/plot_neural_network.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.learning_loss import SoftmaxCrossEntropyLearningLoss
from ortpartial.learning_rate import LearningRateAdam

rng = np.random.default_rng(0)
label = np.arange(900) % 3
turn = rng.uniform(0.2, 1.0, size=900)
angle = 2 * np.pi * (turn + label / 3)
X = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) + 0.05 * rng.normal(size=(900, 2))
train, test = slice(0, 600), slice(600, 900)


def weight(name, *shape):
    """A trainable tensor; `weights_to_train` and `trained_coef_` use its name in the ONNX model."""
    return constant(rng.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32), hint=name)


x = variable("x", "float32", ["N", 2])
hidden = op.Tanh(x @ weight("W1", 2, 32) + weight("b1", 32))
hidden = op.Tanh(hidden @ weight("W2", 32, 32) + weight("b2", 32))
scores = hidden @ weight("W3", 32, 3) + weight("b3", 3)
model = build([x], {"scores": scores})

optimizer = OrtGradientForwardBackwardOptimizer(
    model, learning_loss=SoftmaxCrossEntropyLearningLoss(), learning_rate=LearningRateAdam(0.004),
    max_iter=100, batch_size=20, random_state=0, device=[*sys.argv[2:], "cpu"][0])
print(f"before: accuracy {optimizer.score(X[test], label[test]):.3f} on points that were not trained on")
optimizer.fit(X[train], label[train], X_val=X[test], y_val=label[test])
print(f"after:  accuracy {optimizer.score(X[test], label[test]):.3f}, loss {optimizer.train_losses_[-1]:.3f}")
print(f"weights trained: {', '.join(optimizer.weights_to_train)}; engine {optimizer.engine_}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    axis = np.linspace(-1.2, 1.2, 300)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    regions = optimizer.predict(grid).argmax(axis=1).reshape(300, 300)
    colors = ["C0", "C1", "C2"]
    fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
    left.contourf(axis, axis, regions, levels=[-0.5, 0.5, 1.5, 2.5], colors=colors, alpha=0.2)
    left.scatter(*X[test].T, c=[colors[i] for i in label[test]], s=10)
    left.set(aspect="equal", title="Learned regions, and test points", xticks=[], yticks=[])
    right.semilogy(range(1, 101), optimizer.train_losses_, label="training")
    right.semilogy(range(1, 101), optimizer.validation_losses_, label="test")
    right.set(xlabel="epoch", xlim=(1, None), title="Cross-entropy")
    right.legend()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "neural_network.png")

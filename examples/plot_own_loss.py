"""
A loss of your own in three lines
=================================

A loss is a formula from the prediction `y` and the target `t` to the loss of each element. The gradient, sample weights
and all engines need no further code. The pinball loss below trains three quantiles at once: one in ten targets lies
below the first, half of them below the second, nine in ten below the third. ::

    python examples/plot_own_loss.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.learning_loss import BaseLearningLoss
from ortpartial.learning_rate import LearningRateAdam

QUANTILES = np.array([0.1, 0.5, 0.9], np.float32)


class PinballLearningLoss(BaseLearningLoss):
    def __call__(self, y, t):
        return op.Max(QUANTILES * (t - y), (QUANTILES - 1) * (t - y))


# Noise that grows with x: the quantiles fan out.
rng = np.random.default_rng(0)
X = rng.uniform(size=(1000, 1)).astype(np.float32)
y = np.sin(4 * X) + (0.1 + 0.5 * X) * rng.normal(size=X.shape)


def weight(name, *shape):
    return constant(rng.normal(size=shape).astype(np.float32), hint=name)


x = variable("x", "float32", ["N", 1])
hidden = op.Tanh(3 * x @ weight("W1", 1, 16) + weight("b1", 16))
model = build([x], {"quantiles": 0.25 * hidden @ weight("W2", 16, 3) + weight("b2", 3)})

optimizer = OrtGradientForwardBackwardOptimizer(
    model, learning_loss=PinballLearningLoss(), learning_rate=LearningRateAdam(0.01), max_iter=60,
    random_state=0, device=[*sys.argv[2:], "cpu"][0])
optimizer.fit(X, np.repeat(y, 3, axis=1))
print(f"loss {optimizer.train_losses_[0]:.3f} -> {optimizer.train_losses_[-1]:.3f}")
for q, share in zip(QUANTILES, (y < optimizer.predict(X)).mean(axis=0), strict=True):
    print(f"quantile {q:.1f}: {share:.3f} of the targets lie under it")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    line = np.linspace(0, 1, 200)[:, None]
    low, middle, high = optimizer.predict(line).T
    fig, ax = plt.subplots(figsize=(6, 4))
    ax.scatter(X, y, s=4, color="gray", alpha=0.5, label="target")
    ax.fill_between(line[:, 0], low, high, color="C0", alpha=0.2, label="8 of 10 targets")
    ax.plot(line, middle, color="C0", label="median")
    ax.set(xlabel="x", ylabel="target", title="Three quantiles, trained with a custom loss")
    ax.legend()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "own_loss.png")

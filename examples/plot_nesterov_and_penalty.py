"""
Nesterov momentum and an elastic penalty
========================================

The same network, from the same weights and over the same batches, is trained four times: by plain SGD or with
Nesterov's momentum, and with or without an elastic penalty. Momentum reaches a low loss in fewer epochs at the same
step size. There are few rows, and only three of 20 inputs matter: without a penalty, the network overfits the noise;
with one, it drops the irrelevant inputs and predicts new rows better. ::

    python examples/plot_nesterov_and_penalty.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.learning_penalty import ElasticLearningPenalty, NoLearningPenalty
from ortpartial.learning_rate import LearningRateSGD, LearningRateSGDNesterov

rng = np.random.default_rng(0)
X = rng.normal(size=(1400, 20)).astype(np.float32)
y = np.sin(2 * X[:, :1]) + X[:, 1:2] * X[:, 2:3] + 0.3 * rng.normal(size=(1400, 1))
train, test = slice(0, 400), slice(400, 1400)


def weight(name, *shape):
    return constant(rng.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32), hint=name)


x = variable("x", "float32", ["N", 20])
hidden = op.Tanh(x @ weight("W1", 20, 50) + weight("b1", 50))
model = build([x], {"y": hidden @ weight("W2", 50, 1) + weight("b2", 1)})

rates = {"SGD": LearningRateSGD(0.01, schedule="constant"),
         "Nesterov": LearningRateSGDNesterov(0.01, schedule="constant", momentum=0.9)}
penalties = {"no penalty": NoLearningPenalty(), "elastic penalty": ElasticLearningPenalty(l1=0.005, l2=0.005)}
trained = {}
for rate_name, rate in rates.items():
    for penalty_name, penalty in penalties.items():
        optimizer = OrtGradientForwardBackwardOptimizer(
            model, learning_rate=rate, learning_penalty=penalty, max_iter=100, validation_every=1,
            random_state=0, device=[*sys.argv[2:], "cpu"][0])
        optimizer.fit(X[train], y[train], X_val=X[test], y_val=y[test])
        trained[rate_name, penalty_name] = optimizer
        size = np.abs(optimizer.trained_coef_["W1"]).mean(axis=1)
        loss, new = optimizer.train_losses_[-1], optimizer.validation_losses_[-1]
        print(f"{rate_name:8} {penalty_name:15}  square error: training rows {loss:.3f}, new rows {new:.3f};  "
              f"weights of inputs that matter {size[:3].mean():.2f}, of others {size[3:].mean():.2f}")
plain, penalised = (trained["Nesterov", p].validation_losses_[-1] for p in penalties)
print(f"With momentum, the penalty divides the error on new rows by {plain / penalised:.2f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(1, 2, figsize=(9, 4))
    epochs = range(1, 101)
    for (rate_name, penalty_name), optimizer in trained.items():
        look = {"color": {"SGD": "C1", "Nesterov": "C0"}[rate_name],
                "linestyle": {"no penalty": "--", "elastic penalty": "-"}[penalty_name]}
        axes[0].semilogy(epochs, optimizer.train_losses_, label=f"{rate_name}, {penalty_name}", **look)
        axes[1].plot(epochs, optimizer.validation_losses_, label=f"{rate_name}, {penalty_name}", **look)
    axes[0].set(xlabel="epoch", xlim=(1, None), ylabel="square error", title="Training rows")
    axes[1].set(xlabel="epoch", xlim=(1, None), ylim=(0, None), title="New rows")
    axes[0].legend(fontsize=8)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "nesterov_and_penalty.png")

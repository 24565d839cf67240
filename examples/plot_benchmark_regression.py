"""
A regression beside scikit-learn's MLPRegressor
===============================================

The diabetes data, a network 10-50-1, Adam with the same step size, batches and number of epochs: the time and the score
of both. One core, float32, no penalty, initial weights from the same distribution, medians of three seeds. The seconds
of ortpartial include compiling its graph, some tens of milliseconds, which pays off for many small batches and not for
few large ones. ::

    python examples/plot_benchmark_regression.py [folder for the figure] [device]
"""

import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.learning_rate import LearningRateAdam

EPOCHS, BATCHES, DEVICE = 40, [8, 32, 128], [*sys.argv[2:], "cpu"][0]
threadpool_limits(1)
warnings.simplefilter("ignore", ConvergenceWarning)  # scikit-learn stops after the same number of epochs
X, y = (StandardScaler().fit_transform(np.c_[a]).astype(np.float32) for a in load_diabetes(return_X_y=True))
X_train, X_test, y_train, y_test = train_test_split(X, y[:, 0], random_state=0)


def with_ortpartial(batch, seed):
    def layer(x, i, m, n):  # initial weights as in scikit-learn
        W, b = (np.random.default_rng([seed, i]).uniform(-1, 1, s) * (6 / (m + n)) ** 0.5 for s in ((m, n), n))
        return x @ constant(W.astype(np.float32), hint=f"W{i}") + constant(b.astype(np.float32), hint=f"b{i}")

    x = variable("x", "float32", ["N", 10])
    model = build([x], {"y": layer(op.Relu(layer(x, 1, 10, 50)), 2, 50, 1)})
    return OrtGradientForwardBackwardOptimizer(
        model, learning_rate=LearningRateAdam(), max_iter=EPOCHS, batch_size=batch, random_state=seed, device=DEVICE)


def with_sklearn(batch, seed):
    return MLPRegressor(hidden_layer_sizes=[50], learning_rate_init=1e-3, alpha=0, max_iter=EPOCHS,
                        n_iter_no_change=EPOCHS, batch_size=batch, random_state=seed)


libraries, seconds, scores = {"ortpartial": with_ortpartial, "scikit-learn": with_sklearn}, {}, {}
print("batch  library       seconds  R² of test rows")
for batch in BATCHES:
    for name, make in libraries.items():
        runs = []
        for seed in range(3):
            start = time.perf_counter()
            fitted = make(batch, seed).fit(X_train, y_train)
            runs.append([time.perf_counter() - start, fitted.score(X_test, y_test)])
        seconds[name, batch], scores[name, batch] = np.median(runs, axis=0)
        print(f"{batch:5}  {name:12}  {seconds[name, batch]:7.3f}  {scores[name, batch]:.3f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.5))
    for ax, what, title in zip(axes, (seconds, scores), (f"Seconds for {EPOCHS} epochs", "Test R²"), strict=True):
        for i, lib in enumerate(libraries):
            ax.bar_label(ax.bar(np.arange(3) + 0.4 * i, [what[lib, b] for b in BATCHES], 0.4, label=lib), fmt="{:.2f}")
        ax.set(xticks=np.arange(3) + 0.2, xticklabels=BATCHES, xlabel="rows of a batch", title=title)
    axes[0].legend()
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "benchmark_regression.png")
